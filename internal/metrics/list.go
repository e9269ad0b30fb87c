package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/observe"
)

// all are the metrics of a node, but for histograms. A label has the node ID of a peer at
// most, or a name of a fixed list.
var all = slices.Concat(nodeMetrics, linkMetrics, connMetrics, rmaMetrics, resourceMetrics)

var nodeStates = []string{"alive", "suspect", "leaving", "removed"}

var nodeMetrics = []metric{
	gauge("info", "The node: always 1.", func(s *observe.Snapshot, send func(float64, ...string)) {
		send(1, s.Self.Version, s.Self.Name, s.Self.Role)
	}, "version", "node", "role"),
	gauge("node_id", "The node's ID; 65535: none yet.", one(func(s *observe.Snapshot) float64 { return float64(s.Self.ID) })),
	gauge("generation", "The number of the node's incarnation.", one(func(s *observe.Snapshot) float64 { return float64(s.Self.Generation) })),
	gauge("joined", "Whether the node is a member of its cluster.", one(func(s *observe.Snapshot) float64 { return is(s.Self.State == "joined") })),
	gauge("host_reachable", "Whether the node reaches the cluster's host.", one(func(s *observe.Snapshot) float64 { return is(!s.Self.HostLost) })),
	gauge("nodes", "Nodes that this node knows, itself included, by state.", collectNodes, "state"),
	counter("removals_total", "Incarnations of other nodes that have ended, by reason.",
		byName(func(s *observe.Snapshot) map[string]uint64 { return s.Removals }), "reason"),
	gauge("findings", "What is wrong, by severity and kind, as the node's page says it in words.", collectFindings, "severity", "kind"),
	counter("join_refusals_total", "Nodes that this host did not let in.", one(func(s *observe.Snapshot) float64 { return float64(s.Refusals[observe.JoinRefused]) })),
	counter("bind_refusals_total", "Binds of this machine's applications that an access rule refused.",
		one(func(s *observe.Snapshot) float64 { return float64(s.Refusals[observe.BindRefused]) })),
	counter("strangers_total", "Connections that ended before they had shown a member of the cluster.", one(func(s *observe.Snapshot) float64 { return float64(s.Self.Strangers) })),
	counter("panics_total", "Internal errors that ended a link or a session; each is a bug.", one(func(s *observe.Snapshot) float64 { return float64(s.Self.Panics) })),
	gauge("certificate_expiry_timestamp_seconds", "When the node's certificate ends; 0: it has none.", one(func(s *observe.Snapshot) float64 { return unix(s.Self.Certificate) })),
	gauge("clock_offset_seconds", "How far the wall clock is from the time that certificates and tokens go by.", one(func(s *observe.Snapshot) float64 { return s.Self.ClockOff.Seconds() })),
	gauge("tokens", "Join tokens of this host, by whether a node can join with them.", func(s *observe.Snapshot, send func(float64, ...string)) {
		usable := 0
		for _, t := range s.Host.Tokens {
			if t.Usable {
				usable++
			}
		}
		send(float64(usable), "true")
		send(float64(len(s.Host.Tokens)-usable), "false")
	}, "usable"),
	gauge("token_expiry_timestamp_seconds", "When the first of the usable join tokens of this host ends; 0: none does.", one(func(s *observe.Snapshot) float64 {
		first := time.Time{}
		for _, t := range s.Host.Tokens {
			if t.Usable && !t.Expires.IsZero() && (first.IsZero() || t.Expires.Before(first)) {
				first = t.Expires
			}
		}
		return unix(first)
	})),
	gauge("banned_nodes", "Identities that this host keeps out.", one(func(s *observe.Snapshot) float64 { return float64(len(s.Host.Banned)) })),
	gauge("services", "Services that this node knows.", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.Services) })),
	gauge("faults", "Faults that an operator has put in place at this node.", one(func(s *observe.Snapshot) float64 { return float64(len(s.Self.Warnings)) })),
}

func collectNodes(s *observe.Snapshot, send func(float64, ...string)) {
	count := map[string]int{}
	for _, n := range s.Nodes {
		count[n.State]++
	}
	for _, state := range nodeStates {
		send(float64(count[state]), state)
	}
}

func collectFindings(s *observe.Snapshot, send func(float64, ...string)) {
	type at struct{ severity, kind string }
	count := map[at]int{}
	for _, f := range observe.Findings(*s) {
		count[at{f.Severity, f.Kind}]++
	}
	for _, severity := range []string{observe.Broken, observe.Warning, observe.Note} {
		for _, kind := range observe.Kinds() {
			send(float64(count[at{severity, kind}]), severity, kind)
		}
	}
}

// ofLinks collects a value for each peer: a pair that has two links for a moment counts as
// one, by the newest.
func ofLinks(value func(engine.LinkInfo) float64) func(*observe.Snapshot, func(float64, ...string)) {
	return func(s *observe.Snapshot, send func(float64, ...string)) {
		for i, l := range s.Links {
			if i+1 < len(s.Links) && s.Links[i+1].Node == l.Node {
				continue
			}
			send(value(l), peer(l))
		}
	}
}

var linkMetrics = []metric{
	gauge("links", "Links to other nodes, by provider.", func(s *observe.Snapshot, send func(float64, ...string)) {
		count := map[string]int{"quic": 0, "tcp": 0}
		for _, l := range s.Links {
			count[l.Provider]++
		}
		for provider, n := range count {
			send(float64(n), provider)
		}
	}, "provider"),
	counter("links_begun_total", "Links that were established.", one(func(s *observe.Snapshot) float64 { return float64(s.Counters.LinksBegun) })),
	counter("links_ended_total", "Links that have ended.", one(func(s *observe.Snapshot) float64 { return float64(s.Counters.LinksEnded) })),
	gauge("link_silence_seconds", "Time since something came over the link to a peer.",
		ofLinks(func(l engine.LinkInfo) float64 { return float64(l.SilentMS) / 1000 }), "peer"),
	gauge("link_round_trip_seconds", "Smoothed round trip of the heartbeats of the link to a peer.",
		ofLinks(func(l engine.LinkInfo) float64 { return micros(l.RoundTripUS) }), "peer"),
	gauge("link_round_trip_deviation_seconds", "How far round trips to a peer are from the smoothed one on average.",
		ofLinks(func(l engine.LinkInfo) float64 { return micros(l.DeviationUS) }), "peer"),
	gauge("link_loss_ratio", "Part of the packets to a peer that were lost in the last ten seconds or so; QUIC only.",
		ofLinks(func(l engine.LinkInfo) float64 { return l.LossPercent / 100 }), "peer"),
	counter("link_sent_bytes_total", "Bytes of packets sent over the link to a peer, since it began.",
		ofLinks(func(l engine.LinkInfo) float64 { return float64(l.SentBytes) }), "peer"),
	counter("link_received_bytes_total", "Bytes of packets received over the link to a peer, since it began.",
		ofLinks(func(l engine.LinkInfo) float64 { return float64(l.ReceivedBytes) }), "peer"),
	gauge("link_connections", "Connections over the link to a peer.",
		ofLinks(func(l engine.LinkInfo) float64 { return float64(l.Conns) }), "peer"),
}

func micros(us int64) float64 { return (time.Duration(us) * time.Microsecond).Seconds() }

var connMetrics = []metric{
	gauge("connections", "Ends of connections at this node.", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.Conns) })),
	gauge("connections_waiting", "Ends of connections that have waited for more than a second because the peer does not read.",
		one(func(s *observe.Snapshot) float64 { return float64(s.Totals.Waiting) })),
	gauge("unread_bytes", "Bytes that have arrived at connections of this node and that their applications have not read.",
		one(func(s *observe.Snapshot) float64 { return float64(s.Totals.UnreadBytes) })),
	gauge("unsent_bytes", "Bytes that connections of this node have accepted and that wait for room at the peer.",
		one(func(s *observe.Snapshot) float64 { return float64(s.Totals.UnsentBytes) })),
	gauge("paths", "Sockets between two applications, past their nodes.", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.Paths) })),
	gauge("paths_limit", "How many paths there may be (max-paths).", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.PathLimit) })),
	gauge("listeners", "Ports that listen.", one(func(s *observe.Snapshot) float64 {
		n := 0
		for _, p := range s.Ports {
			n += int(is(p.Backlog > 0))
		}
		return float64(n)
	})),
	gauge("backlog_fill_ratio", "The fullest queue of connect requests at a listener of this node: 1 is full.", one(func(s *observe.Snapshot) float64 {
		most := 0.0
		for _, p := range s.Ports {
			most = max(most, float64(p.Waiting)/float64(max(p.Backlog, 1)))
		}
		return most
	})),
	gauge("backlog_waiting", "Connect requests that wait to be accepted.", one(func(s *observe.Snapshot) float64 {
		n := 0
		for _, p := range s.Ports {
			n += p.Waiting
		}
		return float64(n)
	})),
	counter("connects_incoming_total", "Connects of peers to ports of this node, by result.",
		byName(func(s *observe.Snapshot) map[string]uint64 { return s.Counters.Incoming }), "result"),
	counter("connects_outgoing_total", "Connects of this node's applications, by result.",
		byName(func(s *observe.Snapshot) map[string]uint64 { return s.Counters.Outgoing }), "result"),
	counter("resets_total", "Ends of connections that were lost, by cause.",
		byName(func(s *observe.Snapshot) map[string]uint64 { return s.Counters.Resets }), "cause"),
	counter("path_sent_bytes_total", "Bytes that applications of this node have sent past it, as the kernel counts them, TLS's own included.", byPath(func(c engine.Carried) uint64 { return c.Sent }), "kind"),
	counter("path_received_bytes_total", "Bytes that applications of this node have received past it, as the kernel counts them, TLS's own included.", byPath(func(c engine.Carried) uint64 { return c.Received }), "kind"),
}

// byPath collects a value of the paths of messages and of those of RMA.
func byPath(value func(engine.Carried) uint64) func(*observe.Snapshot, func(float64, ...string)) {
	return func(s *observe.Snapshot, send func(float64, ...string)) {
		send(float64(value(s.Counters.MessagePaths)), "messages")
		send(float64(value(s.Counters.RMAPaths)), "rma")
	}
}

// ofRMA collects a value for each kind of operation and way.
func ofRMA(value func(engine.RMACount) uint64) func(*observe.Snapshot, func(float64, ...string)) {
	return func(s *observe.Snapshot, send func(float64, ...string)) {
		for _, c := range s.Counters.RMA {
			send(float64(value(c)), c.Kind, c.Path)
		}
	}
}

var rmaMetrics = []metric{
	counter("rma_operations_total", "RMA operations on windows of this node that came over links and RMA paths.", ofRMA(func(c engine.RMACount) uint64 { return c.Operations }), "kind", "way"),
	counter("rma_bytes_total", "Bytes that those reads and writes were for.", ofRMA(func(c engine.RMACount) uint64 { return c.Bytes }), "kind", "way"),
	counter("fences_total", "Fences that applications of this node have asked it for.", byName(func(s *observe.Snapshot) map[string]uint64 { return s.Counters.Fences }), "kind"),
	gauge("windows", "Windows that applications of this node have registered.", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.Windows) })),
	gauge("window_bytes", "Memory of those windows.", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.WindowBytes) })),
}

var resourceMetrics = []metric{
	gauge("conn_memory_bytes", "Memory that connections were promised.", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.ConnMemory) })),
	gauge("conn_memory_limit_bytes", "How much memory connections may be promised (conn-memory).", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.ConnMemoryLimit) })),
	gauge("quota_fill_ratio", "How much of a bound is in use, of one that each application or user has by the one nearest to it: 1 is all.", func(s *observe.Snapshot, send func(float64, ...string)) {
		t := s.Totals
		send(ratio(t.ConnMemory, t.ConnMemoryLimit), "conn_memory")
		send(ratio(int64(t.Paths), int64(t.PathLimit)), "paths")
		send(ratio(t.Descriptors, t.DescriptorLimit), "descriptors")
		for name, fill := range s.Quotas {
			send(fill, name)
		}
	}, "quota"),
	gauge("queue_fill_ratio", "The fullest queue of each kind: 1 is full, and then its reader is cut off, its writers wait, the node ends, or lines are lost.", func(s *observe.Snapshot, send func(float64, ...string)) {
		for name, fill := range s.Queues {
			send(fill, name)
		}
	}, "queue"),
	gauge("membership_queue_waiting", "What waits for membership's loop (inbox), and events that the node has not taken over.", ofMembership(func(q observe.Queue) int { return q.Waiting }), "queue"),
	gauge("membership_queue_limit", "How much may wait there.", ofMembership(func(q observe.Queue) int { return q.Limit }), "queue"),
	gauge("disk_writes_waiting", "Writes of leases and members that the disk has not taken.", one(func(s *observe.Snapshot) float64 { return float64(s.Totals.DiskWrites) })),
}

// ofMembership collects a value for each queue of membership.
func ofMembership(value func(observe.Queue) int) func(*observe.Snapshot, func(float64, ...string)) {
	return func(s *observe.Snapshot, send func(float64, ...string)) {
		for name, q := range s.Membership {
			send(float64(value(q)), name)
		}
	}
}

func ratio(used, limit int64) float64 { return float64(used) / float64(max(limit, 1)) }

var histograms = []histogram{
	{prometheus.NewDesc("fabricd_round_trip_seconds", "Round trips of heartbeats over all links.", nil, nil),
		func(s *observe.Snapshot) engine.Histogram { return s.Counters.RoundTrips }},
	{prometheus.NewDesc("fabricd_loss_to_error_seconds", "Time from the last sign of life of a lost peer until all its connections had their error.", nil, nil),
		func(s *observe.Snapshot) engine.Histogram { return s.Counters.LossToError }},
}
