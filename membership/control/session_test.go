package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

const hostAddress = "10.0.0.1:7946"

// A bench is a host at hostAddress and a node at 10.0.0.2, with certificates of
// one CA.
type bench struct {
	t        *testing.T
	net      *netsim.Network
	ca       *trust.CA
	cluster  addr.UUID
	server   *Server
	log      lockedBuffer
	sessions chan *Session
	lines    chan *Lifeline
	tokens   *trust.TokenStore
	end      End    // of the host
	lease    []byte // of the host's incarnation

	mu     sync.Mutex // guards stores
	stores map[trust.Identity]*trust.Store
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// claims returns the claims of an honest node with this UUID.
func claims(u addr.UUID, epoch uint64) verdict.Identity {
	return verdict.Identity{UUID: u, Epoch: epoch, Claims: sayA.Claims}
}

func newBench(t *testing.T, change ...func(*Config)) *bench {
	b := &bench{
		t:        t,
		net:      netsim.New(1),
		cluster:  addr.UUID{0xC1},
		sessions: make(chan *Session, 8),
		lines:    make(chan *Lifeline, 8),
		tokens:   trust.NewTokenStore(),
		end:      End{UUID: uuidA, Epoch: 1, Incarnation: addr.Incarnation{Generation: 1}, Term: 1, Host: true},
	}
	b.net.SetDefaultRules(netsim.Rules{Delay: 250 * time.Microsecond})
	b.ca = must(trust.NewCA(b.cluster, time.Now()))
	store := b.store(uuidA, true)
	b.lease = must(SignLease(store, Lease{Cluster: b.cluster, UUID: uuidA, Key: store.Identity().Key, Epoch: 1, Incarnation: b.end.Incarnation, Term: 1}))
	cfg := Config{
		Listener: must(b.net.Listen(hostAddress)),
		Store:    store,
		Self:     func() (End, []byte) { return b.end, b.lease },
		Session:  func(s *Session) { b.sessions <- s },
		Lifeline: func(l *Lifeline) { b.lines <- l },
		Log:      zerolog.New(&b.log),
	}
	cfg.Join = func(cs tls.ConnectionState, ask JoinAsk) (JoinGrant, error) {
		if _, err := b.tokens.Redeem(ask.Token, ask.Proof, cs, time.Now()); err != nil {
			return JoinGrant{}, Refusef(CodeToken, "%v", err)
		}
		return JoinGrant{Cluster: b.cluster, Host: uuidA, Certificate: []byte("certificate")}, nil
	}
	for _, f := range change {
		f(&cfg)
	}
	b.server = Serve(cfg)
	return b
}

func (b *bench) close() {
	b.server.Close()
	b.net.Close()
	time.Sleep(15 * time.Second)
	synctest.Wait()
}

// store returns credentials of this cluster.
func (b *bench) store(node addr.UUID, host bool) *trust.Store {
	id := trust.Identity{Cluster: b.cluster, Node: node, Host: host}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stores == nil {
		b.stores = make(map[trust.Identity]*trust.Store)
	}
	if b.stores[id] == nil { // of one node always the same key
		b.stores[id] = must(trust.NewStore(must(trust.IssueCredentials(b.ca, id, time.Now(), time.Hour)), time.Now))
	}
	return b.stores[id]
}

// dialer returns a dialer of node B that claims to be self.
func (b *bench) dialer(self End) *Dialer {
	return &Dialer{Store: b.store(uuidB, false), Self: func() (End, []byte) { return self, nil }, Dial: b.dial}
}

func (b *bench) dial(ctx context.Context, to string) (net.Conn, error) {
	return b.net.Dial(ctx, "10.0.0.2", to)
}

var endB = End{UUID: uuidB, Epoch: 5}

// A tap records the calls of a session or lifeline.
type tap struct {
	mu       sync.Mutex
	messages []any
	beats    int
	down     chan error
	cause    verdict.DownCause
}

func newTap() *tap { return &tap{down: make(chan error, 1)} }

func (p *tap) message(m any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages = append(p.messages, m)
}

func (p *tap) alive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats++
}

func (p *tap) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beats
}

func (p *tap) ended(c verdict.DownCause, err error) {
	p.cause = c
	p.down <- err
}

func (p *tap) got() []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]any(nil), p.messages...)
}

// pair opens a session and starts both ends.
func (b *bench) pair() (node, host *Session, nodeTap, hostTap *tap) {
	node = must(b.dialer(endB).Session(b.t.Context(), hostAddress))
	host = <-b.sessions
	nodeTap, hostTap = newTap(), newTap()
	node.Start(nodeTap.message, nodeTap.ended)
	host.Start(hostTap.message, hostTap.ended)
	return node, host, nodeTap, hostTap
}

func TestSessionCarriesMessagesBothWaysAndClosesOnPurpose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		node, host, nodeTap, hostTap := b.pair()
		if node.Peer() != b.end || host.Peer() != endB {
			t.Errorf("peers %+v and %+v, want %+v and %+v", node.Peer(), host.Peer(), b.end, endB)
		}
		for i := range 100 {
			node.Send(verdict.Ping{Nonce: uint64(i)})
			host.Send(verdict.Pong{Nonce: uint64(i)})
		}
		time.Sleep(10 * time.Millisecond) // messages after Close are dropped
		node.Send(verdict.Leave{})
		node.Close("left")
		if err := <-hostTap.down; hostTap.cause != verdict.DownClosed || err.Error() != "closed by peer: left" {
			t.Errorf("the host's end: %v (cause %d), want closed by peer: left", err, hostTap.cause)
		}
		if err := <-nodeTap.down; nodeTap.cause != verdict.DownClosed || err.Error() != "closed here: left" {
			t.Errorf("the node's end: %v (cause %d), want closed here: left", err, nodeTap.cause)
		}
		got := hostTap.got()
		if len(got) != 101 || got[42] != (verdict.Ping{Nonce: 42}) || got[100] != (verdict.Leave{}) {
			t.Errorf("the host got %d messages, want 100 pings and a leave in order", len(got))
		}
		if got := nodeTap.got(); len(got) != 100 || got[99] != (verdict.Pong{Nonce: 99}) {
			t.Errorf("the node got %d messages, want 100 pongs in order", len(got))
		}
		<-node.Done()
		<-host.Done()
		if err := node.Send(verdict.Sync{}); err == nil {
			t.Error("Send on a closed session succeeded")
		}
	})
}

func TestDeathOfTheProcessEndsTheSessionAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		_, _, _, hostTap := b.pair()
		began := time.Now()
		b.net.Crash("10.0.0.2")
		<-hostTap.down
		if took := time.Since(began); took > time.Millisecond || hostTap.cause != verdict.DownEnded {
			t.Errorf("the host knew after %v (cause %d), want within 1ms that it ended", took, hostTap.cause)
		}
	})
}

func TestPeerThatDoesNotReadIsClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		node := must(b.dialer(endB).Session(t.Context(), hostAddress))
		host := <-b.sessions
		hostTap := newTap()
		host.Start(hostTap.message, hostTap.ended) // node is not started: it reads nothing
		sent, fill := 0, 0.0
		var err error
		for err == nil && sent < 16<<20 {
			fill = host.Fill()
			err = host.Send(verdict.Refused{Text: strings.Repeat("x", verdict.MaxText)})
			sent += verdict.MaxText
		}
		if fill < 0.99 || fill > 1 {
			t.Errorf("the queue was %v full before the message that it did not take", fill)
		}
		if !errors.Is(err, errSlow) {
			t.Errorf("after %d bytes: %v, want that the peer does not read", sent, err)
		}
		if err := <-hostTap.down; !errors.Is(err, errSlow) || hostTap.cause != verdict.DownSilent {
			t.Errorf("end %v (cause %d), want that the peer does not read", err, hostTap.cause)
		}
		node.Abort()
	})
}

func TestCloseDoesNotWaitForASilentPeer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		node, host, _, _ := b.pair()
		b.net.Partition([]string{"10.0.0.1"}, []string{"10.0.0.2"})
		began := time.Now()
		host.Close("bye")
		<-host.Done()
		if took := time.Since(began); took > closeTimeout+10*time.Millisecond {
			t.Errorf("Close took %v, want at most %v", took, closeTimeout)
		}
		node.Abort()
	})
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		server func(*Config)
		self   End
		code   Code
		want   string
	}{
		{"another's UUID", nil, End{UUID: addr.UUID{0xEE}, Epoch: 5}, CodeIdentity, "its certificate is for"},
		{"host role without a host certificate", nil, End{UUID: uuidB, Epoch: 5, Host: true}, CodeRole, "claims the host role"},
		{"no host", func(c *Config) { c.Session = nil }, endB, CodeRole, "is not the host"},
		{"not admitted", func(c *Config) {
			c.Admit = func(string, Hello, trust.Identity, Lease) error {
				return Refusef(CodeFenced, "incarnation 3.1 is over")
			}
		}, endB, CodeFenced, "incarnation 3.1 is over"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				change := c.server
				if change == nil {
					change = func(*Config) {}
				}
				b := newBench(t, change)
				defer b.close()
				s, err := b.dialer(c.self).Session(t.Context(), hostAddress)
				if err == nil {
					s.Abort()
				}
				var r *RefusedError
				if !errors.As(err, &r) || r.Code != c.code || !r.Remote || !strings.Contains(r.Text, c.want) {
					t.Errorf("the node's error: %v, want refusal %d by the peer that says %q", err, c.code, c.want)
				}
				time.Sleep(time.Second)
				if got := b.log.String(); !strings.Contains(got, c.want) {
					t.Errorf("the host's log: %s, want it to say %q", got, c.want)
				}
			})
		})
	}
}

func TestVersionsAreNamedByBothSides(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		l := must(dialTLS(t.Context(), b.dial, hostAddress, b.store(uuidB, false).ClientTLS(nil, ProtoControl)))
		l.write(Hello{VersionMin: 7, VersionMax: 9, Cluster: b.cluster, From: endB})
		f, err := l.read()
		r, _ := f.(Refuse)
		if err != nil || r.Code != CodeVersion || r.VersionMin != VersionMin || r.VersionMax != VersionMax ||
			!strings.Contains(r.Text, "here 2 to 4, there 7 to 9") {
			t.Errorf("answer %+v, %v, want a refusal with both sides' versions", f, err)
		}
		l.raw.Close()
	})
}

func TestWrongCertificatesAreRefusedOnBothSides(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		foreign := must(trust.NewCA(b.cluster, time.Now()))
		d := b.dialer(endB)
		d.Store = must(trust.NewStore(must(trust.IssueCredentials(foreign,
			trust.Identity{Cluster: b.cluster, Node: uuidB}, time.Now(), time.Hour)), time.Now))
		if _, err := d.Session(t.Context(), hostAddress); !errors.Is(err, trust.ErrWrongCA) {
			t.Errorf("a node of another CA: %v, want ErrWrongCA", err)
		}
		// The other way round: a node without the host role answers as host.
		cfg := Config{Listener: must(b.net.Listen("10.0.0.3:7946")), Store: b.store(addr.UUID{0xDD}, false),
			Self: func() (End, []byte) { return End{UUID: addr.UUID{0xDD}, Epoch: 1}, nil }, Log: zerolog.New(&b.log),
			Session: func(s *Session) { s.Abort() }}
		impostor := Serve(cfg)
		defer impostor.Close()
		if _, err := b.dialer(endB).Session(t.Context(), "10.0.0.3:7946"); !errors.Is(err, trust.ErrNotHost) {
			t.Errorf("an impostor host: %v, want ErrNotHost", err)
		}
		time.Sleep(time.Second)
		if got := b.log.String(); strings.Count(got, "connection refused") != 2 {
			t.Errorf("log %s, want both refusals", got)
		}
	})
}

func TestSessionRefusesWhatThePeerMustNotSay(t *testing.T) {
	for name, c := range map[string]struct {
		m    verdict.Message
		want string
	}{
		"another node's join": {verdict.Join{Identity: claims(addr.UUID{0xEE}, 5)}, "on a session of node"},
		"another start":       {verdict.Join{Identity: claims(uuidB, 6)}, "on a session of start 5"},
		"another's resume":    {verdict.Resume{Identity: claims(addr.UUID{0xEE}, 5)}, "on a session of node"},
		"a host's message":    {verdict.Grant{Term: 1}, "wrong end"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.close()
				node, _, nodeTap, hostTap := b.pair()
				node.Send(verdict.Sync{})
				node.Send(c.m)
				for side, p := range map[string]*tap{"node": nodeTap, "host": hostTap} {
					if err := <-p.down; !strings.Contains(err.Error(), c.want) || p.cause != verdict.DownClosed {
						t.Errorf("the %s's end: %v (cause %d), want it closed because of %q", side, err, p.cause, c.want)
					}
				}
				if got := hostTap.got(); len(got) != 1 {
					t.Errorf("the host got %v, want only the Sync before", got)
				}
			})
		})
	}
}

func TestGarbageEndsTheSession(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		node, _, nodeTap, hostTap := b.pair()
		node.pipe.link.tls.Write([]byte{0, 0, 0, 1, 99, 0})
		if err := <-hostTap.down; !errors.Is(err, ErrMalformed) {
			t.Errorf("the host's end: %v, want ErrMalformed", err)
		}
		if err := <-nodeTap.down; !strings.Contains(err.Error(), "malformed") {
			t.Errorf("the node's end: %v, want the reason", err)
		}
		node, _, _, hostTap = b.pair()
		node.pipe.link.tls.Write([]byte{0xFF, 0xFF, 0xFF, 0xFF, 1})
		if err := <-hostTap.down; !errors.Is(err, ErrMalformed) {
			t.Errorf("a length of 4 GiB: %v, want ErrMalformed", err)
		}
	})
}

func TestLifeline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		here := must(b.dialer(endB).Lifeline(t.Context(), hostAddress, Target{UUID: uuidA, Epoch: 1}, nil))
		there := <-b.lines
		hereTap, thereTap := newTap(), newTap()
		here.Start(hereTap.alive, hereTap.ended)
		there.Start(thereTap.alive, thereTap.ended)
		for range 10 {
			here.Beat()
			time.Sleep(10 * time.Millisecond)
		}
		if n, m := hereTap.count(), thereTap.count(); n != 10 || m != 10 {
			t.Errorf("%d answers to 10 signs of life, of which %d arrived, want all", n, m)
		}
		b.net.Partition([]string{"10.0.0.1"}, []string{"10.0.0.2"})
		for range 1000 {
			here.Beat()
		}
		if n := here.pipe.waiting(); n > 100 {
			t.Errorf("%d bytes wait for a silent peer, want a sign of life or two", n)
		}
		b.net.Heal()
		if here.Peer() != b.end || there.Peer() != endB {
			t.Errorf("peers %+v and %+v", here.Peer(), there.Peer())
		}
		b.net.Crash("10.0.0.1")
		<-hereTap.down
		if hereTap.cause != verdict.DownEnded {
			t.Errorf("cause %d, want that it ended", hereTap.cause)
		}
		<-thereTap.down
	})
}

// waiting returns how many bytes are queued.
func (p *pipe) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}

func TestLifelineToAnotherNodeIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		if _, err := b.dialer(endB).Lifeline(t.Context(), hostAddress, Target{UUID: addr.UUID{0xEE}}, nil); err == nil ||
			!strings.Contains(err.Error(), "answered instead of") {
			t.Errorf("error %v, want that another node answered", err)
		}
		if _, err := b.dialer(endB).Lifeline(t.Context(), "10.0.0.1:1", Target{UUID: uuidA}, nil); err == nil {
			t.Error("a lifeline to a closed port opened")
		}
		began := time.Now()
		b.net.Partition([]string{"10.0.0.1"}, []string{"10.0.0.2"})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := b.dialer(endB).Lifeline(ctx, hostAddress, Target{UUID: uuidA}, nil); err == nil || time.Since(began) > 101*time.Millisecond {
			t.Errorf("a cut link: %v after %v, want an error when the context ends", err, time.Since(began))
		}
	})
}

func TestSilentStrangersAreClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		var conns []net.Conn
		for range openings.PerAddress + 10 {
			conns = append(conns, must(b.dial(t.Context(), hostAddress)))
		}
		time.Sleep(100 * time.Millisecond)
		if n := b.server.openings(); n != openings.PerAddress {
			t.Errorf("%d openings of one address, want at most %d", n, openings.PerAddress)
		}
		time.Sleep(openTimeout)
		if n := b.server.openings(); n != 0 {
			t.Errorf("%d openings after %v of silence, want none", n, openTimeout)
		}
		for _, c := range conns {
			c.Close()
		}
		if _, err := b.dialer(endB).Session(t.Context(), hostAddress); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		(<-b.sessions).Abort()
	})
}

func TestJoin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		token := must(b.tokens.Create(b.cluster, b.ca.Pin(), trust.TokenOptions{MaxUses: 1}, time.Now()))
		wrong := must(trust.NewTokenStore().Create(b.cluster, b.ca.Pin(), trust.TokenOptions{}, time.Now()))
		wrong.ID = token.ID
		otherCA := token
		otherCA.Pin[0] ^= 1
		ask := JoinAsk{Name: "b", Request: []byte("request")}
		for _, c := range []struct {
			name  string
			token trust.Token
			want  string
			code  Code
		}{
			{"wrong secret", wrong, "wrong proof", CodeToken},
			{"wrong pin", otherCA, "not the one that the token names", 0},
			{"good", token, "", 0},
			{"used up", token, "used up", CodeToken},
		} {
			g, err := Ask(t.Context(), b.dial, hostAddress, c.token, time.Now, ask)
			var r *RefusedError
			errors.As(err, &r)
			switch {
			case c.want == "":
				if err != nil || g.Host != uuidA || g.Cluster != b.cluster {
					t.Errorf("%s: %+v, %v", c.name, g, err)
				}
			case err == nil || !strings.Contains(err.Error(), c.want):
				t.Errorf("%s: error %v, want it to say %q", c.name, err, c.want)
			case c.code != 0 && (r == nil || r.Code != c.code || !r.Remote):
				t.Errorf("%s: error %v, want refusal %d by the host", c.name, err, c.code)
			}
		}
		time.Sleep(time.Second)
		for _, want := range []string{"wrong proof", "used up"} {
			if !strings.Contains(b.log.String(), want) {
				t.Errorf("the host's log does not say %q: %s", want, b.log.String())
			}
		}
	})
}

func TestJoinAtANodeThatIsNotTheHost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) {
			c.Join, c.Session = nil, nil
		})
		defer b.close()
		token := must(b.tokens.Create(b.cluster, b.ca.Pin(), trust.TokenOptions{}, time.Now()))
		_, err := Ask(t.Context(), b.dial, hostAddress, token, time.Now, JoinAsk{Name: "b"})
		var r *RefusedError
		if !errors.As(err, &r) || r.Code != CodeRole {
			t.Errorf("error %v, want that it is not the host", err)
		}
		if _, err := Ask(t.Context(), b.dial, "10.0.0.9:1", token, time.Now, JoinAsk{Name: "b"}); err == nil || errors.As(err, &r) && r.Remote && r.Code != CodeRole {
			t.Errorf("no listener: %v, want an error of the dial", err)
		}
	})
}

func TestErrorsReadWell(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Refusef(CodeBusy, "%s", strings.Repeat("ä", 200)).Error(), "peer refused: " + strings.Repeat("ä", 128)},
		{(&RefusedError{Text: "x", Remote: true}).Error(), "refused by peer: x"},
		{(&ClosedError{}).Error(), "closed here"},
		{fmt.Sprint(&ClosedError{Text: "y", Remote: true}), "closed by peer: y"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestAPanicEndsTheSessionAlone: a message over which its receiver panics ends the
// session on which it has come, and the owner is notified of it with the stack.
func TestAPanicEndsTheSessionAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		guard.Catch(t)
		b := newBench(t)
		defer b.close()
		node := must(b.dialer(endB).Session(t.Context(), hostAddress))
		host := <-b.sessions
		nodeTap, hostTap := newTap(), newTap()
		node.Start(nodeTap.message, nodeTap.ended)
		host.Start(func(any) { panic("a message that was not expected") }, hostTap.ended)
		other, otherHost, _, otherTap := b.pair()
		before := guard.Caught()
		node.Send(verdict.Ping{Nonce: 1})
		if err := <-hostTap.down; !strings.Contains(err.Error(), "was not expected") || !strings.Contains(err.Error(), "session_test.go") {
			t.Errorf("the owner receives %v, want the panic with its stack", err)
		}
		<-nodeTap.down
		if guard.Caught() != before+1 {
			t.Errorf("%d panics are counted, want one more than %d", guard.Caught(), before)
		}
		other.Send(verdict.Ping{Nonce: 2})
		time.Sleep(time.Second)
		otherTap.mu.Lock()
		if len(otherTap.messages) != 1 {
			t.Errorf("another session has received %v", otherTap.messages)
		}
		otherTap.mu.Unlock()
		other.Close("done")
		<-otherHost.Done()
	})
}

// A node of the version before gets that version, and its session reports it: a sender of services
// asks first.
func TestTheVersionBeforeIsSpoken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		l := must(dialTLS(t.Context(), b.dial, hostAddress, b.store(uuidB, false).ClientTLS(nil, ProtoControl)))
		l.write(Hello{VersionMin: 2, VersionMax: 2, Cluster: b.cluster, From: endB})
		f, err := l.read()
		w, _ := f.(Welcome)
		if err != nil || w.Version != 2 {
			t.Errorf("answer %+v, %v, want a welcome in version 2", f, err)
		}
		if s := <-b.sessions; s.Version() != 2 || s.Version() >= ServicesVersion {
			t.Errorf("the host's session has version %d, want 2", s.Version())
		} else {
			s.Abort()
		}
		l.raw.Close()
	})
}
