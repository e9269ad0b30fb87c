package metrics

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/observe"
)

// sample is a snapshot with something of each kind.
func sample() observe.Snapshot {
	bounds := []time.Duration{time.Millisecond, time.Second}
	return observe.Snapshot{
		Self:  observe.Self{Name: "web-1", Version: "1.0", Role: "host", State: "joined", Certificate: time.Unix(1000, 5e8)},
		Nodes: []observe.Node{{ID: 0, State: "alive"}, {ID: 1, State: "alive"}, {ID: 2, State: "suspect"}},
		Links: []engine.LinkInfo{{Node: 1, Provider: "tcp", SentBytes: 1}, {Node: 1, Provider: "quic", SentBytes: 7, RoundTripUS: 1500}, {Node: 2, Provider: "quic"}},
		Ports: []engine.PortInfo{{Port: 2050, Waiting: 3, Backlog: 4}, {Port: 2051}},
		Conns: []engine.ConnInfo{{WaitingMS: 1500}, {}},
		Host: observe.Host{Tokens: []observe.Token{{Usable: true, Expires: time.Unix(3000, 0)}, {Usable: true}, {Usable: true, Expires: time.Unix(2000, 0)},
			{Expires: time.Unix(1000, 0)}, {}}},
		Queues: map[string]float64{"audit": 0.25}, Quotas: map[string]float64{"windows": 0.5},
		Membership: map[string]observe.Queue{"inbox": {Waiting: 7, Limit: 1024}},
		Counters: engine.Counters{
			Outgoing: map[string]uint64{engine.ConnectOK: 1}, Resets: map[string]uint64{engine.ResetOther: 1},
			Incoming:   map[string]uint64{engine.ConnectQueued: 5, engine.ConnectRule: 2},
			RMA:        []engine.RMACount{{Kind: "write", Path: "path", Operations: 3, Bytes: 4096}},
			Fences:     map[string]uint64{"mark": 6},
			RMAPaths:   engine.Carried{Sent: 11, Received: 12},
			RoundTrips: engine.Histogram{Bounds: bounds, Buckets: []uint64{2, 1}, Count: 4, Sum: 5 * time.Second},
		},
		Removals: map[string]uint64{"crashed": 2},
		Totals:   observe.Totals{Conns: 2, Waiting: 1, Descriptors: 50, DescriptorLimit: 100, DiskWrites: 2},
	}
}

func TestMetricsKeepTheConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(Registry(sample))
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestMetricsSayWhatTheSnapshotHas(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(sample, zerolog.Nop()).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`fabricd_info{node="web-1",role="host",version="1.0"} 1`,
		`fabricd_nodes{state="alive"} 2`, `fabricd_nodes{state="suspect"} 1`, `fabricd_nodes{state="removed"} 0`,
		`fabricd_links{provider="quic"} 2`, `fabricd_links{provider="tcp"} 1`,
		`fabricd_link_sent_bytes_total{peer="1"} 7`, `fabricd_link_round_trip_seconds{peer="1"} 0.0015`,
		`fabricd_backlog_fill_ratio 0.75`, `fabricd_backlog_waiting 3`, `fabricd_connections_waiting 1`,
		`fabricd_connects_incoming_total{result="access_rule"} 2`, `fabricd_removals_total{reason="crashed"} 2`,
		`fabricd_round_trip_seconds_bucket{le="0.001"} 2`, `fabricd_round_trip_seconds_bucket{le="1"} 3`, `fabricd_round_trip_seconds_bucket{le="+Inf"} 4`,
		`fabricd_round_trip_seconds_sum 5`, `fabricd_quota_fill_ratio{quota="descriptors"} 0.5`,
		`fabricd_certificate_expiry_timestamp_seconds 1000.5`, `fabricd_tokens{usable="true"} 3`, `fabricd_token_expiry_timestamp_seconds 2000`,
		`fabricd_rma_operations_total{kind="write",way="path"} 3`, `fabricd_rma_bytes_total{kind="write",way="path"} 4096`, `fabricd_fences_total{kind="mark"} 6`,
		`fabricd_path_sent_bytes_total{kind="rma"} 11`, `fabricd_path_received_bytes_total{kind="rma"} 12`, `fabricd_path_sent_bytes_total{kind="messages"} 0`,
		`fabricd_queue_fill_ratio{queue="audit"} 0.25`, `fabricd_quota_fill_ratio{quota="windows"} 0.5`, `fabricd_findings{kind="node",severity="broken"} 1`,
		`fabricd_disk_writes_waiting 2`, `fabricd_membership_queue_waiting{queue="inbox"} 7`, `fabricd_membership_queue_limit{queue="inbox"} 1024`,
		"process_open_fds ", "go_goroutines ",
	} {
		if !strings.Contains(w.Body.String(), "\n"+want) {
			t.Errorf("no line %q", want)
		}
	}
}

// A node that has not joined has no engine.
func TestMetricsOfANodeThatJoins(t *testing.T) {
	if _, err := Registry(func() observe.Snapshot { return observe.Snapshot{} }).Gather(); err != nil {
		t.Error(err)
	}
}

// The page about metrics names each, and no other.
func TestTheDocumentsNameEveryMetric(t *testing.T) {
	text, err := os.ReadFile("../../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| about |")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z_]+[a-z])`").FindAllStringSubmatch(table, -1) {
		named["fabricd_"+m[1]] = true
	}
	families, err := Registry(sample).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "fabricd_") && !named[f.GetName()] {
			t.Errorf("docs/observe.md does not name %s", f.GetName())
		}
		delete(named, f.GetName())
	}
	if len(named) > 0 {
		t.Errorf("docs/observe.md names %v, which are not there", named)
	}
}
