package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestLinkFaultsOverTheAdminSocket drives the faults of one of two nodes.
func TestLinkFaultsOverTheAdminSocket(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.EnableFaults = true
	host, node := testHostWith(t, c)
	c = node("node")
	c.EnableFaults = true
	d := startTest(t, c)
	sees(t, host, d.Self().Incarnation.Node)

	// Each knows where the other is: links, control and gossip.
	for _, pair := range [][2]*Daemon{{host, d}, {d, host}} {
		from, to := pair[0], pair[1]
		for _, place := range []string{to.Status().Data[0], to.Status().Gossip} {
			limit := time.Now().Add(testLimit)
			for from.links.plane.Names.Place(place) != to.Self().Incarnation.Node {
				if time.Now().After(limit) {
					t.Fatalf("%s does not know who is at %s", from.cfg.Name, place)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		if self := from.links.plane.Self(); self != from.Self().Incarnation.Node {
			t.Errorf("%s breaks as node %d, is %d", from.cfg.Name, self, from.Self().Incarnation.Node)
		}
	}

	client := NewClient(c.Local.AdminSocket)
	defer client.Close()
	ctx := t.Context()
	rule := faults.Rule{On: faults.Link, To: faults.Nodes{addr.Host}, Delay: faults.Duration(30 * time.Millisecond), Name: "late"}
	ids, err := client.AddLinkFaults(ctx, []faults.Rule{rule, {On: faults.Gossip, Drop: .1, For: faults.Duration(time.Minute)}})
	if err != nil || len(ids) != 2 {
		t.Fatalf("add: %v, %v", ids, err)
	}
	if rtt, err := client.Ping(ctx, addr.Host, 5*time.Second); err != nil || rtt < 30*time.Millisecond {
		t.Errorf("a ping with 30 ms in one direction takes %v, %v", rtt, err)
	}
	all, err := client.LinkFaults(ctx, false)
	if err != nil || len(all) != 2 || all[0].Rule.Name != "late" || all[0].Counts.Delayed == 0 || all[1].Left == 0 {
		t.Errorf("list: %+v, %v", all, err)
	}
	st, err := client.Status(ctx)
	if err != nil || !st.FaultsEnabled || len(st.Warnings) != 2 || !strings.Contains(st.Warnings[0], `"late" link any→0 delay 30ms`) {
		t.Errorf("status: %v, %q, %v", st.FaultsEnabled, st.Warnings, err)
	}
	if h, err := client.Health(ctx); err != nil || !h.Healthy || !strings.Contains(h.Detail, "2 faults are active") {
		t.Errorf("health: %+v, %v", h, err)
	}
	for _, step := range []struct {
		id    uint64
		name  string
		ended int
	}{{ids[1], "", 1}, {ids[1], "", 0}, {0, "late", 1}, {0, "late", 0}, {0, "", 0}} {
		if n, err := client.ClearLinkFaults(ctx, step.id, step.name); err != nil || n != step.ended {
			t.Errorf("clear %+v: %d, %v", step, n, err)
		}
	}
	if all, err := client.LinkFaults(ctx, true); err != nil || len(all) != 2 || all[0].State != faults.Ended {
		t.Errorf("what has ended: %+v, %v", all, err)
	}
	if st, err := client.Status(ctx); err != nil || len(st.Warnings) != 0 {
		t.Errorf("status after the faults: %q, %v", st.Warnings, err)
	}
	collects(t, client)
	refusals(t, c.Local.AdminSocket)
}

// collects asks a node to collect its garbage, as the lab does of nodes with faults and without.
func collects(t *testing.T, client *Client) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := client.Collect(t.Context()); err != nil {
		t.Error(err)
	}
	if runtime.ReadMemStats(&after); after.NumForcedGC == before.NumForcedGC {
		t.Error("the node was asked to collect, and did not")
	}
}

// refusals sends what must be refused, with one line each.
func refusals(t *testing.T, socket string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	for _, tt := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{"POST", "faults", `{"plane":"link"}`, 400, "does nothing"},
		{"POST", "faults", `{"plane":"link","cut":true,"drap":1}`, 400, "drap"},
		{"POST", "faults", `nonsense`, 400, "not JSON"},
		{"POST", "faults", ``, 400, "nothing"},
		{"POST", "faults", `{"plane":"rma","drop":0.1}`, 400, "use the plane link"},
		{"POST", "faults", strings.Repeat(" ", faults.MaxEncoded+1), 400, "want at most"},
		{"POST", "faults", `[` + strings.Repeat(`{"plane":"link","cut":true},`, faults.MaxRules) + `{"plane":"link","cut":true}]`, 400, "want 1 to 256"},
		{"DELETE", "faults?id=x", ``, 400, "want the number of a fault"},
		{"DELETE", "faults?id=0", ``, 400, "want the number of a fault"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://fabricd/v1/"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.code || !strings.Contains(string(text), tt.text) || strings.Count(string(text), "\n") != 1 {
			t.Errorf("%s %s %.60s: %d %s, %v; want %d with %q", tt.method, tt.path, tt.body, resp.StatusCode, text, err, tt.code, tt.text)
		}
	}
}

// TestLinkFaultsAreOffByDefault asks a node that was not started for them, and
// looks that nothing lies between it and its sockets.
func TestLinkFaultsAreOffByDefault(t *testing.T) {
	host, _ := testHost(t)
	client := NewClient(host.cfg.Local.AdminSocket)
	defer client.Close()
	for what, ask := range map[string]func() error{
		"list": func() error { _, err := client.LinkFaults(t.Context(), false); return err },
		"add": func() error {
			_, err := client.AddLinkFaults(t.Context(), []faults.Rule{{On: faults.All, Cut: true}})
			return err
		},
		"clear": func() error { _, err := client.ClearLinkFaults(t.Context(), 0, ""); return err },
	} {
		if err := ask(); err == nil || err.Error() != errFaultsOff.Error() {
			t.Errorf("%s: %v", what, err)
		}
	}
	collects(t, client)
	var off *breaker
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	if host.links != nil || off.packets(packets, faults.Link) != packets || off.dial(faults.Control) != nil || off.sighted() != nil {
		t.Error("a node without faults is wrapped")
	}
	if st := host.Status(); st.FaultsEnabled || st.Warnings != nil {
		t.Errorf("status: %+v", st)
	}
}

// TestNamesOfNodesAreLookedUp has a node that advertises a host name: packets
// come from its address.
func TestNamesOfNodesAreLookedUp(t *testing.T) {
	plane := faults.NewPlane(faults.Options{})
	b := &breaker{plane: plane, layer: inject.New(plane), log: zerolog.Nop(), resolving: make(chan struct{}, 1)}
	defer b.close()
	var wg sync.WaitGroup
	n := membership.Node{Incarnation: addr.Incarnation{Node: 7, Generation: 1}, Identity: verdict.Identity{UUID: addr.UUID{7}, Claims: testClaims("seven", "localhost:7700", "10.0.0.7:7700")}}
	b.meet(t.Context(), membership.Event{Kind: membership.EventAdded, Node: n}, wg.Go)
	wg.Wait()
	for _, at := range []string{"127.0.0.1:7700", "10.0.0.7:7700"} {
		if id := plane.Names.At(netip.MustParseAddrPort(at)); id != 7 {
			t.Errorf("at %s is node %d, want 7", at, id)
		}
	}
	if id := plane.Names.Place("localhost:7700"); id != 7 {
		t.Errorf("at localhost:7700 is node %d, want 7", id)
	}
	for i := range 4 { // more than are looked up at once: none waits
		b.resolve(t.Context(), addr.UUID{9}, fmt.Sprintf("localhost:%d", 8000+i), func(f func()) {})
	}
}
