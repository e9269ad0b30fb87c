package control

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

var leaseA = Lease{Cluster: uuidB, UUID: uuidA, Key: trust.Pin{5, 31: 6}, Epoch: 7, Incarnation: incarnationA, Term: 9,
	Since: time.Unix(1_700_000_000, 42).UTC(), Name: "käthe"}

func TestGoldenLease(t *testing.T) {
	var e encoder
	writer(&e).lease(&leaseA)
	path := filepath.Join("testdata", "v2", "lease.hex")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *addVectors {
		text = []byte(hex.EncodeToString(e.Encoded()) + "\n")
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || !bytes.Equal(e.Encoded(), want) {
		t.Errorf("encoded\n%x, the vector is\n%x (%v)", e.Encoded(), want, err)
	}
	if got, err := parseLease(want); err != nil || got != leaseA {
		t.Errorf("the vector decodes to %+v (%v), want %+v", got, err, leaseA)
	}
}

func FuzzParseLease(f *testing.F) {
	var e encoder
	writer(&e).lease(&leaseA)
	f.Add(e.Encoded())
	f.Add(e.Encoded()[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLease(b)
		if err != nil {
			return
		}
		var e encoder
		if writer(&e).lease(&l); !e.OK() || !bytes.Equal(e.Encoded(), b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, l, e.Encoded())
		}
	})
}

// leaseOf returns the lease of incarnation l of node B, signed by the host; change may alter its fields.
func (b *bench) leaseOf(l addr.Incarnation, change ...func(*Lease)) []byte {
	lease := Lease{Cluster: b.cluster, UUID: uuidB, Key: b.store(uuidB, false).Identity().Key, Epoch: 5, Incarnation: l, Term: 3}
	for _, f := range change {
		f(&lease)
	}
	return must(SignLease(b.store(uuidA, true), lease))
}

// A badLease is a lease with which incarnation 4.2 of node B is not to be believed.
type badLease struct {
	name  string
	lease []byte
	want  string
}

func (b *bench) badLeases() []badLease {
	incarnation := addr.Incarnation{Node: 4, Generation: 2}
	altered := slices.Clone(b.leaseOf(incarnation))
	altered[10+16+16+8+1] ^= 1 // the node ID in the message
	foreign := must(trust.NewCA(b.cluster, time.Now()))
	mallory := must(trust.NewStore(must(trust.IssueCredentials(foreign,
		trust.Identity{Cluster: b.cluster, Node: uuidA, Host: true}, time.Now(), time.Hour)), time.Now))
	return []badLease{
		{"none", nil, "not a statement signed by the cluster's host"},
		{"altered", altered, "not a statement signed by the cluster's host"},
		{"forged with another CA", must(SignLease(mallory, Lease{Cluster: b.cluster, UUID: uuidB, Epoch: 5, Incarnation: incarnation})), "not a statement signed"},
		{"signed by a plain node", must(SignLease(b.store(uuidB, false), Lease{Cluster: b.cluster, UUID: uuidB, Epoch: 5, Incarnation: incarnation})), "not a statement signed"},
		{"another node's", b.leaseOf(incarnation, func(l *Lease) { l.UUID = uuidA }), "its lease is that of node " + uuidA.String()},
		{"of another incarnation", b.leaseOf(addr.Incarnation{Node: 4, Generation: 1}), "lease of incarnation 4.1"},
		{"of another start", b.leaseOf(incarnation, func(l *Lease) { l.Epoch = 4 }), "start 4"},
		{"of another cluster", b.leaseOf(incarnation, func(l *Lease) { l.Cluster = addr.UUID{9} }), "lease of cluster"},
		{"another statement", must(b.store(uuidA, true).Sign("something else", []byte("x"))), "not a statement signed"},
		{"too large", make([]byte, verdict.MaxLease), "not a statement signed"},
	}
}

func TestLifelineNeedsTheLeaseOfItsIncarnation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		incarnation := addr.Incarnation{Node: 4, Generation: 2}
		self := End{UUID: uuidB, Epoch: 5, Incarnation: incarnation}
		d := b.dialer(self)
		for _, c := range b.badLeases() {
			d.Self = func() (End, []byte) { return self, c.lease }
			_, err := d.Lifeline(t.Context(), hostAddress, Target{UUID: uuidA}, nil)
			var r *RefusedError
			if !errors.As(err, &r) || !r.Remote || r.Code != CodeIdentity || !strings.Contains(r.Text, c.want) {
				t.Errorf("%s: the dialer's error: %v, want a refusal that says %q", c.name, err, c.want)
			}
			time.Sleep(time.Second)
			if got := b.log.String(); !strings.Contains(got, c.want) {
				t.Errorf("%s: the listener's log: %s, want it to say %q", c.name, got, c.want)
			}
		}
		d.Self = func() (End, []byte) { return self, b.leaseOf(incarnation) }
		here := must(d.Lifeline(t.Context(), hostAddress, Target{UUID: uuidA}, nil))
		there := <-b.lines
		if there.Lease().Incarnation != incarnation || there.Lease().Term != 3 || here.Lease().Term != 1 {
			t.Errorf("leases %+v and %+v, want those that were shown", there.Lease(), here.Lease())
		}
		here.Abort()
		there.Abort()
	})
}

func TestListenerWithABadLeaseIsRefusedWithTheReason(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		for _, c := range b.badLeases()[:2] {
			b.lease = c.lease
			_, err := b.dialer(endB).Lifeline(t.Context(), hostAddress, Target{UUID: uuidA}, nil)
			var r *RefusedError
			if !errors.As(err, &r) || r.Remote || !strings.Contains(r.Text, c.want) {
				t.Errorf("%s: the dialer's error: %v, want that it refuses because of %q", c.name, err, c.want)
			}
			p := newTap()
			(<-b.lines).Start(p.alive, p.ended)
			if err := <-p.down; !strings.Contains(err.Error(), c.want) || p.cause != verdict.DownClosed {
				t.Errorf("%s: the listener's end: %v, want %q", c.name, err, c.want)
			}
		}
	})
}

func TestSessionBelievesWhatALeaseProves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		incarnation := addr.Incarnation{Node: 4, Generation: 2}
		node, host, nodeTap, hostTap := b.pair()
		good := b.leaseOf(incarnation)
		node.Send(verdict.Join{Identity: claims(uuidB, 5), Previous: incarnation, Term: 8})
		node.Send(verdict.Join{Identity: claims(uuidB, 5), Previous: incarnation, Term: 8, Lease: good})
		node.Send(verdict.Join{Identity: claims(uuidB, 5), Previous: incarnation, Term: 2, Lease: good})
		node.Send(verdict.Resume{Identity: claims(uuidB, 5), Incarnation: incarnation, Term: 8, Lease: good})
		host.Send(verdict.Grant{Term: 3, Incarnation: incarnation, Lease: good})
		time.Sleep(time.Second)
		got := hostTap.got()
		if len(got) != 4 {
			t.Fatalf("the host got %+v, want four messages", got)
		}
		if j := got[0].(verdict.Join); j.Previous != (addr.Incarnation{}) || j.Term != 0 {
			t.Errorf("without a lease the host believes %+v", j)
		}
		if j := got[1].(verdict.Join); j.Previous != incarnation || j.Term != 3 {
			t.Errorf("with a lease of term 3 the host believes %+v, want the incarnation and term 3", j)
		}
		if j := got[2].(verdict.Join); j.Term != 2 {
			t.Errorf("of a claim of term 2 the host believes %+v", j)
		}
		if r := got[3].(verdict.Resume); r.Incarnation != incarnation || r.Term != 3 {
			t.Errorf("the host believes %+v, want the incarnation and term 3", r)
		}
		if got := nodeTap.got(); len(got) != 1 {
			t.Errorf("the node got %+v, want the grant", got)
		}
		node.Close("done")
		<-hostTap.down
	})
}

func TestSessionEndsOverABadLeaseOnBothSides(t *testing.T) {
	incarnation := addr.Incarnation{Node: 4, Generation: 2}
	for kind, send := range map[string]func(node, host *Session, lease []byte){
		"join": func(node, _ *Session, lease []byte) {
			node.Send(verdict.Join{Identity: claims(uuidB, 5), Previous: incarnation, Lease: lease})
		},
		"resume": func(node, _ *Session, lease []byte) {
			node.Send(verdict.Resume{Identity: claims(uuidB, 5), Incarnation: incarnation, Lease: lease})
		},
		"grant": func(_, host *Session, lease []byte) {
			host.Send(verdict.Grant{Term: 3, Incarnation: incarnation, Lease: lease})
		},
	} {
		bubble.Test(t, func(t *testing.T) {
			b := newBench(t)
			defer b.close()
			bad := b.badLeases()
			if kind == "grant" {
				bad = append(bad, badLease{"of another term", b.leaseOf(incarnation, func(l *Lease) { l.Term = 2 }), "in term 2"})
			}
			for _, c := range bad {
				if kind == "join" && (c.name == "none" || c.name == "of another start") {
					continue // a newcomer, and a node that was started again
				}
				node, host, nodeTap, hostTap := b.pair()
				send(node, host, c.lease)
				for side, p := range map[string]*tap{"node": nodeTap, "host": hostTap} {
					if err := <-p.down; !strings.Contains(err.Error(), c.want) || p.cause != verdict.DownClosed {
						t.Errorf("%s, %s: the %s's end: %v, want it closed because of %q", kind, c.name, side, err, c.want)
					}
					if got := p.got(); len(got) != 0 {
						t.Errorf("%s, %s: the %s got %v, want nothing", kind, c.name, side, got)
					}
				}
			}
		})
	}
}

// TestProofOfIncarnation: only the node itself can answer a challenge, each once.
func TestProofOfIncarnation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		challenge := []byte("0123456789abcdef")
		up := must(b.dialer(endB).Lifeline(t.Context(), hostAddress, Target{UUID: uuidA}, challenge))
		up.Start(func() {}, func(verdict.DownCause, error) {})
		defer up.Close("seen")
		there := <-b.lines
		there.Start(func() {}, func(verdict.DownCause, error) {})
		third := b.store(addr.UUID{0xDD}, false)
		check := func(node addr.UUID, incarnation addr.Incarnation, challenge, proof []byte) error {
			return VerifyProof(third, node, b.end.Epoch, incarnation, challenge, proof)
		}
		if err := check(uuidA, b.end.Incarnation, challenge, up.Proof()); err != nil {
			t.Errorf("the true one: %v", err)
		}
		forged := must(SignProof(b.store(uuidB, false), b.end, challenge))
		other := b.end
		other.Incarnation.Generation++
		for what, err := range map[string]error{
			"signed by another node": check(uuidA, b.end.Incarnation, challenge, forged),
			"of another node":        check(uuidB, b.end.Incarnation, challenge, up.Proof()),
			"of another incarnation": check(uuidA, other.Incarnation, challenge, up.Proof()),
			"of another challenge":   check(uuidA, b.end.Incarnation, []byte("fedcba9876543210"), up.Proof()),
			"a lease":                check(uuidA, b.end.Incarnation, challenge, b.lease),
			"nothing":                check(uuidA, b.end.Incarnation, challenge, nil),
		} {
			if err == nil {
				t.Errorf("%s is a proof", what)
			}
		}
	})
}

// TestALeaseBelongsToAKey: a lease that another certificate of the same node's UUID
// shows is worth nothing.
func TestALeaseBelongsToAKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		incarnation := addr.Incarnation{Node: 4, Generation: 2}
		lease := b.leaseOf(incarnation)
		thief := b.dialer(endB)
		thief.Store = must(trust.NewStore(must(trust.IssueCredentials(b.ca,
			trust.Identity{Cluster: b.cluster, Node: uuidB}, time.Now(), time.Hour)), time.Now))
		end := endB
		end.Incarnation = incarnation
		thief.Self = func() (End, []byte) { return end, lease }
		_, err := thief.Lifeline(t.Context(), hostAddress, Target{UUID: uuidA}, nil)
		if r, ok := errors.AsType[*RefusedError](err); !ok || r.Code != CodeIdentity || !strings.Contains(r.Text, "another key") {
			t.Errorf("lifeline: %v, want a refusal for the key", err)
		}
		s := must(thief.Session(t.Context(), hostAddress))
		host := <-b.sessions
		tap, hostTap := newTap(), newTap()
		s.Start(tap.message, tap.ended)
		host.Start(hostTap.message, hostTap.ended)
		s.Send(verdict.Resume{Identity: claims(uuidB, 5), Incarnation: incarnation, Lease: lease})
		if err := <-hostTap.down; err == nil || !strings.Contains(err.Error(), "another key") {
			t.Errorf("RESUME: %v, want a refusal for the key", err)
		}
	})
}
