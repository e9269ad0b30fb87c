package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

const testProto = "test/1"

// A wire is a TLS connection between two nodes that was opened once and carries
// a byte back and forth for as long as the test runs.
type wire struct {
	near, far net.Conn
	trips     int
}

// wires connects the nodes in a ring with their current credentials.
func (w *world) wires() []*wire {
	var list []*wire
	for k, n := range w.all {
		o := w.all[(k+1)%len(w.all)]
		list = append(list, w.wire(n, o))
	}
	return list
}

// wire opens a TLS connection from n to o; it fails the test if it cannot.
func (w *world) wire(n, o *node) *wire {
	w.t.Helper()
	l := must(w.net.Listen(ip(o.i) + ":9000"))
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		s := tls.Server(c, o.a.cfg.Trust.ServerTLS(testProto))
		if err := s.Handshake(); err != nil {
			w.t.Errorf("node %d does not accept node %d: %v", o.i, n.i, err)
		}
		accepted <- s
	}()
	raw := must(w.dial(n.i)(w.t.Context(), ip(o.i)+":9000"))
	c := tls.Client(raw, n.a.cfg.Trust.ClientTLS(trust.ExpectNode(o.a.self.UUID), testProto))
	if err := c.Handshake(); err != nil {
		w.t.Errorf("node %d does not reach node %d: %v", n.i, o.i, err)
	}
	return &wire{near: c, far: <-accepted}
}

// trip sends a byte there and back.
func (x *wire) trip() error {
	b := []byte{7}
	if _, err := x.near.Write(b); err != nil {
		return err
	}
	if _, err := io.ReadFull(x.far, b); err != nil {
		return err
	}
	if _, err := x.far.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(x.near, b)
	x.trips++
	return err
}

func (x *wire) close() { x.near.Close(); x.far.Close() }

// traffic keeps the wires busy, and opens new ones, until stop is called, which
// returns how many trips there were.
func (w *world) traffic() (stop func() int) {
	list := w.wires()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Second):
			}
			for _, x := range list {
				if err := x.trip(); err != nil {
					w.t.Errorf("a connection that was open before does not last: %v", err)
				}
			}
			if i%10 == 0 {
				k := i / 10 % len(w.all)
				x := w.wire(w.all[k], w.all[(k+1)%len(w.all)])
				if err := x.trip(); err != nil {
					w.t.Errorf("a new connection: %v", err)
				}
				x.close()
			}
		}
	})
	return func() (trips int) {
		close(done)
		wg.Wait()
		for _, x := range list {
			trips += x.trips
			x.close()
		}
		return trips
	}
}

// wantUndisturbed checks that no node was removed and no session or lifeline
// ended since a moment.
func (w *world) wantUndisturbed(since time.Time) {
	w.t.Helper()
	lines := 0
	for _, n := range w.all {
		if got := words(n.since(since)); len(got) != 0 {
			w.t.Errorf("node %d: events %v, want none", n.i, got)
		}
		for _, line := range strings.Split(n.logged(), "\n") {
			at := strings.Index(line, `"time":"`)
			if at < 0 {
				continue
			}
			when, err := time.Parse(time.RFC3339, line[at+8:at+8+len(since.Format(time.RFC3339))])
			if err != nil || when.Before(since) {
				continue
			}
			lines++
			for _, bad := range []string{"session ended", "lifeline ended", "decrypt", "node removed"} {
				if strings.Contains(line, bad) {
					w.t.Errorf("node %d logs: %s", n.i, line)
				}
			}
		}
	}
	if lines == 0 {
		w.t.Error("no line of any log was looked at")
	}
}

func TestCertificatesRotateUnderTraffic(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		calm := func(c *Config) { c.Detection, c.CertificateValidity = gossip.Calm, time.Minute }
		w.host(calm)
		for i := 2; i <= 3; i++ {
			w.join(i, calm)
		}
		w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
		time.Sleep(5 * time.Second)
		began := time.Now()
		stop := w.traffic()
		serials := make(map[int]map[string]bool)
		for _, n := range w.all {
			serials[n.i] = make(map[string]bool)
		}
		enough := func() bool {
			least := 1 << 30
			for _, n := range w.all {
				leaf := n.a.cfg.Trust.Credentials().Chain[0]
				serials[n.i][leaf.SerialNumber.String()] = true
				least = min(least, len(serials[n.i]))
				if left := time.Until(leaf.NotAfter); left < 10*time.Second {
					t.Errorf("the certificate of node %d ends in %v and is not renewed", n.i, left)
				}
			}
			return least > 20
		}
		for !enough() && time.Since(began) < 20*time.Minute {
			time.Sleep(5 * time.Second)
		}
		t.Logf("certificates after %v: %d of the host, %d of node 2", time.Since(began), len(serials[1]), len(serials[2]))
		if !enough() {
			t.Errorf("rotations %v, want 20 at each node", serials)
		}
		if trips := stop(); trips < 900 {
			t.Errorf("%d round trips, want traffic all the time", trips)
		}
		w.wantUndisturbed(began)
		n := w.node(3)
		w.kill(n)
		w.again(3, calm)
		w.within(10*time.Second, "a node comes back with what it has on disk", func() bool { return mesh(w.all) })
	})
}

func TestHostThatWasOffTooLongRenewsItself(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		short := func(c *Config) { c.CertificateValidity = time.Minute }
		w.host(short)
		time.Sleep(400 * time.Millisecond)
		w.node(1).a.post(func() { w.node(1).a.renewal.at = time.Time{} })
		time.Sleep(time.Second)
		if left := time.Until(w.node(1).a.cfg.Trust.Identity().NotAfter); left > time.Minute {
			t.Fatalf("the host's certificate is valid for %v, want at most a minute", left)
		}
		w.kill(w.node(1))
		time.Sleep(time.Hour)
		w.again(1, short)
		w.join(2, short)
		w.within(5*time.Second, "the cluster is whole", func() bool { return mesh(w.all) })
	})
}

func TestExpiredNodeLearnsTheReason(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		short := func(c *Config) { c.CertificateValidity = time.Minute }
		w.host(short)
		n := w.join(2, short)
		w.within(5*time.Second, "the cluster is whole", func() bool { return mesh(w.all) })
		w.kill(n)
		time.Sleep(5 * time.Minute)
		st := must(state.Open(filepath.Join(w.dir, "2"), state.Options{}))
		defer st.Close()
		_, err := LoadTrust(st, time.Now)
		if !errors.Is(err, trust.ErrExpired) || !strings.Contains(err.Error(), "issues the next one to its key") {
			t.Errorf("an expired node: %v, want ErrExpired and what to do", err)
		}
	})
}

func TestGossipKeysRotateUnderTraffic(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		h := w.node(1)
		began := time.Now()
		stop := w.traffic()
		var seen []uint32
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			version, err := h.a.RotateGossipKey(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, version)
			time.Sleep(5 * time.Second)
			for _, n := range w.all {
				ring := must(trust.DecodeKeyring(n.st.Secret(state.SecretKeyring)))
				if !slices.Equal(ring.Versions(), []uint32{version}) {
					t.Errorf("node %d has %v, want only version %d", n.i, ring, version)
				}
				if s := n.a.Status(); s.Gossiping != 4 || s.GossipHealth != 0 {
					t.Errorf("node %d gossips with %d members, health %d, want 4 and 0", n.i, s.Gossiping, s.GossipHealth)
				}
			}
		}
		if !slices.Equal(seen, []uint32{2, 3, 4, 5, 6}) {
			t.Errorf("versions %v, want 2 to 6", seen)
		}
		stop()
		w.wantUndisturbed(began)
		if _, err := w.node(2).a.RotateGossipKey(t.Context()); err == nil || !strings.Contains(err.Error(), "not the host") {
			t.Errorf("a plain node rotates: %v", err)
		}
		w.join(6)
		w.within(5*time.Second, "a newcomer gossips with the new key", func() bool {
			return mesh(w.all) && w.node(6).a.Status().Gossiping == 5
		})
	})
}

func TestGossipKeyIsUsedOnlyWhereEveryLiveNodeHoldsIt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		slow := func(c *Config) { c.Detection = gossip.Calm }
		w.host(slow)
		for i := 2; i <= 4; i++ {
			w.join(i, slow)
		}
		w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
		time.Sleep(5 * time.Second)
		h, absent := w.node(1), w.node(4)
		w.kill(absent)
		w.within(10*time.Second, "the absent node is gone", func() bool { return mesh(w.all) })
		w.net.Partition([]string{ip(1)}, []string{ip(3)}) // it has lost only the host
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := h.a.RotateGossipKey(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not every node holds them, node 2 does not:") {
			t.Errorf("while a node is cut off: %v, want the deadline", err)
		}
		for _, n := range w.all {
			ring := must(trust.DecodeKeyring(n.st.Secret(state.SecretKeyring)))
			if ring.Versions()[0] != 1 {
				t.Errorf("node %d uses %v before every node holds the new key", n.i, ring)
			}
		}
		w.net.Heal()
		time.Sleep(10 * time.Second)
		version, err := h.a.RotateGossipKey(t.Context())
		if err != nil || version != 2 {
			t.Errorf("the next call: version %d, %v, want the same rotation completed", version, err)
		}
		back := w.again(4, slow)
		w.within(10*time.Second, "the node that was away has the key", func() bool {
			return mesh(w.all) && fmt.Sprint(must(trust.DecodeKeyring(back.st.Secret(state.SecretKeyring))).Versions()) == "[2]" &&
				back.a.Status().Gossiping == 3
		})
	})
}
