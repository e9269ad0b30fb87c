package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"time"

	quicgo "github.com/quic-go/quic-go"
)

// quicConfig returns the nodes' settings for links: the same windows, idle time and datagrams.
func quicConfig() *quicgo.Config {
	return &quicgo.Config{
		HandshakeIdleTimeout:           2 * time.Second,
		MaxIdleTimeout:                 5 * time.Second,
		KeepAlivePeriod:                time.Second, // nodes send heartbeats
		InitialStreamReceiveWindow:     2 << 20,
		MaxStreamReceiveWindow:         8 << 20,
		InitialConnectionReceiveWindow: 64 << 20,
		MaxConnectionReceiveWindow:     64 << 20,
		MaxIncomingStreams:             -1,
		MaxIncomingUniStreams:          4096,
		EnableDatagrams:                true,
	}
}

// selfSigned returns a certificate of the same kind as the nodes'.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 0, 1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// overQUIC makes the end one of bare quic-go: one QUIC connection, and on it a stream each way for
// each connection, as in nodes.
func (o *endOptions) overQUIC(ctx context.Context, e *end) error {
	cert, err := selfSigned()
	if err != nil {
		return err
	}
	settings := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, NextProtos: []string{"fabric-bench"},
		SessionTicketsDisabled: true, InsecureSkipVerify: true} // the server is the baseline's own
	address := o.listen
	if address == "" {
		address = ":0"
	}
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	tr := &quicgo.Transport{Conn: socket, ConnectionIDLength: 8}
	e.close = func() error { return errors.Join(tr.Close(), socket.Close()) }
	if o.listen != "" {
		e.listen = func() (net.Listener, error) {
			l, err := tr.Listen(settings, quicConfig())
			return &quicListener{Listener: l}, err
		}
		return nil
	}
	to, err := net.ResolveUDPAddr("udp", o.dial)
	if err != nil {
		return err
	}
	link, err := tr.Dial(ctx, to, settings, quicConfig())
	if err != nil {
		return err
	}
	e.dial = func(ctx context.Context) (net.Conn, error) { return dialQUIC(ctx, link) }
	return nil
}

// A quicConn is two streams of opposite directions.
type quicConn struct {
	*quicgo.ReceiveStream
	*quicgo.SendStream
	link *quicgo.Conn
}

func (c quicConn) LocalAddr() net.Addr  { return c.link.LocalAddr() }
func (c quicConn) RemoteAddr() net.Addr { return c.link.RemoteAddr() }

func (c quicConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c quicConn) Close() error {
	c.CancelRead(0)
	return c.SendStream.Close()
}

// dialQUIC opens a stream and waits for the answering one. Only one goroutine dials.
func dialQUIC(ctx context.Context, link *quicgo.Conn) (net.Conn, error) {
	out, err := link.OpenUniStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := out.Write([]byte{1}); err != nil {
		return nil, err
	}
	in, err := link.AcceptUniStream(ctx)
	if err != nil {
		return nil, err
	}
	_, err = io.ReadFull(in, make([]byte, 1))
	return quicConn{in, out, link}, err
}

// A quicListener accepts the streams of one QUIC connection.
type quicListener struct {
	*quicgo.Listener
	link *quicgo.Conn // nil before the first Accept
}

// Accept implements net.Listener. Only one goroutine calls it.
func (l *quicListener) Accept() (net.Conn, error) {
	ctx := context.Background()
	if l.link == nil {
		var err error
		if l.link, err = l.Listener.Accept(ctx); err != nil {
			return nil, err
		}
	}
	in, err := l.link.AcceptUniStream(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		return nil, err
	}
	out, err := l.link.OpenUniStream()
	if err != nil {
		return nil, err
	}
	_, err = out.Write([]byte{1})
	return quicConn{in, out, l.link}, err
}

// Close implements net.Listener.
func (l *quicListener) Close() error {
	var err error
	if l.link != nil {
		err = l.link.CloseWithError(0, "")
	}
	return errors.Join(err, l.Listener.Close())
}
