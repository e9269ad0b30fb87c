package scenario

// Version is the version of the format.
const Version = 1

// Limits of a scenario.
const (
	MaxFile     = 256 << 10 // bytes of a file
	MaxNodes    = 1024      // of a cluster
	MaxSteps    = 1000      // of a timeline
	MaxActions  = 20_000    // of a schedule: steps with their repetitions
	MaxExpect   = 100       // expectations
	MaxDuration = 24 * Hour // of a run, and of every time in it
	MaxName     = 64        // bytes of a name
	MaxAbout    = 1024      // bytes of about
)

// A Scenario is one file. It does not change after [Decode] or [Scenario.Check]
// has accepted it.
type Scenario struct {
	Version  int          `yaml:"version" need:"true" range:"1..1" doc:"version of the format"`
	Name     Name         `yaml:"name" need:"true" doc:"what reports call it; by convention the file's name"`
	About    Text         `yaml:"about" doc:"what it shows, in a sentence"`
	Rows     []Name       `yaml:"rows" doc:"rows of the failure model, criteria and known issues that it shows, as F1, B6, S3, I5 or P12"`
	On       []Lab        `yaml:"on" need:"true" doc:"labs that can run it"`
	Cluster  Cluster      `yaml:"cluster" need:"true" doc:"the nodes"`
	Select   []Selection  `yaml:"select" doc:"names for nodes that are drawn from the seed, used as $name"`
	Workload Workload     `yaml:"workload" doc:"what applications do all the time"`
	Duration Duration     `yaml:"duration" need:"true" doc:"of the run, from the moment when the cluster is complete and the workload runs"`
	Timeline []Step       `yaml:"timeline" doc:"what is broken when"`
	Expect   []Expect     `yaml:"expect" doc:"what must hold beside the invariants, which always must"`
	Figures  []FigureName `yaml:"figures" doc:"figures to record"`
}

// A Lab is a place where a scenario runs.
type Lab string

// The labs.
const (
	Sim     Lab = "sim"     // whole clusters on virtual time in one goroutine
	Local   Lab = "local"   // processes on this machine
	Netns   Lab = "netns"   // processes in network namespaces
	Compose Lab = "compose" // containers
)

// Labs are all labs, the cheapest first.
var Labs = []Lab{Sim, Local, Netns, Compose}

// A Cluster is the initial state of a run. Every node runs one fabricd and one
// application.
type Cluster struct {
	Nodes     int       `yaml:"nodes" need:"true" range:"1..1024" doc:"how many, the host (0) included"`
	Detection Detection `yaml:"detection" doc:"detection profile of every node; normal if it is left out"`
	LostPair  LostPair  `yaml:"lost_pair" doc:"what the host makes of two nodes that have lost only each other: reset keeps both, evict removes one of them; reset if it is left out"`
	Names     Names     `yaml:"names" doc:"names of the nodes, from node 0 on; n0, n1 and so on where they are left out. A name goes wherever an index goes"`
	Late      NodeSet   `yaml:"late" doc:"nodes that do not run at the beginning: a start step starts them"`
	// Certificates is at least a minute, or 0: the product's default.
	Certificates Duration `yaml:"certificates" doc:"how long a node's certificate is valid, at least 1m; a year if it is left out"`
	// ConnMemory is the setting conn-memory of every node, or 0: auto. A simulation
	// has no such bound.
	ConnMemory Size `yaml:"conn_memory" range:"1048576..1099511627776" doc:"memory of each node's connections in a real lab; half of what it may have if it is left out"`
}

// A Selection names nodes that are drawn from the seed.
type Selection struct {
	Name  Name    `yaml:"-"`
	Any   int     `yaml:"any" need:"true" range:"1..1024" doc:"how many"`
	Of    NodeSet `yaml:"of" doc:"from which nodes; all if it is left out"`
	Not   NodeSet `yaml:"not" doc:"but not these"`
	Fresh bool    `yaml:"fresh" doc:"drawn anew for every step and every repetition that uses it"`
}

// A Workload is the load of the applications from the moment when the cluster is
// complete until the end. Everything is per pair and direction and second.
type Workload struct {
	Pairs    Pairs     `yaml:"pairs" doc:"which slots talk to which; none if it is left out"`
	Messages *Messages `yaml:"messages" doc:"a stream of bytes, each a function of its position"`
	RMA      *RMA      `yaml:"rma" doc:"one-sided operations, every word tagged with its writer"`
	Connects int       `yaml:"connects" range:"0..10000" doc:"short connections a second: connect, exchange, close"`
	// ConnectSize is 0 for the default, which a simulation always has.
	ConnectSize Size `yaml:"connect_size" range:"1..16777216" doc:"bytes at most that a short connection sends each way in a real lab; 16 KiB if it is left out, too few for a path"`
	Windows     int  `yaml:"windows" range:"0..10000" doc:"windows a second that are registered and unregistered beside the RMA"`
	Waiters     bool `yaml:"waiters" doc:"keep a blocked recv, accept, fence wait and poll parked on every pair"`
}

// Messages is the stream of a [Workload].
type Messages struct {
	Size SizeRange `yaml:"size" need:"true" doc:"bytes of a message"`
	Rate int       `yaml:"rate" need:"true" range:"1..1000000" doc:"messages a second"`
}

// RMA is the one-sided traffic of a [Workload].
type RMA struct {
	Size   SizeRange `yaml:"size" need:"true" doc:"bytes of an operation"`
	Rate   int       `yaml:"rate" need:"true" range:"1..1000000" doc:"operations a second"`
	Window Size      `yaml:"window" need:"true" range:"4096..1073741824" doc:"bytes of the target window, a multiple of 4096"`
	Reads  Percent   `yaml:"reads" doc:"share of operations that read"`
	Fence  int       `yaml:"fence" range:"0..100000" doc:"mark and wait after so many operations; 0: never"`
	Signal int       `yaml:"signal" range:"0..100000" doc:"signal after so many operations; 0: never"`
}

// Eased returns w with percent of its rates of messages, operations and connections,
// at least one a second of each that it has: for a machine to which several runs at a time would give too much to do. w
// stays as it is.
func (w Workload) Eased(percent int) Workload {
	ease := func(rate int) int { return max(1, rate*percent/100) }
	if w.Messages != nil {
		m := *w.Messages
		m.Rate = ease(m.Rate)
		w.Messages = &m
	}
	if w.RMA != nil {
		r := *w.RMA
		r.Rate = ease(r.Rate)
		w.RMA = &r
	}
	if w.Connects > 0 {
		w.Connects = ease(w.Connects)
	}
	return w
}

// A Step is one line of the timeline: a time and one action.
type Step struct {
	At    Span     `yaml:"at" doc:"when: a time, or a range from which one is drawn"`
	Every Span     `yaml:"every" doc:"instead of at: repeated so often, first at from"`
	From  Duration `yaml:"from" doc:"with every: when it begins; 0s if it is left out"`
	Until Duration `yaml:"until" doc:"with every: when it ends"`
	Do    `yaml:",inline"`
}

// A Do is one action: exactly one of its fields is set.
type Do struct {
	Link      *Link      `yaml:"link" doc:"break links, by the fault plane of the nodes or by the kernel"`
	Partition *Partition `yaml:"partition" doc:"separate groups of nodes from each other"`
	Path      *Path      `yaml:"path" doc:"break the paths of connections, and not their links"`
	Network   *Network   `yaml:"network" doc:"break a node's network interface"`
	Node      *Node      `yaml:"node" doc:"do something to the fabricd of nodes"`
	App       *App       `yaml:"app" doc:"do something to the application of nodes"`
	Fault     *Fault     `yaml:"fault" doc:"a fault inside the fabricd of nodes, at a step of the protocol or at once"`
	CPU       *CPU       `yaml:"cpu" doc:"take processor time from nodes"`
	Memory    *Memory    `yaml:"memory" doc:"bound the memory of nodes"`
	Rotate    *Rotate    `yaml:"rotate" doc:"change what the cluster is sealed with"`
}
