package observe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
)

// Severities of a Finding.
const (
	Broken  = "broken"  // something does not work
	Warning = "warning" // something works less well than it should, or soon will not
	Note    = "note"    // worth knowing when something is wrong
)

// Kinds of a Finding. They are fixed: metrics and alerts name them.
const (
	KindState       = "state"
	KindHost        = "host"
	KindNode        = "node"
	KindLink        = "link"
	KindLoss        = "loss"
	KindSlow        = "slow"
	KindFallback    = "fallback"
	KindReceiver    = "receiver"
	KindBacklog     = "backlog"
	KindGateway     = "gateway"
	KindRefused     = "refused"
	KindJoin        = "join"
	KindBanned      = "banned"
	KindDescriptors = "descriptors"
	KindMemory      = "memory"
	KindQuota       = "quota"
	KindCertificate = "certificate"
	KindClock       = "clock"
	KindProvider    = "provider"
	KindFault       = "fault"
	KindPanic       = "panic"
)

// Kinds returns all kinds of a Finding.
func Kinds() []string {
	return []string{KindState, KindHost, KindNode, KindLink, KindLoss, KindSlow, KindFallback, KindReceiver, KindBacklog, KindGateway, KindRefused, KindJoin,
		KindBanned, KindDescriptors, KindMemory, KindQuota, KindCertificate, KindClock, KindProvider, KindFault, KindPanic}
}

// A Finding is one problem, in a sentence.
type Finding struct {
	Severity string `json:"severity"`
	Kind     string `json:"kind"`
	Text     string `json:"text"`
	// Node is the peer that it is about; addr.NoNode: none.
	Node addr.NodeID `json:"node"`
}

// WaitFrom is how long a connection's peer has to receive nothing before that is a finding.
const WaitFrom = time.Second

// Thresholds of the other findings.
const (
	silentFrom  = time.Second // a heartbeat comes every quarter of one
	lossFrom    = 0.5         // per cent of packets
	slowTimes   = 4           // a round trip, in multiples of the shortest one
	slowFrom    = 10 * time.Millisecond
	nearFrom    = 85               // per cent of a bound
	lately      = 5 * time.Minute  // of events
	lostLately  = 10 * time.Minute // of nodes that were lost
	clockFrom   = 5 * time.Second
	clockLately = time.Hour // of jumps of the clock
	mostOfKind  = 8         // findings of one kind; more are counted
)

// Findings returns the problems in s, the worst first.
func Findings(s Snapshot) []Finding {
	f := &findings{s: s, all: []Finding{}}
	f.self()
	f.certificate()
	f.clock()
	f.bounds()
	f.nodes()
	f.returned()
	f.links()
	f.receivers()
	f.ports()
	f.gateways()
	f.host()
	f.events()
	rank := []string{Broken, Warning, Note}
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Compare(slices.Index(rank, a.Severity), slices.Index(rank, b.Severity))
	})
	return bounded(f.all)
}

// bounded returns at most mostOfKind findings of each kind, and how many more there are.
func bounded(all []Finding) []Finding {
	count, out := map[string]int{}, all[:0]
	for _, f := range all {
		if count[f.Kind]++; count[f.Kind] <= mostOfKind {
			out = append(out, f)
		}
	}
	for _, kind := range Kinds() {
		if more := count[kind] - mostOfKind; more > 0 {
			out = append(out, Finding{Severity: Note, Kind: kind, Node: addr.NoNode, Text: fmt.Sprintf("%d more of the kind %q", more, kind)})
		}
	}
	return out
}

// findings collects the problems in s.
type findings struct {
	s   Snapshot
	all []Finding
}

func (f *findings) add(severity, kind, format string, args ...any) {
	f.about(addr.NoNode, severity, kind, format, args...)
}

func (f *findings) about(node addr.NodeID, severity, kind, format string, args ...any) {
	f.all = append(f.all, Finding{Severity: severity, Kind: kind, Node: node, Text: fmt.Sprintf(format, args...)})
}

// self adds the problems of this node itself.
func (f *findings) self() {
	self := f.s.Self
	switch self.State {
	case "joining":
		f.add(Broken, KindState, "this node has not joined: %s", self.Detail)
	case "local", "leaving":
		f.add(Warning, KindState, "this node is %s%s", self.State, after(": ", self.Detail))
	}
	if self.HostLost && self.State != "joining" {
		f.add(Warning, KindHost, "the host is lost: no node can join%s", after("; ", self.HostDetail))
	}
	for _, u := range self.Unavailable {
		f.add(Warning, KindProvider, "provider unavailable: %s", u)
	}
	for _, w := range self.Warnings {
		f.add(Note, KindFault, "broken on purpose: %s", w)
	}
	if self.Panics > 0 {
		f.add(Warning, KindPanic, "%d internal errors were caught: each is a bug, whose stack the log has", self.Panics)
	}
}

func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}

// certificate adds a certificate that has ended, or an overdue renewal.
func (f *findings) certificate() {
	self := f.s.Self
	left, late := self.Certificate.Sub(f.s.Time), f.s.Time.Sub(self.Renewal)
	switch {
	case self.Certificate.IsZero():
	case left <= 0:
		f.add(Broken, KindCertificate, "this node's certificate expired %s ago: no other node accepts it", span(-left))
	case late > left/3: // a quarter of the time from the renewal to the end is over
		f.add(Warning, KindCertificate, "this node's certificate expires in %s, and its renewal is %s late", span(left), span(late))
	}
}

func (f *findings) clock() {
	self := f.s.Self
	if self.ClockOff.Abs() >= clockFrom {
		f.add(Warning, KindClock, "the clock is off: it jumped %s, and certificates and tokens go by the time before until it has stayed there for 30 s", direction(self.ClockOff))
	}
	if ago := f.s.Time.Sub(self.JumpedAt); !self.JumpedAt.IsZero() && self.JumpedBy != 0 && (ago.Abs() < clockLately) {
		f.add(Warning, KindClock, "the clock jumped %s %s ago and has stayed there: certificates and tokens go by it", direction(self.JumpedBy), span(ago))
	}
}

func direction(d time.Duration) string {
	d = d.Round(time.Second) // the two clocks are not read in the same moment
	if d < 0 {
		return span(-d) + " back"
	}
	return span(d) + " ahead"
}

// bounds adds the limits that are nearly used up.
func (f *findings) bounds() {
	t := f.s.Totals
	if near(t.Descriptors, t.DescriptorLimit) {
		f.add(severityOf(t.Descriptors, t.DescriptorLimit), KindDescriptors, "descriptors run short: %d of %d are in use (RLIMIT_NOFILE); new connections and applications are refused without", t.Descriptors, t.DescriptorLimit)
	}
	if near(t.ConnMemory, t.ConnMemoryLimit) {
		f.add(severityOf(t.ConnMemory, t.ConnMemoryLimit), KindMemory, "memory for connections runs short: %s of %s are promised (conn-memory)", size(t.ConnMemory), size(t.ConnMemoryLimit))
	}
	for _, name := range slices.Sorted(maps.Keys(f.s.Quotas)) {
		if fill := f.s.Quotas[name]; fill*100 >= nearFrom {
			f.add(Warning, KindQuota, "an application or a user has %.0f %% of its quota of %s: what goes beyond is refused", fill*100, strings.ReplaceAll(name, "_", " "))
		}
	}
	if near(int64(t.Paths), int64(t.PathLimit)) {
		f.add(Warning, KindDescriptors, "paths run short: %d of %d are in use (max-paths); further connections stay on their links", t.Paths, t.PathLimit)
	}
}

func near(used, limit int64) bool { return limit > 0 && used*100 >= limit*nearFrom }

// severityOf is Broken when less than three per cent of a bound is left.
func severityOf(used, limit int64) string {
	if used*100 >= limit*97 {
		return Broken
	}
	return Warning
}

// nodes adds the nodes that are suspect or were lost lately.
func (f *findings) nodes() {
	for _, n := range f.s.Nodes {
		if n.ID == f.s.Self.ID {
			continue
		}
		switch n.State {
		case "suspect":
			f.about(n.ID, Broken, KindNode, "node %d (%s) has been suspect for %s%s", n.ID, n.Name, span(f.s.Time.Sub(cmp.Or(n.Suspect, f.s.Time))), after(": ", f.silence(n.ID)))
		case "removed":
			if ago := f.s.Time.Sub(n.Since); ago < lostLately {
				f.removed(n, ago)
			}
		}
	}
}

// removed adds a node that was lost, or that an operator has removed and that is not back.
func (f *findings) removed(n Node, ago time.Duration) {
	reason := f.reason(n)
	does, planned := onPurpose(reason)
	switch {
	case !planned:
		f.about(n.ID, Broken, KindNode, "node %d (%s) was lost %s ago%s", n.ID, n.Name, span(ago), after(": ", reason))
	case does != "" && !slices.ContainsFunc(f.s.Nodes, func(m Node) bool { return m.Name == n.Name && m.State != "removed" }):
		f.about(n.ID, Note, KindNode, "node %d (%s) was %s %s ago", n.ID, n.Name, does, span(ago))
	}
}

// onPurpose reports whether an incarnation that ended for a reason has left in order, or what an
// operator did to it.
func onPurpose(reason string) (does string, planned bool) {
	word, _, _ := strings.Cut(reason, ":")
	does, planned = map[string]string{"left": "", "expelled": "removed by an operator", "banned": "banned by an operator"}[word]
	return does, planned
}

// returned adds the nodes that were lost lately and have another incarnation now.
func (f *findings) returned() {
	for _, e := range f.s.Events {
		incarnation, err := addr.ParseIncarnation(e.Node)
		ago := f.s.Time.Sub(e.Time)
		if _, planned := onPurpose(e.Text); err != nil || e.Event != "removed" || ago >= lately || planned {
			continue
		}
		if slices.ContainsFunc(f.s.Nodes, func(n Node) bool {
			return n.ID == incarnation.Node && n.Generation > incarnation.Generation && n.State != "removed"
		}) {
			f.about(incarnation.Node, Note, KindNode, "node %d (%s) was lost %s ago%s, and has come back", incarnation.Node, e.Name, span(ago), after(", ", e.Text))
		}
	}
}

// silence returns as text how long the link to a node has been silent, empty if it is not.
func (f *findings) silence(id addr.NodeID) string {
	for _, l := range f.s.Links {
		if d := silent(l); l.Node == id && d >= silentFrom {
			return "link silent for " + span(d)
		}
	}
	return ""
}

func silent(l engine.LinkInfo) time.Duration { return time.Duration(l.SilentMS) * time.Millisecond }

// reason returns why an incarnation has ended, according to the events.
func (f *findings) reason(n Node) string {
	incarnation := addr.Incarnation{Node: n.ID, Generation: n.Generation}.String()
	for _, e := range slices.Backward(f.s.Events) {
		if e.Event == "removed" && e.Node == incarnation {
			return e.Text
		}
	}
	return ""
}

// links adds the links that are silent, lose packets, or are not over the provider that the
// node prefers.
func (f *findings) links() {
	for _, l := range f.s.Links {
		if !f.suspect(l.Node) {
			f.silent(l)
		}
		f.quality(l)
		if why, blocked := f.fallback(l); blocked {
			f.tcpOnly(l, why)
		}
	}
}

// silent adds a link that is silent.
func (f *findings) silent(l engine.LinkInfo) {
	if d := silent(l); d >= silentFrom {
		f.about(l.Node, Broken, KindLink, "node %d (%s): link silent for %s", l.Node, l.Name, span(d))
	}
}

// quality adds a link that loses packets, or is slow.
func (f *findings) quality(l engine.LinkInfo) {
	if l.LossPercent >= lossFrom {
		f.about(l.Node, Warning, KindLoss, "the path to node %d (%s) loses %.1f %% of the packets", l.Node, l.Name, l.LossPercent)
	}
	if slow(l) {
		f.about(l.Node, Warning, KindSlow, "the round trip to node %d (%s) takes %s, of %s when it is short", l.Node, l.Name, trip(l.RoundTripUS), trip(l.ShortestUS))
	}
}

func (f *findings) tcpOnly(l engine.LinkInfo, why string) {
	f.about(l.Node, Warning, KindFallback, "UDP does not pass to node %d (%s): link over TCP (%s)", l.Node, l.Name, why)
}

// RowOf returns node's report on its links, reduced to nodes in s and with this node's
// names for them. It is shown, and no decision depends on it.
func RowOf(s Snapshot, node addr.NodeID, said []engine.LinkInfo) Row {
	row := Row{Node: node, Links: []RowLink{}}
	for _, l := range said {
		known := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.ID == l.Node && n.Generation == l.Generation && n.ID != node })
		if known < 0 {
			continue
		}
		l.Name = s.Nodes[known].Name
		f := &findings{s: s}
		f.silent(l)
		f.quality(l)
		if len(l.Considered) > 0 {
			f.tcpOnly(l, "it has tried")
		}
		cell := RowLink{Node: l.Node, Generation: l.Generation, Provider: l.Provider, RoundTripUS: l.RoundTripUS, DeviationUS: l.DeviationUS, Reasons: []string{}}
		for _, x := range f.all {
			if cell.Severity == "" { // the worst comes first
				cell.Severity = x.Severity
			}
			cell.Reasons = append(cell.Reasons, fmt.Sprintf("node %d reports: %s", node, x.Text))
		}
		row.Links = append(row.Links, cell)
	}
	return row
}

// slow reports whether round trips take much longer than the shortest one did.
func slow(l engine.LinkInfo) bool {
	return l.RoundTripUS > slowTimes*l.ShortestUS && l.RoundTripUS-l.ShortestUS > slowFrom.Microseconds()
}

// trip returns a round trip as people read it.
func trip(us int64) string { return fmt.Sprintf("%.1f ms", float64(us)/1000) }

func (f *findings) suspect(id addr.NodeID) bool {
	return slices.ContainsFunc(f.s.Nodes, func(n Node) bool { return n.ID == id && n.State == "suspect" })
}

// fallback reports whether a link is over TCP because QUIC did not work, and why.
func (f *findings) fallback(l engine.LinkInfo) (why string, blocked bool) {
	if l.Provider != "tcp" || !slices.Contains(f.s.Self.Providers, "quic") || f.s.Self.Providers[0] != "quic" {
		return "", false
	}
	if !l.Dialed {
		return "that node has dialed, and knows why", true
	}
	for _, c := range l.Considered {
		if c.Provider == "quic" && !c.Chosen && c.Tried {
			return strings.ReplaceAll(c.Reason, context.DeadlineExceeded.Error(), "no answer in time"), true
		}
	}
	return "", false
}

// receivers adds the connections that wait because one end does not read.
func (f *findings) receivers() {
	for _, c := range f.s.Conns {
		if d := time.Duration(c.WaitingMS) * time.Millisecond; d >= WaitFrom {
			f.about(nodeOf(c.Remote), Warning, KindReceiver, "connection %s to %s has waited for %s: the application at %s does not read", c.Local, c.Remote, span(d), c.Remote)
		}
	}
}

// nodeOf returns the node of an address, addr.NoNode if it is none.
func nodeOf(text string) addr.NodeID {
	a, err := addr.Parse(text)
	if err != nil {
		return addr.NoNode
	}
	return a.Node
}

// ports adds the listeners with a full backlog.
func (f *findings) ports() {
	for _, p := range f.s.Ports {
		if p.Backlog > 0 && p.Waiting >= p.Backlog {
			f.add(Broken, KindBacklog, "%s: backlog full, %d of %d wait: process %d does not accept; %d connects were refused so far", f.portName(p), p.Waiting, p.Backlog, p.PID, p.Overflows)
		}
	}
}

// portName is the service at a port, else the port.
func (f *findings) portName(p engine.PortInfo) string {
	at := fmt.Sprintf("%d:%d", f.s.Self.ID, p.Port)
	for _, s := range f.s.Services {
		if s.Address == at {
			return s.Name
		}
	}
	return fmt.Sprintf("port %d", p.Port)
}

// gateways adds the gateways that carry nothing.
func (f *findings) gateways() {
	for _, g := range f.s.Gateways {
		f.add(Broken, KindGateway, "gateway %s is %s%s", g.Line, g.State, after(": ", g.Detail))
	}
}

// host adds findings that only the host can make.
func (f *findings) host() {
	for _, b := range f.s.Host.Banned {
		f.add(Note, KindBanned, "%s is banned since %s%s", bannedNode(b.Name), b.Since.UTC().Format("2006-01-02 15:04"), after(": ", b.Reason))
	}
}

// bannedNode names a banned node. A name of digits, which an older release let a node take, is
// marked as one: it is not the node's ID.
func bannedNode(name string) string {
	if _, digits := addr.ParseNode(name); digits {
		return fmt.Sprintf("the node named %q", name)
	}
	return "node " + name
}

// events adds recent refusals.
func (f *findings) events() {
	for _, e := range slices.Backward(f.s.Events) {
		if f.s.Time.Sub(e.Time) > lately {
			continue
		}
		switch e.Event {
		case JoinRefused:
			f.add(Warning, KindJoin, "node %s was not let in%s, %s ago%s", cmp.Or(e.Name, "without a name"), times(e.Count), span(f.s.Time.Sub(e.Time)), after(": ", e.Text))
		case ConnectRefused, BindRefused:
			f.add(Warning, KindRefused, "a %s by %s was refused by an access rule%s, %s ago: %s", strings.TrimSuffix(e.Event, "-refused"), cmp.Or(e.Name, "an application"), times(e.Count), span(f.s.Time.Sub(e.Time)), e.Text)
		}
	}
}

func times(n uint64) string {
	if n <= 1 {
		return ""
	}
	return fmt.Sprintf(" %d times", n)
}

// span returns d as readable text.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// size returns a number of bytes as people read it.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
