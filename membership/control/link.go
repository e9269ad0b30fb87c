package control

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/trust"
)

// openTimeout bounds everything from a TCP connection to its WELCOME.
const openTimeout = 3 * time.Second

// A link is a TLS connection that carries frames. One goroutine reads and one
// writes.
type link struct {
	raw  net.Conn // below TLS: closing it never waits
	tls  *tls.Conn
	in   *bufio.Reader
	body []byte // of the frame being read
}

func newLink(raw net.Conn, t *tls.Conn) *link {
	return &link{raw: raw, tls: t, in: bufio.NewReader(t)}
}

// read returns the next frame. io.EOF is an end between two frames.
func (l *link) read() (any, error) {
	var head [HeaderLen]byte
	if _, err := io.ReadFull(l.in, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxBody {
		return nil, fmt.Errorf("%w: a body of %d bytes, at most %d", ErrMalformed, n, MaxBody)
	}
	if int(n) > cap(l.body) {
		l.body = make([]byte, n)
	}
	body := l.body[:n]
	if _, err := io.ReadFull(l.in, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	f, err := parseBody(frameType(head[4]), body)
	if err != nil {
		return nil, fmt.Errorf("%w: type %d, %d bytes", err, head[4], n)
	}
	return f, nil
}

// write sends one frame before the link has a writer of its own.
func (l *link) write(f any) error {
	b, err := AppendFrame(nil, f)
	if err != nil {
		return err
	}
	_, err = l.tls.Write(b)
	return err
}

// refuse sends the peer the reason, and returns the refusal.
func (l *link) refuse(err error) error {
	var r *RefusedError
	if !errors.As(err, &r) {
		r = &RefusedError{Code: CodeProtocol, Text: clip(err.Error())}
		err = r
	}
	f := Refuse{Code: r.Code, VersionMin: VersionMin, VersionMax: VersionMax, Text: clip(r.Text)}
	if l.write(f) == nil {
		l.tls.CloseWrite()
		l.drain()
	}
	return err
}

// drain waits until the peer has closed or the deadline is over: closing with
// unread bytes would reset the connection and may lose the refusal.
func (l *link) drain() {
	for {
		if _, err := l.in.Discard(1 << 10); err != nil {
			return
		}
	}
}

// negotiate returns the newest version that both speak.
func negotiate(min, max uint16) (uint16, error) {
	if min > max || max < VersionMin || min > VersionMax {
		return 0, Refusef(CodeVersion, "no common version of the control protocol: here %d to %d, there %d to %d",
			VersionMin, VersionMax, min, max)
	}
	if max < VersionMax {
		return max, nil
	}
	return VersionMax, nil
}

// A Dialer opens control sessions and lifelines. All fields are needed.
type Dialer struct {
	Store *trust.Store
	Dial  func(ctx context.Context, address string) (net.Conn, error)
	// Self returns this node as it is now, and the signed lease of its incarnation.
	Self func() (End, []byte)
}

// Session opens a control session with the host at address.
func (d *Dialer) Session(ctx context.Context, address string) (*Session, error) {
	l, o, err := d.open(ctx, address, ProtoControl, trust.ExpectHost, Hello{})
	if err != nil {
		return nil, fmt.Errorf("control session with %s: %w", address, err)
	}
	return newSession(l, d.Store, o, false), nil
}

// Lifeline opens a lifeline to the node that to names, at address. If another
// start of that node answers, or none of the incarnation that was meant, it returns
// the lifeline all the same: the caller compares [Lifeline.Peer].
//
// The challenge, if there is one, is for that node to sign; see
// [Lifeline.Proof].
func (d *Dialer) Lifeline(ctx context.Context, address string, to Target, challenge []byte) (*Lifeline, error) {
	var expect func(trust.Identity) error
	if !to.UUID.IsZero() {
		expect = trust.ExpectNode(to.UUID)
	}
	l, o, err := d.open(ctx, address, ProtoLifeline, expect, Hello{To: to, Challenge: challenge})
	if err != nil {
		return nil, fmt.Errorf("lifeline to %s: %w", address, err)
	}
	return newLifeline(l, o, false), nil
}

// An opened holds the facts that the two ends have exchanged in the opening.
type opened struct {
	self, peer End
	id         trust.Identity // of the peer
	lease      Lease          // of the peer; the zero Lease without an incarnation, and on control sessions
	proof      []byte         // of the peer, for the dialer's challenge
	version    uint16
}

// open dials, authenticates both ends and exchanges HELLO and WELCOME.
func (d *Dialer) open(ctx context.Context, address, proto string, expect func(trust.Identity) error, hello Hello) (*link, opened, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	l, err := dialTLS(ctx, d.Dial, address, d.Store.ClientTLS(expect, proto))
	if err != nil {
		return nil, opened{}, d.Store.Explain(err)
	}
	stop := context.AfterFunc(ctx, func() { l.raw.Close() })
	o, err := d.greet(l, proto, hello)
	var refused *RefusedError
	if errors.As(err, &refused) && !refused.Remote {
		l.reject(refused)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.raw.Close()
		return nil, opened{}, d.Store.Explain(err)
	}
	return l, o, nil
}

// reject sends the listener the reason why its WELCOME is not accepted, and waits for its
// end as drain does.
func (l *link) reject(r *RefusedError) {
	l.raw.SetDeadline(time.Now().Add(closeTimeout))
	if l.write(Close{Text: clip(r.Text)}) == nil {
		l.drain()
	}
}

func dialTLS(ctx context.Context, dial func(context.Context, string) (net.Conn, error), address string, config *tls.Config) (*link, error) {
	raw, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	t := tls.Client(raw, config)
	if err := t.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return newLink(raw, t), nil
}

// greet is the dialer's half of the opening. hello names the node that is meant.
func (d *Dialer) greet(l *link, proto string, hello Hello) (opened, error) {
	self, lease := d.Self()
	if proto == ProtoControl {
		lease = nil // it comes with the request that needs it
	}
	hello.VersionMin, hello.VersionMax = VersionMin, VersionMax
	hello.Cluster, hello.From, hello.Lease = d.Store.Identity().Cluster, self, lease
	if err := l.write(hello); err != nil {
		return opened{}, err
	}
	f, err := l.read()
	if err != nil {
		return opened{}, err
	}
	switch f := f.(type) {
	case Welcome:
		o := opened{self: self, peer: f.From, proof: f.Proof, version: f.Version}
		err := d.welcomed(l, proto, f, &o)
		return o, err
	case Refuse:
		return opened{}, &RefusedError{Code: f.Code, Text: f.Text, Remote: true}
	}
	return opened{}, fmt.Errorf("%w: want WELCOME or REFUSE, got %T", ErrMalformed, f)
}

// welcomed checks the claims of a listener, and adds the proved ones to o.
func (d *Dialer) welcomed(l *link, proto string, f Welcome, o *opened) (err error) {
	if _, err := negotiate(f.Version, f.Version); err != nil {
		return err
	}
	if o.id, err = trust.IdentityOf(l.tls.ConnectionState()); err != nil {
		return err
	}
	if err := checkClaim(f.From, o.id); err != nil {
		return err
	}
	l.identified(o.id)
	if proto == ProtoLifeline {
		o.lease, err = checkEnd(d.Store, f.From, o.id.Key, f.Lease)
	}
	return err
}

// identified reports the proved peer to the connection below TLS, if it has the method: the layer
// that breaks links on purpose does.
func (l *link) identified(id trust.Identity) {
	if c, ok := l.raw.(interface{ Identified(node addr.UUID) }); ok {
		c.Identified(id.Node)
	}
}

// checkClaim compares the claims of an end with its certificate.
func checkClaim(e End, id trust.Identity) error {
	if e.UUID != id.Node {
		return Refusef(CodeIdentity, "it claims to be node %s, its certificate is for %s", e.UUID, id.Node)
	}
	if e.Host && !id.Host {
		return Refusef(CodeRole, "node %s claims the host role, its certificate does not allow it", e.UUID)
	}
	return nil
}
