package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
)

// A tap keeps the bytes that a connection has written and read.
type tap struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (t *tap) keep(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p)
}

func (t *tap) saw(p []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Contains(t.b.Bytes(), p)
}

type tappedConn struct {
	net.Conn
	tap *tap
}

func (c tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.tap.keep(p[:n])
	return n, err
}

func (c tappedConn) Write(p []byte) (int, error) {
	c.tap.keep(p)
	return c.Conn.Write(p)
}

// With the setting, an eavesdropper on the path sees all bytes after the hellos, and none without
// it.
func TestPlaintextCoversTheConnection(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			var first tap
			pa, pb := onSockets(t, func(c *Config) {
				c.Plaintext = plaintext
				c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
					var d net.Dialer
					conn, err := d.DialContext(ctx, "tcp", to)
					return tappedConn{conn, &first}, err
				}
			})
			sa, sb := transporttest.Connect(t, pa, pb)
			there, back := []byte("what the dialer says"), []byte("what the accepter says")
			exchange(t, sa, sb, there)
			exchange(t, sb, sa, back)
			for _, text := range [][]byte{there, back} {
				if got := first.saw(text); got != plaintext {
					t.Errorf("%q was seen: %v", text, got)
				}
			}
			hello := hello{from: version, to: version, plaintext: plaintext, streams: streams}
			if first.saw(hello.appendTo(nil)) {
				t.Error("HELLO was seen")
			}
		})
	}
}

// exchange sends text on a stream of its own.
func exchange(t *testing.T, from, to transport.Session, text []byte) {
	t.Helper()
	out, err := from.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(text); err != nil {
		t.Fatal(err)
	}
	out.Close()
	in, err := to.AcceptStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, text) {
		t.Fatalf("%q came, %v; want %q", got, err, text)
	}
}

func TestEndsThatDifferInPlaintextRefuseEachOther(t *testing.T) {
	for name, dialerHas := range map[string]bool{"the dialer has it": true, "the accepter has it": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				network := netsim.New(1)
				defer network.Close()
				ca := testca.New()
				dialer, accepter := member(ca, idA), member(ca, idB)
				dialer.Plaintext, accepter.Plaintext = dialerHas, !dialerHas
				var log logBuffer
				accepter.Log = dialer.Log.Output(&log)
				a, b := start(t, network, addrA, dialer), start(t, network, addrB, accepter)
				defer b.Close()
				defer a.Close()
				_, err := a.Dial(t.Context(), b.Addr())
				synctest.Wait()
				time.Sleep(time.Second)
				var end *transport.CloseError
				if !errors.As(err, &end) || end.Code != transport.CodeVersion {
					t.Fatalf("dial: %v, want a CloseError with code %d", err, transport.CodeVersion)
				}
				with, without := "at 10.0.0.1:", "not at "+addrB
				if !dialerHas {
					with, without = "at "+addrB, "not at 10.0.0.1:"
				}
				for who, said := range map[string]string{"dialer": err.Error(), "accepter": log.String()} {
					if !strings.Contains(said, "plaintext is set "+with) || !strings.Contains(said, without) {
						t.Errorf("%s: %q, want that it is set %s and %s", who, said, with, without)
					}
				}
			})
		})
	}
}
