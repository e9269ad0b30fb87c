package observe

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
)

var now = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// healthy is a node with one peer, and nothing wrong.
func healthy() Snapshot {
	return Snapshot{
		Time: now,
		Self: Self{ID: 1, Generation: 3, Name: "web-1", State: "joined", Providers: []string{"quic", "tcp"}, Started: now.Add(-time.Hour),
			Certificate: now.Add(20 * time.Hour), Renewal: now.Add(12 * time.Hour)},
		Nodes:  []Node{{ID: 1, Generation: 3, Name: "web-1", State: "alive"}, {ID: 2, Generation: 4, Name: "web-2", State: "alive", Since: now.Add(-time.Hour)}},
		Links:  []engine.LinkInfo{{Node: 2, Generation: 4, Name: "web-2", Provider: "quic", Dialed: true, SilentMS: 200, Packets: 1000, RoundTripUS: 300, ShortestUS: 200}},
		Ports:  []engine.PortInfo{{Port: 2050, Backlog: 128, Waiting: 127, PID: 77}, {Port: 2051}},
		Conns:  []engine.ConnInfo{{Local: "1:2050", Remote: "2:33000", WaitingMS: 999}},
		Totals: Totals{Descriptors: 84, DescriptorLimit: 100, ConnMemory: 84 << 20, ConnMemoryLimit: 100 << 20, PathLimit: 10},
	}
}

func TestNothingIsWrongWithAHealthyNode(t *testing.T) {
	if all := Findings(healthy()); len(all) != 0 || all == nil {
		t.Errorf("found %+v, want an empty list", all)
	}
}

func TestFindings(t *testing.T) {
	link := func(change func(*engine.LinkInfo)) func(*Snapshot) {
		return func(s *Snapshot) { change(&s.Links[0]) }
	}
	event := func(e Event) func(*Snapshot) {
		return func(s *Snapshot) { s.Events = append(s.Events, e) }
	}
	lost := func(text string, since time.Duration) func(*Snapshot) {
		return func(s *Snapshot) {
			s.Nodes[1].State, s.Nodes[1].Since = "removed", now.Add(-since)
			s.Events = []Event{{Time: now.Add(-since), Event: "removed", Node: "2.4", Text: text}}
			s.Links = nil
		}
	}
	for name, x := range map[string]struct {
		change func(*Snapshot)
		want   string // severity, kind, node and text; "" is none
	}{
		"suspect": {func(s *Snapshot) {
			s.Nodes[1].State, s.Nodes[1].Suspect, s.Links[0].SilentMS = "suspect", now.Add(-1200*time.Millisecond), 2500
		}, "broken node 2: node 2 (web-2) has been suspect for 1.2 s: link silent for 2.5 s"},
		"lost":                   {lost("crashed", 90*time.Second), "broken node 2: node 2 (web-2) was lost 1m30s ago: crashed"},
		"lost long ago":          {lost("crashed", 11*time.Minute), ""},
		"left":                   {lost("left", time.Second), ""},
		"removed by an operator": {lost("expelled", 90*time.Second), "note node 2: node 2 (web-2) was removed by an operator 1m30s ago"},
		"banned by an operator":  {lost("banned: stolen", time.Second), "note node 2: node 2 (web-2) was banned by an operator 1.0 s ago"},
		"removed, and back with another ID": {func(s *Snapshot) {
			lost("expelled", time.Minute)(s)
			s.Nodes = append(s.Nodes, Node{ID: 6, Generation: 1, Name: "web-2", State: "alive", Since: now})
		}, ""},
		"removed, and back with its ID": {event(Event{Time: now.Add(-5 * time.Second), Event: "removed", Node: "2.3", Name: "web-2", Text: "expelled"}), ""},
		"came back": {event(Event{Time: now.Add(-5 * time.Second), Event: "removed", Node: "2.3", Name: "web-2", Text: "silent"}),
			"note node 2: node 2 (web-2) was lost 5.0 s ago, silent, and has come back"},
		"silent": {link(func(l *engine.LinkInfo) { l.SilentMS = 1500 }), "broken link 2: node 2 (web-2): link silent for 1.5 s"},
		"loss":   {link(func(l *engine.LinkInfo) { l.LossPercent = 2.25 }), "warning loss 2: the path to node 2 (web-2) loses 2.2 % of the packets"},
		"slow":   {link(func(l *engine.LinkInfo) { l.RoundTripUS = 45_000 }), "warning slow 2: the round trip to node 2 (web-2) takes 45.0 ms, of 0.2 ms when it is short"},
		"udp": {link(func(l *engine.LinkInfo) {
			l.Provider, l.Considered = "tcp", []engine.Considered{{Provider: "quic", Reason: "no answer in 500ms", Tried: true}, {Provider: "tcp", Chosen: true}}
		}), "warning fallback 2: UDP does not pass to node 2 (web-2): link over TCP (no answer in 500ms)"},
		"udp, they dialed": {link(func(l *engine.LinkInfo) { l.Provider, l.Dialed = "tcp", false }),
			"warning fallback 2: UDP does not pass to node 2 (web-2): link over TCP (that node has dialed, and knows why)"},
		"tcp is not offered": {link(func(l *engine.LinkInfo) {
			l.Provider, l.Considered = "tcp", []engine.Considered{{Provider: "quic", Reason: "the peer does not offer it"}, {Provider: "tcp", Chosen: true}}
		}), ""},
		"tcp is preferred": {func(s *Snapshot) { s.Self.Providers, s.Links[0].Provider = []string{"tcp", "quic"}, "tcp" }, ""},
		"receiver": {func(s *Snapshot) { s.Conns[0].WaitingMS = 3100 },
			"warning receiver 2: connection 1:2050 to 2:33000 has waited for 3.1 s: the application at 2:33000 does not read"},
		"backlog": {func(s *Snapshot) { s.Ports[0].Waiting, s.Ports[0].Overflows = 128, 9 },
			"broken backlog -: port 2050: backlog full, 128 of 128 wait: process 77 does not accept; 9 connects were refused so far"},
		"backlog of a service": {func(s *Snapshot) {
			s.Ports[0].Waiting, s.Services = 128, []Service{{Name: "db", Node: "web-1", Address: "1:2050"}}
		}, "broken backlog -: db: backlog full, 128 of 128 wait: process 77 does not accept; 0 connects were refused so far"},
		"gateway": {func(s *Snapshot) {
			s.Gateways = []Gateway{{Line: "forward 127.0.0.1:15432=db", State: "waiting", Detail: "address already in use"}}
		}, "broken gateway -: gateway forward 127.0.0.1:15432=db is waiting: address already in use"},
		"rule": {event(Event{Time: now.Add(-time.Minute), Event: ConnectRefused, Name: "web-3", Text: `port 2060, rule "2060 from web-1"`, Count: 4}),
			`warning refused -: a connect by web-3 was refused by an access rule 4 times, 1m0s ago: port 2060, rule "2060 from web-1"`},
		"rule long ago": {event(Event{Time: now.Add(-6 * time.Minute), Event: ConnectRefused, Count: 1}), ""},
		"bind": {event(Event{Time: now, Event: BindRefused, Text: "port 2060", Count: 1}),
			"warning refused -: a bind by an application was refused by an access rule, 0.0 s ago: port 2060"},
		"token": {event(Event{Time: now, Event: JoinRefused, Name: "late", Text: "token expired", Count: 1}),
			"warning join -: node late was not let in, 0.0 s ago: token expired"},
		"banned": {func(s *Snapshot) { s.Host.Banned = []Banned{{Name: "web-3", Reason: "stolen", Since: now}} },
			"note banned -: node web-3 is banned since 2026-01-02 12:00: stolen"},
		"banned by digits": {func(s *Snapshot) { s.Host.Banned = []Banned{{Name: "3", Since: now}} },
			"note banned -: the node named \"3\" is banned since 2026-01-02 12:00"},
		"descriptors":      {func(s *Snapshot) { s.Totals.Descriptors = 85 }, "warning descriptors -: descriptors run short: 85 of 100 are in use (RLIMIT_NOFILE); new connections and applications are refused without"},
		"last descriptors": {func(s *Snapshot) { s.Totals.Descriptors = 97 }, "broken descriptors -: descriptors run short: 97 of 100 are in use (RLIMIT_NOFILE); new connections and applications are refused without"},
		"paths":            {func(s *Snapshot) { s.Totals.Paths = 9 }, "warning descriptors -: paths run short: 9 of 10 are in use (max-paths); further connections stay on their links"},
		"memory":           {func(s *Snapshot) { s.Totals.ConnMemory = 90 << 20 }, "warning memory -: memory for connections runs short: 90.0 MiB of 100.0 MiB are promised (conn-memory)"},
		"quota": {func(s *Snapshot) { s.Quotas = map[string]float64{"window_memory": 0.9, "windows": 0.84} },
			"warning quota -: an application or a user has 90 % of its quota of window memory: what goes beyond is refused"},
		"renewal is due": {func(s *Snapshot) { s.Self.Certificate, s.Self.Renewal = now.Add(7*time.Hour), now.Add(-time.Hour) }, ""},
		"renewal is late": {func(s *Snapshot) { s.Self.Certificate, s.Self.Renewal = now.Add(3*time.Hour), now.Add(-5*time.Hour) },
			"warning certificate -: this node's certificate expires in 3h0m, and its renewal is 5h0m late"},
		"expired": {func(s *Snapshot) { s.Self.Certificate = now.Add(-time.Minute) }, "broken certificate -: this node's certificate expired 1m0s ago: no other node accepts it"},
		"clock":   {func(s *Snapshot) { s.Self.ClockOff = -2 * time.Hour }, "warning clock -: the clock is off: it jumped 2h0m back, and certificates and tokens go by the time before until it has stayed there for 30 s"},
		"jumped": {func(s *Snapshot) { s.Self.JumpedBy, s.Self.JumpedAt = 72*time.Hour, now.Add(-time.Minute) },
			"warning clock -: the clock jumped 3 days ahead 1m0s ago and has stayed there: certificates and tokens go by it"},
		"joining": {func(s *Snapshot) {
			s.Self.State, s.Self.Detail, s.Self.HostLost = "joining", "the host has banned this node", true
		}, "broken state -: this node has not joined: the host has banned this node"},
		"local":     {func(s *Snapshot) { s.Self.State = "local" }, "warning state -: this node is local"},
		"host lost": {func(s *Snapshot) { s.Self.HostLost, s.Self.HostDetail = true, "silent for 3 s" }, "warning host -: the host is lost: no node can join; silent for 3 s"},
		"provider":  {func(s *Snapshot) { s.Self.Unavailable = []string{"quic: no UDP"} }, "warning provider -: provider unavailable: quic: no UDP"},
		"fault":     {func(s *Snapshot) { s.Self.Warnings = []string{"link fault 1"} }, "note fault -: broken on purpose: link fault 1"},
		"panic":     {func(s *Snapshot) { s.Self.Panics = 1 }, "warning panic -: 1 internal errors were caught: each is a bug, whose stack the log has"},
	} {
		s := healthy()
		x.change(&s)
		var got []string
		for _, f := range Findings(s) {
			node := "-"
			if f.Node != addr.NoNode {
				node = fmt.Sprint(f.Node)
			}
			got = append(got, fmt.Sprintf("%s %s %s: %s", f.Severity, f.Kind, node, f.Text))
		}
		if strings.Join(got, "\n") != x.want {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, x.want)
		}
	}
}

// The findings that others cause are bounded, and the worst comes first.
func TestFindingsAreBoundedAndSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := healthy()
		s.Self.Warnings = make([]string, rapid.IntRange(0, 40).Draw(t, "faults"))
		s.Ports = nil
		for range rapid.IntRange(0, 40).Draw(t, "full ports") {
			s.Ports = append(s.Ports, engine.PortInfo{Backlog: 1, Waiting: 1})
		}
		for range rapid.IntRange(0, 300).Draw(t, "refusals") {
			s.Events = append(s.Events, Event{Time: now, Event: rapid.SampledFrom([]string{JoinRefused, ConnectRefused, "added"}).Draw(t, "event")})
		}
		all := Findings(s)
		if most := len(Kinds()) * (mostOfKind + 1); len(all) > most {
			t.Fatalf("%d findings, want at most %d", len(all), most)
		}
		rank := map[string]int{Broken: 0, Warning: 1, Note: 2}
		if !slices.IsSortedFunc(all, func(a, b Finding) int { return rank[a.Severity] - rank[b.Severity] }) {
			t.Fatalf("not sorted: %v", all)
		}
	})
}

// Another node's report on its links is judged and reported as this node's own, about nodes that
// this node knows, and no decision depends on it.
func TestRowsOfOthers(t *testing.T) {
	s := healthy()
	s.Nodes = append(s.Nodes, Node{ID: 3, Generation: 5, Name: "web-3", State: "alive"})
	said := []engine.LinkInfo{
		{Node: 1, Generation: 3, Name: "<b>liar</b>", RoundTripUS: 300, DeviationUS: 20, Provider: "quic"},
		{Node: 2, Generation: 4}, {Node: 9, Generation: 1, LossPercent: 100}, {Node: 3, Generation: 4},
		{Node: 3, Generation: 5, Provider: "tcp", LossPercent: 2.25, SilentMS: 1500, Considered: []engine.Considered{{Tried: true}}},
	}
	row := RowOf(s, 2, said)
	if len(row.Links) != 2 || row.Links[0].Severity != "" || row.Links[0].RoundTripUS != 300 {
		t.Fatalf("%+v", row)
	}
	want := []string{"node 2 reports: node 3 (web-3): link silent for 1.5 s", "node 2 reports: the path to node 3 (web-3) loses 2.2 % of the packets",
		"node 2 reports: UDP does not pass to node 3 (web-3): link over TCP (it has tried)"}
	if got := row.Links[1]; got.Severity != Broken || !slices.Equal(got.Reasons, want) {
		t.Errorf("got %+v, want %q", got, want)
	}
	s.Rows = []Row{row}
	if all := Findings(s); len(all) != 0 {
		t.Errorf("findings of what another node says: %v", all)
	}
}
