package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// sourceSize is how much a source sends to a reader that asks for all of it.
const sourceSize = 4 << 20

// source is a server of one connection. The first byte selects the response: 'w', the
// whole of sourceSize bytes and a close; 's', the same, and no close; 'f', bytes for
// ever. Standard input's end makes it return without a close.
func source(args []string) error {
	ctx := context.Background()
	n, err := fabric.Attach(ctx, args[0])
	if err != nil {
		return err
	}
	l, err := n.Listen(0)
	if err != nil {
		return err
	}
	fmt.Println("listening", l.Addr().(fabric.Addr).Port)
	conn, err := l.AcceptConn(ctx)
	if err != nil {
		return err
	}
	var ask [1]byte
	if _, err := io.ReadFull(conn, ask[:]); err != nil {
		return err
	}
	for whole := pattern('e', sourceSize); ; {
		if _, err := conn.Write(whole); err != nil {
			return err
		}
		if ask[0] == 'w' {
			return errors.Join(conn.Close(), n.Close())
		}
		if ask[0] == 's' {
			fmt.Println("sent")
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		}
	}
}

// A download is a connection to a source.
type download struct {
	app  *application
	conn *fabric.Conn
}

func (l *lab) download(from, to *node, ask string) *download {
	l.t.Helper()
	app := l.application("source-at-"+from.name, "source", from.socket())
	conn, err := to.attach().DialAddr(within(l.t, stepLimit), from.at(app.port(l.t)))
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(4 * stepLimit))
	}
	if err == nil {
		_, err = io.WriteString(conn, ask)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return &download{app, conn}
}

// ends are the ways in which a source's connection ends that is no close of its own.
var ends = []struct {
	name  string
	end   func(t *testing.T, from *node, app *application)
	cause string
}{
	{"its process is killed", func(_ *testing.T, _ *node, app *application) { app.kill() }, "the peer's application died"},
	{"its process returns", func(_ *testing.T, _ *node, app *application) { app.stdin.Close() }, "the peer's application died"},
	{"its fabricd is killed", func(_ *testing.T, from *node, _ *application) { from.kill() }, ""},
	{"its fabricd is stopped in order", func(t *testing.T, from *node, _ *application) {
		from.signal(t, syscall.SIGTERM)
	}, "stopped"},
}

// TestOnlyTheApplicationsCloseIsAnEnd lets a server end in every way when its reader
// has all that it sent, over QUIC, over TCP, and on one node.
func TestOnlyTheApplicationsCloseIsAnEnd(t *testing.T) {
	overEach(t, func(l *lab) {
		t := l.t.(*testing.T)
		nodes := l.cluster(1)
		for _, to := range nodes {
			d := l.download(nodes[1], to, "w")
			got, err := io.ReadAll(d.conn)
			if err != nil || !bytes.Equal(got, pattern('e', sourceSize)) {
				t.Errorf("to %s, a close: %d bytes, %v; want all and an end", to.name, len(got), err)
			}
			for _, c := range ends {
				if to == nodes[1] && strings.Contains(c.name, "fabricd") {
					continue // the reader's own
				}
				d := l.download(nodes[1], to, "s")
				got := make([]byte, sourceSize)
				if _, err := io.ReadFull(d.conn, got); err != nil || !bytes.Equal(got, pattern('e', sourceSize)) {
					t.Fatalf("to %s: %v", to.name, err)
				}
				d.app.expect(t, stepLimit, "sent")
				c.end(t, nodes[1], d.app)
				n, err := d.conn.Read(got)
				if n != 0 || !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), c.cause) {
					t.Errorf("to %s, %s: %d bytes and %v, want a reset because %q", to.name, c.name, n, err, c.cause)
				}
				t.Logf("to %s, %s: %v", to.name, c.name, err)
				l.again(nodes[1], c.name)
			}
		}
	})
}

// again starts the fabricd of n if an end has ended it.
func (l *lab) again(n *node, end string) {
	if !strings.Contains(end, "fabricd") {
		return
	}
	n.exit(l.t, stepLimit)
	n.start()
	l.agree(l.nodes...)
}

// TestDownloadIsWholeOrAnError ends a server in the middle of its stream: a reader that
// copies until the end gets an error, and never a part that looks whole.
func TestDownloadIsWholeOrAnError(t *testing.T) {
	overEach(t, func(l *lab) {
		t := l.t.(*testing.T)
		nodes := l.cluster(1)
		for _, c := range ends {
			if c.name == "its process returns" {
				continue // it writes
			}
			d := l.download(nodes[1], nodes[0], "f")
			if _, err := io.CopyN(io.Discard, d.conn, sourceSize+1); err != nil {
				t.Fatal(err)
			}
			c.end(t, nodes[1], d.app)
			n, err := io.Copy(io.Discard, d.conn)
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: io.Copy returns %v after %d more bytes, want a reset", c.name, err, n)
			}
			t.Logf("%s: %v", c.name, err)
			l.again(nodes[1], c.name)
		}
	})
}
