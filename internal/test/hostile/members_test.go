package hostile

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/verdict"
)

// greeting is the Hello of an honest member.
func (c *cluster) greeting() control.Hello {
	return control.Hello{VersionMin: control.VersionMin, VersionMax: control.VersionMax, Cluster: c.id,
		From: control.End{UUID: c.evilID.Node, Epoch: 1}}
}

// join is how it asks for an incarnation.
func (c *cluster) joining() verdict.Join {
	return verdict.Join{Identity: says(c.evilID.Node, 1, "evil", "127.0.0.1:9")}
}

// dial opens a control connection of the bad node, authenticated and silent.
func (c *cluster) dial(proto string) *raw {
	c.t.Helper()
	r, err := dialRaw(c.t, c.data(), c.evil.ClientTLS(nil, proto))
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// session opens a control session of the bad node.
func (c *cluster) session() *raw {
	c.t.Helper()
	r := c.dial(control.ProtoControl)
	r.say(c.greeting())
	if kind, body, err := r.next(); kind != frameWelcome {
		c.t.Fatalf("the host answers a good HELLO with frame %d %q, %v", kind, body, err)
	}
	return r
}

// admitted opens a control session on which the bad node has an incarnation.
func (c *cluster) admitted() (*raw, addr.Incarnation) {
	c.t.Helper()
	r := c.session()
	r.say(c.joining())
	kind, body := r.until(frameGrant, frameRefused)
	if kind != frameGrant {
		c.t.Fatalf("the host answers a good JOIN with frame %d %q", kind, body)
	}
	return r, addr.Incarnation{Node: addr.NodeID(binary.BigEndian.Uint16(body[8:])), Generation: addr.Generation(binary.BigEndian.Uint32(body[10:]))}
}

// alive checks that the host serves and that nodes live.
func (c *cluster) alive(nodes ...*daemon.Daemon) {
	c.t.Helper()
	select {
	case <-c.host.Done():
		c.t.Fatalf("the host ended: %v", c.host.Err())
	default:
	}
	for _, n := range nodes {
		self := n.Self().Incarnation
		if self != c.incarnations[n] {
			c.t.Errorf("%s lives as %v, want its first incarnation %v", n.Status().Name, self, c.incarnations[n])
		}
		for _, x := range c.host.Nodes().Nodes {
			if x.ID == self.Node && x.State != "alive" && x.State != "suspect" {
				c.t.Errorf("the host holds %v for %s", self, x.State)
			}
		}
		if _, err := n.Ping(within(c.t), addr.Host); err != nil {
			c.t.Errorf("%v cannot reach the host: %v", self, err)
		}
	}
}

// TestClaimsOnTheControlPort: a claim that a certificate does not prove is refused, with
// the code of the specification.
func TestClaimsOnTheControlPort(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	for name, x := range map[string]struct {
		say  func(h *control.Hello)
		code control.Code
		text string
	}{
		"uuid of another":   {func(h *control.Hello) { h.From.UUID[0]++ }, control.CodeIdentity, "certificate"},
		"no uuid":           {func(h *control.Hello) { h.From.UUID = addr.UUID{} }, control.CodeIdentity, "certificate"},
		"the host role":     {func(h *control.Hello) { h.From.Host = true }, control.CodeRole, "host role"},
		"another cluster":   {func(h *control.Hello) { h.Cluster[0]++ }, control.CodeCluster, c.id.String()},
		"versions to come":  {func(h *control.Hello) { h.VersionMin, h.VersionMax = 70, 90 }, control.CodeVersion, "70 to 90"},
		"versions reversed": {func(h *control.Hello) { h.VersionMin, h.VersionMax = 9, 1 }, control.CodeVersion, "9 to 1"},
		"for somebody else": {func(h *control.Hello) { h.To.UUID = addr.UUID{1} }, control.CodeTarget, "wants"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, proto := range []string{control.ProtoControl, control.ProtoLifeline} {
				r := c.dial(proto)
				h := c.greeting()
				x.say(&h)
				r.say(h)
				kind, body, err := r.next()
				if kind != frameRefuse || len(body) < 7 {
					t.Fatalf("%s: frame %d %q, %v", proto, kind, body, err)
				}
				if code := control.Code(body[0]); code != x.code || !strings.Contains(string(body[7:]), x.text) {
					t.Errorf("%s: refused with code %v, %q; want %v and %q", proto, code, body[7:], x.code, x.text)
				}
				if low, high := binary.BigEndian.Uint16(body[1:]), binary.BigEndian.Uint16(body[3:]); low != control.VersionMin || high != control.VersionMax {
					t.Errorf("the refusal names versions %d to %d", low, high)
				}
			}
		})
	}
	c.alive(one)
}

// TestControlMessagesThatAreNotOurs has a member send messages that only other nodes may
// send. Messages of the wrong kind end its session with a reason, those about others
// change nothing.
func TestControlMessagesThatAreNotOurs(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	victim, host := one.Self().Incarnation, c.host.Self().Incarnation
	entry := verdict.Entry{Node: verdict.Node{Incarnation: victim, Identity: verdict.Identity{UUID: addr.UUID{1}}, State: verdict.Removed}, Reason: verdict.ReasonCrashed}
	foreign := c.joining()
	foreign.UUID = addr.UUID{1}
	other := c.joining()
	other.Epoch++
	for name, m := range map[string]verdict.Message{
		"a table":                 verdict.Table{Term: math.MaxUint64, Version: 9, First: true, Last: true, Entries: []verdict.Entry{entry}},
		"a delta":                 verdict.Delta{Term: math.MaxUint64, Version: 9, Entries: []verdict.Entry{entry}},
		"a verdict":               verdict.RemovedIncarnation{Term: math.MaxUint64, Version: 9, Incarnation: victim, Reason: verdict.ReasonCrashed},
		"a grant":                 verdict.Grant{Term: math.MaxUint64, Incarnation: victim},
		"a refusal":               verdict.Refused{Term: 1, Code: verdict.RefusedFenced},
		"a check":                 verdict.Check{Nonce: 1, Contact: verdict.Contact{Incarnation: victim}},
		"a pong":                  verdict.Pong{Term: math.MaxUint64},
		"a join of another":       foreign,
		"a join of another start": other,
		"a resume of another":     verdict.Resume{Identity: foreign.Identity, Incarnation: victim},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.session()
			defer r.c.NetConn().Close()
			r.say(m)
			if kind, body := r.until(frameClose); kind != frameClose || len(body) <= 2 {
				t.Errorf("answered with frame %d %q, want CLOSE with a reason", kind, body)
			}
		})
	}
	t.Run("about others", func(t *testing.T) {
		r, self := c.admitted()
		for _, incarnation := range []addr.Incarnation{victim, host, {Node: 999, Generation: 1}} {
			r.say(verdict.Leave{Incarnation: incarnation})
			r.say(verdict.Ack{Incarnation: incarnation})
			for e := range verdict.Evidence(16) {
				r.say(verdict.Report{About: incarnation, Evidence: e})
			}
			for nonce := range uint64(64) {
				r.say(verdict.CheckResult{Nonce: nonce, Target: incarnation, Reached: nonce%2 == 0})
			}
			r.say(verdict.Ping{Incarnation: incarnation, Nonce: 1, Version: math.MaxUint64})
		}
		r.say(verdict.Leave{Incarnation: self}) // behind which all the others have arrived
		for {
			kind, body := r.until(frameRemoved, frameClose)
			if kind != frameRemoved {
				t.Fatalf("frame %d %q instead of our own end", kind, body)
			}
			if reported := (addr.Incarnation{Node: addr.NodeID(binary.BigEndian.Uint16(body[16:])), Generation: addr.Generation(binary.BigEndian.Uint32(body[18:]))}); reported == self {
				break
			} else if reported == victim {
				t.Error("the word of one member removed another")
			}
		}
	})
	c.alive(one)
	c.alive(one, c.start(c.node("two")))
}

// TestLeasesThatAreNot resumes incarnations that the host never granted.
func TestLeasesThatAreNot(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	for name, incarnation := range map[string]addr.Incarnation{"the host's": {Generation: 1}, "another node's": one.Self().Incarnation, "nobody's": {Node: 77, Generation: 3}} {
		t.Run(name, func(t *testing.T) {
			for _, lease := range [][]byte{nil, []byte("a lease"), bytes.Repeat([]byte{0xff}, verdict.MaxLease)} {
				r := c.session()
				r.say(verdict.Resume{Identity: c.joining().Identity, Incarnation: incarnation, Lease: lease})
				if kind, _ := r.until(frameGrant, frameRefused, frameClose); kind == frameGrant || kind == 0 {
					t.Errorf("a resume with a lease of %d bytes is answered with frame %d", len(lease), kind)
				}
				r.c.NetConn().Close()
			}
		})
	}
	c.alive(one)
}

// TestFloodsOnTheControlPort asks for whole tables and reads none, beats
// without end on a lifeline, and opens more sessions than a node needs.
func TestFloodsOnTheControlPort(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	grows(t, 16<<20, func() {
		r, _ := c.admitted()
		sync, err := control.AppendFrame(nil, verdict.Sync{})
		if err != nil {
			t.Fatal(err)
		}
		batch := bytes.Repeat(sync, 1000)
		for range 300 {
			r.c.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := r.c.Write(batch); err != nil {
				break // cut off, or not read any more: both are bounds
			}
		}
		r.c.NetConn().Close()
	})
	grows(t, 4<<20, func() {
		r := c.dial(control.ProtoLifeline)
		r.say(c.greeting())
		for i := range uint64(5000) {
			r.say(control.Beat{Seq: i % 3})
		}
		r.c.NetConn().Close()
	})
	var welcomed []*raw
	for range 64 {
		r := c.dial(control.ProtoControl)
		r.say(c.greeting())
		if kind, _, _ := r.next(); kind == frameWelcome {
			welcomed = append(welcomed, r)
		}
	}
	open := 0
	for _, r := range welcomed { // a new one ends an older one
		r.c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, _, err := r.next(); err != nil && strings.Contains(err.Error(), "timeout") {
			open++
		}
	}
	if open > 16 {
		t.Errorf("one node has %d control sessions open", open)
	}
	c.alive(one)
}

// TestMalformedControlFrames sends frames with every kind of wrong length, and
// with single bits changed, before and behind the WELCOME.
func TestMalformedControlFrames(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	good, err := control.AppendFrame(nil, c.greeting())
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string][]byte{
		"a body of 4 GiB":      {0xff, 0xff, 0xff, 0xff, 1},
		"a body beyond 64 KiB": {0, 1, 0, 1, 1},
		"no body":              {0, 0, 0, 0, 1},
		"unknown type":         {0, 0, 0, 0, 250},
		"one byte too many":    append([]byte{0, 0, good[2], good[3] + 1}, append(bytes.Clone(good[4:]), 0)...),
		"HTTP":                 []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			r := c.dial(control.ProtoControl)
			_, _ = r.c.Write(p)
			if kind, _ := r.until(frameWelcome); kind == frameWelcome {
				t.Error("welcomed")
			}
			r = c.session()
			defer r.c.NetConn().Close() // a node may have few
			_, _ = r.c.Write(p)
			if kind, body := r.until(frameClose); kind != frameClose || len(body) <= 2 {
				t.Errorf("in a session: frame %d %q, want CLOSE with a reason", kind, body)
			}
		})
	}
	c.alive(one)
}

// TestTermsAreNotTakenOnTrust: a member that says that it knows a host of a
// later term does not end the host that there is.
func TestTermsAreNotTakenOnTrust(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	join := c.joining()
	join.Term = math.MaxUint64
	for _, m := range []verdict.Message{join, verdict.Resume{Identity: join.Identity, Incarnation: addr.Incarnation{Node: 9, Generation: 9}, Term: math.MaxUint64}} {
		r := c.session()
		r.say(m)
		r.until(frameGrant, frameRefused, frameClose)
		r.c.NetConn().Close()
	}
	c.alive(one, c.start(c.node("two")))
}
