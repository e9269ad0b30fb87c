package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/status"
)

// attachedWorld is newWorld with gateways on nodes whose applications are attached, as those of
// fabricd are: their connections get paths.
func attachedWorld(t testing.TB, opts ...fabrictest.Option) *world {
	w := &world{t: t, cluster: fabrictest.NewCluster(t, 2, append(opts, fabrictest.Paths())...)}
	for i := range w.at {
		s, err := server.NewServer(context.Background(), server.Options{
			Authorize: func(c attach.Credentials) (attach.Credentials, error) { return c, nil },
			NewSession: func(c attach.Credentials) (attach.NodeSession, error) {
				if w.killed[i].Load() {
					return nil, status.Again
				}
				return hook.Session(w.cluster, i, c), nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.at[i] = New(func(ctx context.Context) (*fabric.Node, error) {
			session, err := client.AttachTo(ctx, s)
			if err != nil {
				return nil, err
			}
			n := hook.Node(session).(*fabric.Node)
			t.Cleanup(func() { n.Close() })
			return n, nil
		}, zerolog.Nop())
		t.Cleanup(w.at[i].Close)
	}
	return w
}

// bothWays runs f with gateways that copy what passes, and with such that splice it.
func bothWays(t *testing.T, f func(t *testing.T, w *world, way way)) {
	t.Run("copied", func(t *testing.T) { f(t, attachedWorld(t, fabrictest.TCP()), way{t, false}) })
	t.Run("spliced", func(t *testing.T) { f(t, attachedWorld(t, fabrictest.TCPPlaintext()), way{t, true}) })
}

// everyWay is bothWays, and with gateways whose connections have no paths.
func everyWay(t *testing.T, f func(t *testing.T, w *world)) {
	t.Run("by the link", func(t *testing.T) { f(t, newWorld(t)) })
	bothWays(t, func(t *testing.T, w *world, _ way) { f(t, w) })
}

// A way is how gateways are to pass bytes on.
type way struct {
	*testing.T
	spliced bool
}

// await waits until so many directions of gateways have gone over, or not.
func (w way) await(directions int) {
	w.Helper()
	if !w.spliced {
		directions = 0
	}
	for limit := time.Now().Add(patience); len(splicing) != directions; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			w.Fatalf("%d directions are spliced, want %d", len(splicing), directions)
		}
	}
}

// A flood is random bytes without end.
type flood struct{ *rand.ChaCha8 }

func newFlood(seed byte) flood { return flood{rand.NewChaCha8([32]byte{seed})} }

// pour writes a flood to c until it ends, and returns why.
func pour(c conn) error {
	_, err := io.Copy(struct{ io.Writer }{c}, newFlood(1))
	return err
}

// TestBytesAreThoseThatWereSent both ways at once, with an end of each direction.
func TestBytesAreThoseThatWereSent(t *testing.T) {
	const size = 48<<20 + 12345
	send := func(c conn, seed byte) error {
		_, err := io.CopyN(struct{ io.Writer }{c}, newFlood(seed), size)
		return errors.Join(err, c.CloseWrite())
	}
	sum := func(r io.Reader) string {
		h := sha256.New()
		n, err := io.Copy(h, r)
		return fmt.Sprintf("%d %v %x", n, err, h.Sum(nil))
	}
	want := func(seed byte) string { return sum(io.LimitReader(newFlood(seed), size)) }
	bothWays(t, func(t *testing.T, w *world, _ way) {
		for port, network := range map[int]string{2050: "tcp", 2051: "unix"} {
			served := make(chan string, 1)
			target := serve(t, network, func(c conn) {
				over := make(chan error, 1)
				go func() { over <- send(c, 2) }()
				got := sum(struct{ io.Reader }{c})
				if err := <-over; err != nil {
					got = err.Error()
				}
				served <- got
			})
			w.run(1, spec.Expose, fmt.Sprintf("%d=%s", port, target))
			at, events, _ := w.run(0, spec.Forward, fmt.Sprintf("127.0.0.1:0=1:%d idle 10s", port))
			c := dial(t, at)
			over := make(chan error, 1)
			go func() { over <- send(c, 1) }()
			if got := sum(struct{ io.Reader }{c}); got != want(2) {
				t.Errorf("%s: the client got %s, want %s", network, got, want(2))
			}
			if err := <-over; err != nil {
				t.Error(err)
			}
			if got := <-served; got != want(1) {
				t.Errorf("%s: the target got %s, want %s", network, got, want(1))
			}
			if ev := await(t, events, spec.Closed); ev.Detail != "" || ev.Conn.Sent != size || ev.Conn.Back != size {
				t.Errorf("%s: closed: %+v, %+v", network, ev, ev.Conn)
			}
		}
	})
}

// TestALossInAFloodIsAReset at both sides, whatever is lost: an end of a connection, or a node.
func TestALossInAFloodIsAReset(t *testing.T) {
	for _, up := range []bool{false, true} {
		for _, loss := range []string{"reader", "writer", "node", "gateway"} {
			t.Run(fmt.Sprintf("%s up %v", loss, up), func(t *testing.T) {
				bothWays(t, func(t *testing.T, w *world, way way) { loseInAFlood(t, w, way, up, loss) })
			})
		}
	}
}

// loseInAFlood has a flood from a client to a target, or down, and loses something in it.
func loseInAFlood(t *testing.T, w *world, way way, up bool, loss string) {
	accepted, over := make(chan conn, 1), make(chan struct{})
	defer close(over)
	target := serve(t, "tcp", func(c conn) { accepted <- c; <-over })
	_, _, stop := w.run(1, spec.Expose, "2050="+target)
	at, forwarded, _ := w.run(0, spec.Forward, "127.0.0.1:0=1:2050")
	from := dial(t, at)
	to := <-accepted
	if !up {
		from, to = to, from
	}
	poured := make(chan error, 1)
	go func() { poured <- pour(from) }()
	if _, err := io.CopyN(io.Discard, struct{ io.Reader }{to}, 16<<20); err != nil {
		t.Fatal(err)
	}
	way.await(2)
	switch loss {
	case "reader":
		abort(errEnded, to)
	case "writer":
		abort(errEnded, from)
	case "node":
		w.killed[1].Store(true)
		w.cluster.Kill(1)
	case "gateway":
		go stop()
	}
	if loss != "reader" {
		if err := reset(to); err != nil {
			t.Error(err)
		}
	}
	if err := <-poured; err == nil {
		t.Error("the flood has ended without an error")
	}
	if ev := await(t, forwarded, spec.Closed); !strings.HasPrefix(ev.Detail, "reset: ") {
		t.Errorf("%+v", ev)
	}
	way.await(0)
}

// TestAnIdleFloodIsReset: a reader that stops holds it up.
func TestAnIdleFloodIsReset(t *testing.T) {
	bothWays(t, func(t *testing.T, w *world, way way) {
		at, _, forwarded := w.chain(func(c conn) { pour(c) }, "", " idle 1s")
		c := dial(t, at)
		if _, err := io.CopyN(io.Discard, struct{ io.Reader }{c}, 16<<20); err != nil {
			t.Fatal(err)
		}
		way.await(2)
		if ev := await(t, forwarded, spec.Closed); ev.Detail != "reset: no byte for 1s" {
			t.Errorf("%+v", ev)
		}
		if err := reset(c); err != nil {
			t.Error(err)
		}
	})
}

// TestWhereTheKernelHasNoWayBytesAreCopied: those in the pipe already, too.
func TestWhereTheKernelHasNoWayBytesAreCopied(t *testing.T) {
	p, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	directory, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer directory.Close()
	if err := p.fill(int(directory.Fd())); err != nil || p.held != 0 {
		t.Errorf("a directory gives %d bytes, %v", p.held, err)
	}
	text := bytes.Repeat([]byte("bytes "), 1000)
	if n, err := syscall.Write(p.w, text); n != len(text) || err != nil {
		t.Fatal(n, err)
	}
	p.held = len(text)
	var got bytes.Buffer
	sink := counted{to: &got, count: new(atomic.Int64), most: smallBuffer}
	err = sink.empty(p, func(move) error { return nil })
	if err != nil || !bytes.Equal(got.Bytes(), text) || sink.count.Load() != int64(len(text)) {
		t.Errorf("%d bytes arrive, %d are counted, %v; want %d", got.Len(), sink.count.Load(), err, len(text))
	}
}

// TestWithoutAPlaceBytesAreCopied.
func TestWithoutAPlaceBytesAreCopied(t *testing.T) {
	for range cap(splicing) {
		splicing <- struct{}{}
	}
	defer func() {
		for range cap(splicing) {
			<-splicing
		}
	}()
	const size = 8 << 20
	w := attachedWorld(t, fabrictest.TCPPlaintext())
	at, _, _ := w.chain(func(c conn) { io.CopyN(c, zeros{}, size); c.CloseWrite() }, "", "")
	c := dial(t, at)
	c.CloseWrite()
	if n, err := io.Copy(io.Discard, c); n != size || err != nil {
		t.Errorf("%d bytes, %v; want %d", n, err, size)
	}
}
