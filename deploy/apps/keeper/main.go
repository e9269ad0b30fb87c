// Command keeper is one of two small applications that talk through fabricd;
// the other is visitor. It listens at a port of its node and, for each visitor,
// keeps a window of memory that the visitor writes and reads one-sidedly.
//
// It is meant to be copied: it uses package fabric only, takes up again when its
// fabricd or a visitor is lost, and ends on SIGTERM.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

const (
	maxWindow  = 64 << 20    // bytes that a visitor may ask for
	retryPause = time.Second // between two attempts to attach
)

func main() {
	port := flag.Uint("port", 2050, "port to listen at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, fabric.Port(*port))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. It attaches anew whenever fabricd goes away.
func run(ctx context.Context, port fabric.Port) error {
	for ctx.Err() == nil {
		err := serve(ctx, port)
		if ctx.Err() != nil {
			break
		}
		if !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.ECONNRESET) {
			return err // it would be the same the next time
		}
		fmt.Println("no fabricd:", err)
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
		}
	}
	return nil
}

// serve attaches and accepts visitors until the fabricd of this machine goes
// away or ctx ends.
func serve(ctx context.Context, port fabric.Port) error {
	var visits sync.WaitGroup
	defer visits.Wait() // the last of all: n's end ends every visit
	n, err := fabric.Attach(ctx, "")
	if err != nil {
		return err
	}
	defer n.Close()
	defer n.OnEvent(func(ev fabric.Event) { fmt.Println("event:", ev) })()
	l, err := n.Listen(port)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Printf("attached to node %d, listening at port %d\n", n.ID(), port)
	for {
		conn, err := l.AcceptConn(ctx)
		if err != nil {
			return err
		}
		visits.Go(func() {
			who := conn.RemoteAddr()
			fmt.Printf("visitor %v: connected\n", who)
			fmt.Printf("visitor %v: gone: %v\n", who, receive(n, conn))
		})
	}
}

// receive serves one visitor until its connection ends, and returns the cause.
func receive(n *fabric.Node, conn *fabric.Conn) error {
	defer conn.Close()
	lines := bufio.NewReader(conn)
	var size int
	if err := read(lines, "window %d\n", &size); err != nil {
		return err
	}
	if size < 1 || size > maxWindow {
		return fmt.Errorf("a window of %d bytes: want 1 to %d", size, maxWindow)
	}
	// The pages are allocated and charged here, or ENOMEM names the exceeded
	// limit; no access faults later.
	mem, err := n.Alloc(size)
	if err != nil {
		return err
	}
	defer mem.Close()
	offset, err := conn.Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "node %d has %d bytes at %d\n", n.ID(), len(mem.Bytes()), offset); err != nil {
		return err
	}
	for {
		var round int
		if err := read(lines, "look %d\n", &round); err != nil {
			return err
		}
		// The visitor has waited for a fence: its written bytes are here.
		if _, err := fmt.Fprintf(conn, "saw %d %08x\n", round, crc32.ChecksumIEEE(mem.Bytes()[:size])); err != nil {
			return err
		}
	}
}

// read reads one line, which has this format. A line that is longer than the
// reader's buffer is an error.
func read(r *bufio.Reader, format string, values ...any) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(string(line), format, values...); err != nil {
		return fmt.Errorf("%q, want %q: %w", line, format, err)
	}
	return nil
}
