package hostile

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A badMember has enrolled with a token as an honest node does, and then sends any
// message. It is good wherever an attack does not make it bad: it pings, it
// answers checks about itself, lifelines and links, and it takes keys, so that the
// cluster has no other reason to end it than the attack.
//
// Only this file knows the formats of joining, leases and HELLO.
type badMember struct {
	f       *fleet
	name    string
	id      trust.Identity
	store   *trust.Store
	keyring trust.Keyring
	epoch   uint64
	address string // where its data plane answers; empty: nowhere

	veto    atomic.Bool  // never confirm gossip keys
	reaches atomic.Bool  // claim to reach every node
	lies    atomic.Int64 // of these

	stop context.CancelFunc
	work sync.WaitGroup
	ctx  context.Context // ends with stop

	mu          sync.Mutex       // guards the fields below
	incarnation addr.Incarnation // the zero Incarnation before it has one, and when that is over
	lease       []byte
	term        uint64 // of the host
	version     uint64 // of the table that it has seen
	links       *quic.Provider
	control     *control.Server
	open        []*control.Session
}

// enrolAt gets a certificate with a token from the host at an address, for a new key.
// The host chooses the UUID and puts it into the certificate.
func enrolAt(host, token, name string) (creds trust.Credentials, grant control.JoinGrant, err error) {
	t, err := trust.ParseToken(token)
	if err != nil {
		return creds, grant, err
	}
	request, key, err := trust.NewRequest()
	if err != nil {
		return creds, grant, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	grant, err = control.Ask(ctx, dialTCP, host, t, time.Now, control.JoinAsk{Name: name, Request: request})
	if err != nil {
		return creds, grant, err
	}
	creds, err = trust.NewCredentials(key, grant.Certificate, grant.Roots, time.Now())
	return creds, grant, err
}

// enrol makes a member with a token, and gives it nothing but its certificate.
func (f *fleet) enrol(token, name string) (*badMember, error) {
	creds, grant, err := enrolAt(f.host().address(), token, name)
	if err != nil {
		return nil, err
	}
	b := &badMember{f: f, name: name, epoch: uint64(time.Now().UnixNano())}
	if b.id, err = creds.Identity(); err != nil {
		return nil, err
	}
	if b.keyring, err = trust.DecodeKeyring(grant.Keyring); err != nil {
		return nil, err
	}
	if b.store, err = trust.NewStore(creds, time.Now); err != nil {
		return nil, err
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// newUUID returns a UUID that no node has.
func newUUID() (u addr.UUID) {
	_, _ = rand.Read(u[:]) // never fails
	return u
}

// bad enrols a member with a token of its own and gives it a data plane and an
// incarnation, as an honest start would.
func (f *fleet) bad(name string) (*badMember, *badSession, error) {
	token, err := f.token(1)
	if err != nil {
		return nil, nil, err
	}
	b, err := f.enrol(token, name)
	if err != nil {
		return nil, nil, fmt.Errorf("%s enrols: %w", name, err)
	}
	s, err := b.live()
	if err != nil {
		b.close()
		return nil, nil, fmt.Errorf("%s joins: %w", name, err)
	}
	return b, s, nil
}

// live gives the member a data plane and an incarnation.
func (b *badMember) live() (*badSession, error) {
	if err := b.serve(); err != nil {
		return nil, err
	}
	s, err := b.session()
	if err != nil {
		return nil, err
	}
	return s, s.join(b.asks())
}

// asks is how it asks for an incarnation if it is honest.
func (b *badMember) asks() verdict.Join {
	address := b.address
	if address == "" {
		address = b.f.ip + ":9"
	}
	return verdict.Join{Identity: says(b.id.Node, b.epoch, b.name, address)}
}

// says returns the claims of an honest node about itself.
func says(u addr.UUID, epoch uint64, name, address string) verdict.Identity {
	claims, err := verdict.NewClaims(name, []string{address}, []string{"quic"})
	if err != nil {
		panic("BUG: hostile: " + err.Error())
	}
	return verdict.Identity{UUID: u, Epoch: epoch, Claims: claims}
}

// resumes is how it asks to keep its incarnation.
func (b *badMember) resumes() verdict.Resume {
	b.mu.Lock()
	defer b.mu.Unlock()
	return verdict.Resume{Identity: b.asks().Identity, Incarnation: b.incarnation, Lease: b.lease}
}

// end is its own End in an opening.
func (b *badMember) end() (control.End, []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return control.End{UUID: b.id.Node, Epoch: b.epoch, Incarnation: b.incarnation, Term: b.term}, b.lease
}

// self returns its incarnation, the zero Incarnation if it has none.
func (b *badMember) self() addr.Incarnation {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.incarnation
}

// close ends the member as the death of its process would.
func (b *badMember) close() {
	b.stop()
	b.mu.Lock()
	open, links, server := b.open, b.links, b.control
	b.open, b.links, b.control = nil, nil, nil
	b.mu.Unlock()
	for _, s := range open {
		s.Abort()
		<-s.Done()
	}
	if server != nil {
		server.Close()
	}
	if links != nil {
		links.Close()
	}
	b.work.Wait()
}

// A badSession is a control session of a bad member.
type badSession struct {
	b       *badMember
	s       *control.Session
	answers chan any      // GRANT, REFUSED, CERTIFICATE, as they come; bounded, more is dropped
	down    chan struct{} // closed at the end
	why     error         // of the end; read after down
}

// session opens a control session with the host, which has said nothing yet.
func (b *badMember) session() (*badSession, error) {
	d := control.Dialer{Store: b.store, Dial: dialTCP, Self: b.end}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	s, err := d.Session(ctx, b.f.host().address())
	if err != nil {
		return nil, err
	}
	x := &badSession{b: b, s: s, answers: make(chan any, 64), down: make(chan struct{})}
	s.Start(x.receive, func(_ verdict.DownCause, err error) {
		x.why = err
		close(x.down)
	})
	b.mu.Lock()
	b.open = append(b.open, s)
	b.mu.Unlock()
	b.work.Go(x.ping)
	return x, nil
}

// say sends a message of an attack. The attack itself has to notice that the session
// has ended.
func (x *badSession) say(m any) { _ = x.s.Send(m) }

// ping sends the pings that keep an incarnation alive.
func (x *badSession) ping() {
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	for nonce := uint64(1); ; nonce++ {
		select {
		case <-x.down:
			return
		case <-x.b.ctx.Done():
			return
		case <-every.C:
			x.b.mu.Lock()
			p := verdict.Ping{Incarnation: x.b.incarnation, Nonce: nonce, Version: x.b.version}
			x.b.mu.Unlock()
			if p.Incarnation != (addr.Incarnation{}) {
				x.say(p)
			}
		}
	}
}

// receive answers the host's messages as an honest node does, unless the member
// is set to do otherwise.
func (x *badSession) receive(m any) {
	switch m := m.(type) {
	case verdict.Check:
		if m.Incarnation == x.b.self() {
			x.say(verdict.CheckResult{Nonce: m.Nonce, Target: m.Incarnation, Reached: true})
		} else if x.b.reaches.Load() {
			x.b.lies.Add(1)
			x.lie(m)
		}
	case verdict.Table:
		x.saw(m.Version)
	case verdict.Delta:
		x.saw(m.Version)
	case verdict.RemovedIncarnation:
		x.saw(m.Version)
		x.b.mu.Lock()
		if m.Incarnation == x.b.incarnation {
			x.b.incarnation, x.b.lease = addr.Incarnation{}, nil
		}
		x.b.mu.Unlock()
		x.say(verdict.Ack{Incarnation: m.Incarnation})
	case control.Keys:
		if !x.b.veto.Load() {
			x.say(control.KeysHeld{Seq: m.Seq})
		}
	case control.Roots:
		x.say(control.RootsHeld{Seq: m.Seq})
	case verdict.Grant:
		x.b.mu.Lock()
		x.b.incarnation, x.b.lease, x.b.term = m.Incarnation, m.Lease, m.Term
		x.b.mu.Unlock()
		x.answer(m)
	case verdict.Refused, control.Certificate:
		x.answer(m)
	}
}

// lie says that the target of a check is reached: without a proof, with one by the
// member's own key, and with the member's lease in place of one.
func (x *badSession) lie(m verdict.Check) {
	self, lease := x.b.end()
	forged, err := control.SignProof(x.b.store, control.End{UUID: m.UUID, Epoch: m.Epoch, Incarnation: m.Incarnation, Term: self.Term}, m.Challenge)
	if err != nil {
		return // its certificate is over
	}
	for _, proof := range [][]byte{nil, forged, lease} {
		x.say(verdict.CheckResult{Nonce: m.Nonce, Target: m.Incarnation, Reached: true, Proof: proof})
	}
}

// saw takes note of how new the host's table is.
func (x *badSession) saw(version uint64) {
	x.b.mu.Lock()
	defer x.b.mu.Unlock()
	x.b.version = max(x.b.version, version)
}

func (x *badSession) answer(m any) {
	select {
	case x.answers <- m:
	default:
	}
}

// errSaidNothing is the error of asking when the host gives no reason why not.
var errSaidNothing = errors.New("the host gives no reason")

// join asks for an incarnation. An error is the host's refusal, in whatever form.
func (x *badSession) join(j verdict.Join) error { return x.ask(j) }

// ask says m, a JOIN or RESUME, and waits for the answer.
func (x *badSession) ask(m any) error {
	if err := x.s.Send(m); err != nil {
		return err
	}
	for {
		select {
		case a := <-x.answers:
			switch a := a.(type) {
			case verdict.Grant:
				return nil
			case verdict.Refused:
				return fmt.Errorf("refused: %s: %s", a.Code, a.Text)
			}
		case <-x.down:
			if c, ok := errors.AsType[*control.ClosedError](x.why); ok && c.Remote && c.Text != "" {
				return fmt.Errorf("the host ends the session: %w", x.why)
			}
			return fmt.Errorf("%w: %w", errSaidNothing, x.why)
		case <-time.After(patience):
			return fmt.Errorf("%w, nor an answer", errSaidNothing)
		}
	}
}

// abort ends the session as the death of its process would.
func (x *badSession) abort() {
	x.s.Abort()
	<-x.s.Done()
}

// alive reports whether the session goes on.
func (x *badSession) alive() bool {
	select {
	case <-x.down:
		return false
	default:
		return true
	}
}

// serve answers on a data address of its own as an honest node does: lifelines
// over TCP, links over QUIC.
func (b *badMember) serve() error {
	address := fmt.Sprintf("%s:%d", b.f.ip, b.f.freePort())
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	b.address = address
	b.control = control.Serve(control.Config{Listener: listener, Store: b.store, Self: b.end, Log: zerolog.Nop(),
		Lifeline: func(l *control.Lifeline) {
			l.Start(func() {}, func(verdict.DownCause, error) {})
			b.work.Go(func() {
				select {
				case <-l.Done():
				case <-b.ctx.Done():
					l.Abort()
					<-l.Done()
				}
			})
		}})
	if b.links, err = b.provider(address); err != nil {
		return err
	}
	links := b.links
	b.work.Go(func() {
		for {
			s, err := links.Accept(b.ctx)
			if err != nil {
				return
			}
			b.work.Go(func() { b.welcome(s) })
		}
	})
	return nil
}

// provider returns a QUIC provider with the member's certificate.
func (b *badMember) provider(address string) (*quic.Provider, error) {
	return quic.New(quic.Config{Address: address, IdleTimeout: silenceBound, Config: network.Config{
		ServerTLS: func() *tls.Config { return b.store.ServerTLS(quic.ALPN) },
		ClientTLS: func() *tls.Config { return b.store.ClientTLS(nil, quic.ALPN) },
		Identify:  identify, Log: zerolog.Nop()}})
}

// welcome answers a link, its keepalives and its probes until it ends.
func (b *badMember) welcome(s transport.Session) {
	defer s.Close(transport.CodeOK, "")
	stream, err := s.AcceptStream(b.ctx)
	if err != nil {
		return
	}
	in := wire.NewReader(stream)
	h, body, err := in.Next()
	if err != nil || h.Type != wire.TypeHello {
		return
	}
	theirs, err := wire.ParseHello(h.Flags, body)
	if err != nil || skipLease(in) != nil {
		return
	}
	out, err := s.OpenStream(b.ctx)
	if err != nil {
		return
	}
	answer := b.hello(theirs.From, theirs.Term)
	answer.Answer, answer.VersionMin = true, answer.VersionMax
	_, _ = out.Write(b.withLease(answer, nil)) // that the peer has gone, the next read reports
	b.keep(s, in, out)
}

// keep answers the keepalives and probes of a link until it ends.
func (b *badMember) keep(s transport.Session, in *wire.Reader, out transport.SendStream) {
	b.work.Go(func() {
		for {
			p, err := s.ReceiveDatagram(b.ctx)
			if err != nil {
				return
			}
			if beat, err := wire.ParseHeartbeat(p); err == nil {
				_ = s.SendDatagram(wire.HeartbeatAck{Seq: beat.Seq, Sent: beat.Sent, From: beat.To, To: beat.From}.AppendTo(nil))
			}
		}
	})
	for {
		h, body, err := in.Next()
		if err != nil {
			return
		}
		if p, err := wire.ParseProbe(h.Flags, body); h.Type == wire.TypeProbe && err == nil {
			_, _ = out.Write(wire.ProbeAck{Nonce: p.Nonce, From: p.To, To: p.From}.AppendTo(nil))
		}
	}
}

// hello is the HELLO of an honest node at the opening of a link.
func (b *badMember) hello(to addr.Incarnation, term uint64) wire.Hello {
	return wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Cluster: b.id.Cluster, Term: term,
		From: b.self(), FromUUID: b.id.Node, FromEpoch: b.epoch, To: to}
}

// withLease encodes a HELLO and the lease behind it: lease, or if that is nil the
// member's own.
func (b *badMember) withLease(h wire.Hello, lease []byte) []byte {
	if lease == nil {
		_, lease = b.end()
	}
	return append(wire.Lease{Length: uint32(len(lease))}.AppendTo(h.AppendTo(nil)), lease...)
}

// skipLease reads the lease behind a peer's HELLO.
func skipLease(in *wire.Reader) error {
	h, body, err := in.Next()
	if err != nil {
		return err
	}
	l, err := wire.ParseLease(h.Flags, body)
	if err != nil || h.Type != wire.TypeLease {
		return fmt.Errorf("%v behind a HELLO: %w", h.Type, err)
	}
	return in.Discard(int(l.Length))
}

// linkAs opens a link to a node with a HELLO of the member's choice and a lease, nil
// for its own, and returns nil if it is accepted. It is closed then.
func (b *badMember) linkAs(to *machine, h wire.Hello, lease []byte) error {
	s, err := b.link(to, h, lease)
	if err != nil {
		return err
	}
	return s.Close(transport.CodeOK, "")
}

// link opens a link to a node with a HELLO of the member's choice and a lease, nil for
// its own.
func (b *badMember) link(to *machine, h wire.Hello, lease []byte) (transport.Session, error) {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	b.mu.Lock()
	p := b.links
	b.mu.Unlock()
	if p == nil {
		var err error
		if p, err = b.provider(b.f.ip + ":0"); err != nil {
			return nil, err
		}
		b.mu.Lock()
		b.links = p
		b.mu.Unlock()
	}
	s, err := p.Dial(ctx, to.address())
	if err != nil {
		return nil, err
	}
	in, out, err := openLink(ctx, s, b.withLease(h, lease))
	if err != nil {
		s.Close(transport.CodeOK, "")
		return nil, err
	}
	b.work.Go(func() { b.keep(s, in, out) })
	return s, nil
}

// openLink says hello on a session and returns its control stream in both directions. An
// error is the refusal.
func openLink(ctx context.Context, s transport.Session, hello []byte) (*wire.Reader, transport.SendStream, error) {
	out, err := s.OpenStream(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err := out.Write(hello); err != nil {
		return nil, nil, err
	}
	stream, err := s.AcceptStream(ctx)
	if err != nil {
		return nil, nil, err
	}
	in := wire.NewReader(stream)
	head, body, err := in.Next()
	switch {
	case err != nil:
		return nil, nil, err
	case head.Type == wire.TypeHello:
		return in, out, skipLease(in)
	}
	refusal, err := wire.ParseHelloRefuse(head.Flags, body)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("refused: %v: %s", refusal.Code, refusal.Reason)
}

// lifeline opens a lifeline to a node.
func (b *badMember) lifeline(to *machine) (*control.Lifeline, error) {
	d := control.Dialer{Store: b.store, Dial: dialTCP, Self: b.end}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	l, err := d.Lifeline(ctx, to.address(), control.Target{}, nil)
	if err != nil {
		return nil, err
	}
	l.Start(func() {}, func(verdict.DownCause, error) {})
	b.work.Go(func() {
		every := time.NewTicker(200 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				l.Beat()
			case <-l.Done():
				return
			case <-b.ctx.Done():
				l.Abort()
				<-l.Done()
				return
			}
		}
	})
	return l, nil
}

// leaseInWelcome returns the signed lease in the body of a WELCOME; see
// membership/control/SPEC.md.
func leaseInWelcome(body []byte) []byte {
	const before = 2 + 16 + 8 + 6 + 8 + 1 // version, and the answering node
	if len(body) < before+2 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(body[before:]))
	lease := body[before+2:]
	return lease[:min(n, len(lease))]
}

// A stolenLease is the lease in the WELCOME of a lifeline, which any member sees.
type stolenLease struct {
	control.Lease
	signed []byte
}

// greets opens a connection to a node on which the caller writes and reads the frames
// behind HELLO and WELCOME. It returns the body of WELCOME.
func (b *badMember) greets(proto string, to *machine, lease []byte) (*raw, []byte, error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	d := tls.Dialer{Config: b.store.ClientTLS(nil, proto)}
	c, err := d.DialContext(ctx, "tcp", to.address())
	if err != nil {
		return nil, nil, err
	}
	_ = c.SetDeadline(time.Now().Add(patience)) // a connection that is open takes one
	r := &raw{c: c.(*tls.Conn)}
	self, _ := b.end()
	hello, err := control.AppendFrame(nil, control.Hello{VersionMin: control.VersionMin, VersionMax: control.VersionMax,
		Cluster: b.id.Cluster, From: self, Lease: lease})
	if err == nil {
		_, err = c.Write(hello)
	}
	if err == nil {
		kind, body, e := r.next()
		if e == nil && kind == frameWelcome {
			return r, body, nil
		}
		err = fmt.Errorf("frame %d %q instead of a WELCOME: %w", kind, body, e)
	}
	c.Close()
	return nil, nil, err
}

// steal takes the signed lease that a node shows on a lifeline, as it came over the
// wire.
func (b *badMember) steal(from *machine) (stolenLease, error) {
	_, lease := b.end()
	r, body, err := b.greets(control.ProtoLifeline, from, lease)
	if err != nil {
		return stolenLease{}, err
	}
	defer r.c.NetConn().Close()
	signed := leaseInWelcome(body)
	l, err := control.VerifyLease(b.store, signed)
	return stolenLease{l, signed}, err
}
