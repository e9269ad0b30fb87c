package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
	"github.com/fabricd/fabricd/internal/wire"
)

// A notary proves leases, and has a log that can be read.
type notary struct {
	mu    sync.Mutex // guards the fields below
	shown []string
	log   bytes.Buffer
}

func (n *notary) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(p)
}

func (n *notary) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.String()
}

// prove lets the lease pass that begins with the name of its owner.
func (n *notary) prove(lease []byte, peer engine.Peer, proved transport.Identity) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown = append(n.shown, fmt.Sprintf("%d bytes for %v of %x", len(lease), peer.Incarnation, proved.Node[0]))
	if !bytes.HasPrefix(lease, []byte(peer.Name)) {
		return errors.New("signed by a stranger")
	}
	return nil
}

// leased starts two nodes that show the leases, and prove each other's. Their
// certificates end at until.
func leased(t *testing.T, leases [2][]byte, until ...time.Time) (nodes [2]*engine.Node, peers [2]engine.Peer, notaries [2]*notary) {
	hub := mem.NewHub(mem.Config{})
	for i := range nodes {
		name := string(rune('a' + i))
		id := transport.Identity{Cluster: uuid(0xCC), Node: uuid(byte(i + 1)), Host: i == 0}
		if len(until) > i {
			id.Until = until[i]
		}
		p, err := hub.Provider(name, id)
		if err != nil {
			t.Fatal(err)
		}
		no := &notary{}
		notaries[i] = no
		nodes[i] = engine.Start(engine.Config{Providers: []transport.Provider{p}, ProveLease: no.prove, Log: zerolog.New(no)})
		incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		nodes[i].SetSelf(engine.Self{Self: attach.Self{Cluster: id.Cluster, Incarnation: incarnation}, UUID: id.Node, Epoch: 1,
			Lease: func() []byte { return leases[i] }})
		peers[i] = engine.Peer{Incarnation: incarnation, UUID: id.Node, Epoch: 1, Name: name, Addresses: []string{name}}
	}
	nodes[0].NodeUp(peers[1])
	nodes[1].NodeUp(peers[0])
	return nodes, peers, notaries
}

// TestLinksProveTheLeaseOfBothEnds: a certificate names the owner of a key, and only the
// lease that the host has given it that this incarnation is that node's.
func TestLinksProveTheLeaseOfBothEnds(t *testing.T) {
	long := append([]byte("a"), make([]byte, wire.MaxLease-1)...)
	for name, c := range map[string]struct {
		leases [2][]byte
		code   status.Code
		reason string
		shown  [2]int // how many leases each end was asked to prove
	}{
		"both good":              {[2][]byte{[]byte("a's"), []byte("b's")}, status.OK, "", [2]int{1, 1}},
		"the longest one":        {[2][]byte{long, []byte("b's")}, status.OK, "", [2]int{1, 1}},
		"the dialer's is bad":    {[2][]byte{[]byte("x"), []byte("b's")}, status.Access, "the lease of 0.1 proves nothing: signed by a stranger", [2]int{0, 1}},
		"the accepter's is bad":  {[2][]byte{[]byte("a's"), []byte("x")}, status.Access, "the lease of 1.1 proves nothing: signed by a stranger", [2]int{1, 1}},
		"the dialer has none":    {[2][]byte{nil, []byte("b's")}, status.NoDevice, "0.1 has no lease to show", [2]int{0, 0}},
		"the accepter has none ": {[2][]byte{[]byte("a's"), nil}, status.NoDevice, "1.1 has no lease to show", [2]int{0, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				nodes, _, notaries := leased(t, c.leases)
				_, err := nodes[0].Ping(context.Background(), 1)
				if c.code == status.OK && err != nil || c.code != status.OK && (!errors.Is(err, c.code) || !strings.Contains(err.Error(), c.reason)) {
					t.Errorf("ping: %v, want %v because %q", err, c.code, c.reason)
				}
				for i, n := range nodes {
					if err := n.Close(); err != nil {
						t.Error(err)
					}
					if got := notaries[i].shown; len(got) != c.shown[i] {
						t.Errorf("end %d proved %v, want %d", i, got, c.shown[i])
					}
					if c.code == status.Access && !strings.Contains(notaries[i].String(), "signed by a stranger") {
						t.Errorf("end %d logs %s, want the reason", i, notaries[i])
					}
				}
				if c.code == status.OK && !strings.HasPrefix(notaries[1].shown[0], fmt.Sprintf("%d bytes for 0.1 of 1", len(c.leases[0]))) {
					t.Errorf("the accepter proved %v", notaries[1].shown)
				}
			})
		})
	}
}

// TestALinkEndsWithThePeersCertificate: a peer that has not renewed its ended certificate
// is cut off, on an existing link too.
func TestALinkEndsWithThePeersCertificate(t *testing.T) {
	for name, c := range map[string]struct {
		session, known, renewed time.Duration // ends of certificates from the beginning; 0: not known
		want                    time.Duration // when the link ends; 0: never
	}{
		"no end is known":             {0, 0, 0, 0},
		"the table knows none":        {time.Minute, 0, 0, 0},
		"it is not renewed":           {time.Minute, time.Minute, 0, time.Minute},
		"it is renewed":               {time.Minute, time.Minute, 3 * time.Minute, 3 * time.Minute},
		"the session has a later one": {2 * time.Minute, time.Minute, 0, 2 * time.Minute},
		"the session's is not known":  {0, time.Minute, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				began := time.Now()
				end := func(d time.Duration) (at time.Time) {
					if d > 0 {
						at = began.Add(d)
					}
					return at
				}
				nodes, peers, notaries := leased(t, [2][]byte{[]byte("a"), []byte("b")}, time.Time{}, end(c.session))
				peers[1].Until = end(c.known)
				nodes[0].NodeUpdate(peers[1])
				if _, err := nodes[0].Ping(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(45 * time.Second)
				if c.renewed > 0 {
					peers[1].Until = end(c.renewed)
					nodes[0].NodeUpdate(peers[1])
				}
				gone := time.Duration(0)
				for range 8 * 60 { // unused links end later
					time.Sleep(500 * time.Millisecond)
					if synctest.Wait(); gone == 0 && len(nodes[0].Links()) == 0 {
						gone = time.Since(began)
					}
				}
				if c.want == 0 && gone != 0 || c.want != 0 && (gone < c.want || gone > c.want+time.Second) {
					t.Errorf("the link ended after %v, want %v", gone, c.want)
				}
				const cause = "the peer's certificate has expired"
				for i, no := range notaries {
					if got := strings.Contains(no.String(), `"level":"info"`) && strings.Contains(no.String(), cause); got != (c.want > 0) {
						t.Errorf("end %d logs %s", i, no)
					}
				}
				nodes[0].Close()
				nodes[1].Close()
			})
		})
	}
}

// TestALinkThatEndsSaysWhy: at info level, on both sides.
func TestALinkThatEndsSaysWhy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes, peers, notaries := leased(t, [2][]byte{[]byte("a"), []byte("b")})
		if _, err := nodes[0].Ping(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		nodes[0].NodeLost(peers[1].Incarnation, "banned")
		synctest.Wait()
		for i, no := range notaries {
			var down string
			for line := range strings.Lines(no.String()) {
				if strings.Contains(line, "link down") {
					down += line
				}
			}
			if strings.Count(down, "\n") != 1 || !strings.Contains(down, `"level":"info"`) || !strings.Contains(down, "node removed: banned") {
				t.Errorf("end %d says of the link's end %q", i, down)
			}
		}
		nodes[0].Close()
		nodes[1].Close()
	})
}

// TestAPeersReasonsArePrintable: a peer's reasons end up in logs and terminals.
func TestAPeersReasonsArePrintable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 1)
		said := fab.refuses(t, wire.HelloRefuse{Code: status.Access, VersionMin: 2, VersionMax: 2, Reason: "\x1b[2J\r\nroot# "})
		_, err := fab.nodes[0].Ping(context.Background(), 9)
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\r\n") || !strings.Contains(err.Error(), `\x1b[2J\r\nroot# `) {
			t.Errorf("ping: %q", err)
		}
		if err := <-said; err != nil {
			t.Error(err)
		}
	})
}
