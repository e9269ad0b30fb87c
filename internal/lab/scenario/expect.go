package scenario

// An Expect is one expectation: exactly one of its fields is set. A time within
// which something must happen is made longer by the lab's slack ([Lab.Slack]).
type Expect struct {
	Removed  *ExpectRemoved  `yaml:"removed" doc:"incarnations of nodes end, and every other node is notified"`
	Added    *ExpectAdded    `yaml:"added" doc:"nodes come back, and every other node is notified"`
	Errors   *ExpectErrors   `yaml:"errors" doc:"calls to nodes fail soon, and with the right errno"`
	Unharmed *ExpectUnharmed `yaml:"unharmed" doc:"nothing happens to nodes among each other: no removal, no reset"`
	Removals *ExpectRemovals `yaml:"removals" doc:"how many incarnations end in the whole run"`
	Mesh     *ExpectMesh     `yaml:"mesh" doc:"every node knows every other"`
	Connects *ExpectConnects `yaml:"connects" doc:"new connections work between all pairs of the workload"`
	Traffic  *ExpectTraffic  `yaml:"traffic" doc:"messages go on"`
	Latency  *ExpectLatency  `yaml:"latency" doc:"nodes among each other wait no longer than before"`
	Exits    *ExpectExits    `yaml:"exits" doc:"a fabricd ends by itself"`
	CPU      *ExpectCPU      `yaml:"cpu" doc:"a fabricd takes little of a processor; in real labs"`
}

// An ExpectRemoved expects that each observer is notified of the end of the nodes'
// lives.
type ExpectRemoved struct {
	Node   NodeSet    `yaml:"node" need:"true" doc:"nodes whose incarnations end"`
	At     NodeSet    `yaml:"at" may:"others" doc:"observers; if it is left out all nodes that run, are not cut off, and are not in node"`
	Times  int        `yaml:"times" range:"0..1000000" doc:"how often each observer is notified, for each of the nodes, in the whole run; not counted if it is left out"`
	Within Duration   `yaml:"within" doc:"of the fault that ended the incarnation, and the lab's slack: see What times count from"`
	P99    Duration   `yaml:"p99" doc:"of the fault, 99 times of 100, over all observers and incarnations; the lab's slack is not added"`
	Reason ReasonName `yaml:"reason" doc:"of the event: left, crashed, silent, restarted, partitioned"`
}

// An ExpectAdded expects that each observer is notified of the nodes' new incarnations.
type ExpectAdded struct {
	Node   NodeSet  `yaml:"node" need:"true" doc:"nodes that come back"`
	At     NodeSet  `yaml:"at" may:"others" doc:"observers; if it is left out all nodes that run and are not in node"`
	Times  int      `yaml:"times" range:"0..1000000" doc:"how often each observer is notified, for each of the nodes; not counted if it is left out"`
	Within Duration `yaml:"within" doc:"of the moment that after names"`
	After  After    `yaml:"after" doc:"start: the node's daemon serves again; last: the last fault ended; start if it is left out"`
}

// An ExpectErrors expects that calls towards the nodes end with an error.
type ExpectErrors struct {
	To     NodeSet  `yaml:"to" need:"true" doc:"nodes that are lost"`
	From   NodeSet  `yaml:"from" may:"others" doc:"the callers; if it is left out all that are not in to"`
	Within Duration `yaml:"within" doc:"of the fault"`
	P99    Duration `yaml:"p99" doc:"of the fault, 99 times of 100, over all calls; the lab's slack is not added"`
	Status []Errno  `yaml:"status" doc:"allowed errnos; ECONNRESET and ENODEV if it is left out"`
}

// An ExpectUnharmed expects that nodes and the connections among them live on.
type ExpectUnharmed struct {
	Nodes NodeSet `yaml:"nodes" need:"true" may:"others" doc:"nodes; others: all that no fault touches"`
}

// An ExpectRemovals bounds the number of incarnations that end, by whatever.
type ExpectRemovals struct {
	Min int `yaml:"min" range:"0..1000000" doc:"at least"`
	Max int `yaml:"max" need:"true" range:"0..1000000" doc:"at most"`
}

// An ExpectMesh expects that every node that runs knows the incarnation of every other.
type ExpectMesh struct {
	Nodes  NodeSet  `yaml:"nodes" may:"others" doc:"nodes; all that run if it is left out"`
	Within Duration `yaml:"within" need:"true" doc:"of the moment that after names"`
	After  After    `yaml:"after" doc:"last: the last fault ended; begin: the run began; last if it is left out"`
}

// An ExpectConnects expects that a new connection of each pair of the workload
// opens.
type ExpectConnects struct {
	Among  NodeSet  `yaml:"among" may:"others" doc:"nodes; all that run if it is left out"`
	Within Duration `yaml:"within" need:"true" doc:"of the moment that after names"`
	After  After    `yaml:"after" doc:"as for mesh"`
}

// An ExpectTraffic expects that the messages of connections go on.
type ExpectTraffic struct {
	Among NodeSet  `yaml:"among" need:"true" may:"others" doc:"nodes; others: all that no fault touches"`
	Stall Duration `yaml:"stall" doc:"longest time without a byte on a connection"`
	Least Percent  `yaml:"least" doc:"of the throughput before the first fault"`
}

// An ExpectLatency expects that a fault delays no application that it does not touch.
// It bounds two latencies, each by itself, from the first fault on: of fence waits,
// and of the first message that the server of a connection sends.
type ExpectLatency struct {
	Among NodeSet  `yaml:"among" need:"true" may:"others" doc:"nodes; others: all that no fault touches"`
	P99   Duration `yaml:"p99" doc:"99th percentile at most, since the first fault, of fence waits and of first messages"`
	Times int      `yaml:"times" range:"0..1000" doc:"so many times the 99th percentile before the first fault at most"`
}

// An ExpectExits expects that the daemon of nodes ends by itself.
type ExpectExits struct {
	Node   NodeSet  `yaml:"node" need:"true" doc:"which nodes"`
	Within Duration `yaml:"within" need:"true" doc:"of the step that asked for it"`
	Code   int      `yaml:"code" range:"0..255" doc:"exit code"`
}

// An ExpectCPU bounds the processor time of the daemons of nodes, each by itself,
// from the timeline's zero until the applications have ended: those that run all the
// time, not those that were started anew. Other processes of the machine do not
// count, so that it holds on a busy one too.
type ExpectCPU struct {
	Nodes NodeSet `yaml:"nodes" need:"true" may:"others" doc:"which nodes"`
	Most  Percent `yaml:"most" need:"true" doc:"of one processor"`
}

// An After names the moment from which a time counts.
type After string

// The values of an After.
const (
	AfterBegin After = "begin" // the run began
	AfterStart After = "start" // the node's daemon serves again
	AfterLast  After = "last"  // the last fault ended
)

// A FigureName is a figure that a run records.
type FigureName string

// The figures. Times are in nanoseconds, one sample for each thing timed.
const (
	TimeToError   FigureName = "time_to_error"   // fault to the error of a call, per call
	TimeToRemoved FigureName = "time_to_removed" // fault to the event, per observer
	TimeToAdded   FigureName = "time_to_added"   // daemon serves to the event, per observer that was there before
	TimeToMesh    FigureName = "time_to_mesh"    // last fault ended to full mesh, one
	TimeToConnect FigureName = "time_to_connect" // last fault ended to a connection of each pair, per pair
	ConnectTime   FigureName = "connect_time"    // of connects that worked, per call
	FenceTime     FigureName = "fence_time"      // of fence waits that succeeded, per call
	Stalls        FigureName = "stalls"          // longest time without a byte, per connection that no fault touches
	Throughput    FigureName = "throughput"      // bytes received a second, per second of the run
	CPUTime       FigureName = "cpu_time"        // of a processor, a second, per daemon; real labs
	Latency       FigureName = "latency"         // of fence waits and first messages, before and since the first fault, per call between nodes that no fault touches
)

// FigureNames are all figures.
var FigureNames = []FigureName{TimeToError, TimeToRemoved, TimeToAdded, TimeToMesh, TimeToConnect, ConnectTime, FenceTime, Stalls, Throughput, Latency, CPUTime}
