package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"time"

	quicgo "github.com/quic-go/quic-go"
)

// rawProvider is the name of the anchor: quic-go alone.
const rawProvider = "raw-quic"

// rawConfig is what the nodes set for their links: the same windows, idle time
// and datagrams.
func rawConfig() *quicgo.Config {
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

// A raw is the anchor: one QUIC connection between two UDP sockets of the
// loopback interface, and on it one stream per direction for each channel.
type raw struct {
	transports [2]*quicgo.Transport // the initiator's and the responder's
	listener   *quicgo.Listener
	near, far  *quicgo.Conn
	running    sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	err   error      // the first of a responder
	ended bool
}

func startRaw(ctx context.Context) (_ *raw, err error) {
	cert, err := selfSigned()
	if err != nil {
		return nil, err
	}
	r := &raw{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("raw quic-go: %w", err), r.close())
		}
	}()
	for i := range r.transports {
		socket, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		r.transports[i] = &quicgo.Transport{Conn: socket, ConnectionIDLength: 8}
	}
	settings := &tls.Config{
		Certificates:           []tls.Certificate{cert},
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"fabric-bench"},
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // both ends are in this process
	}
	if r.listener, err = r.transports[1].Listen(settings, rawConfig()); err != nil {
		return nil, err
	}
	if r.near, err = r.transports[0].Dial(ctx, r.transports[1].Conn.LocalAddr(), settings, rawConfig()); err != nil {
		return nil, err
	}
	if r.far, err = r.listener.Accept(ctx); err != nil {
		return nil, err
	}
	r.running.Go(r.accept)
	return r, nil
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

func (r *raw) about() (provider, security string) { return rawProvider, "tls1.3" }

// traffic implements side.
func (r *raw) traffic(context.Context) (int64, error) {
	st := r.near.ConnectionStats()
	return int64(st.BytesSent + st.BytesReceived), nil
}

// processes implements side.
func (r *raw) processes() []int { return nil }

// A duplex is two streams of opposite directions.
type duplex struct {
	*quicgo.ReceiveStream
	*quicgo.SendStream
}

// dial opens a stream and waits for the one that answers it. Only one
// goroutine dials.
func (r *raw) dial(ctx context.Context, _ int) (*channel, error) {
	out, err := r.near.OpenUniStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := out.Write([]byte{1}); err != nil {
		return nil, err
	}
	in, err := r.near.AcceptUniStream(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		return nil, err
	}
	return &channel{
		ReadWriter: duplex{in, out},
		close:      func() error { return finish(in, out) },
		abort:      func() { out.CancelWrite(0); in.CancelRead(0) },
	}, nil
}

// finish ends a channel's streams in order, which gives their places back.
func finish(in *quicgo.ReceiveStream, out *quicgo.SendStream) error {
	if err := out.Close(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// accept runs a responder for every stream that the initiator opens.
func (r *raw) accept() {
	for {
		in, err := r.far.AcceptUniStream(context.Background())
		if err != nil {
			return // the connection has ended
		}
		r.running.Go(func() {
			err := r.respond(in)
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.err == nil && !r.ended {
				r.err = err
			}
		})
	}
}

func (r *raw) respond(in *quicgo.ReceiveStream) error {
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		return err
	}
	out, err := r.far.OpenUniStream()
	if err != nil {
		return err
	}
	if _, err := out.Write([]byte{1}); err != nil {
		return err
	}
	err = (&responder{rw: duplex{in, out}}).run()
	return errors.Join(err, out.Close())
}

// close ends everything, in the order that quic-go needs. It also closes what a
// start that failed has left.
func (r *raw) close() error {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	var err error
	for _, c := range []*quicgo.Conn{r.near, r.far} {
		if c != nil {
			err = errors.Join(err, c.CloseWithError(0, ""))
		}
	}
	if r.listener != nil {
		err = errors.Join(err, r.listener.Close())
	}
	r.running.Wait()
	for _, t := range r.transports {
		if t != nil {
			err = errors.Join(err, t.Close(), t.Conn.Close())
		}
	}
	return errors.Join(r.err, err)
}
