// Command visitor is one of two small applications that talk through fabricd;
// the other is keeper. It finds a keeper somewhere in the fabric, exchanges
// messages with it, writes into the keeper's memory, waits for a fence, and
// reads the bytes back, round after round.
//
// It is meant to be copied: it uses package fabric only, and goes on when the
// keeper, its node or its own fabricd is lost and comes back.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// retryPause is the time between two attempts to find a keeper.
const retryPause = 500 * time.Millisecond

// A plan holds the settings of the command line.
type plan struct {
	port   fabric.Port
	size   int           // bytes of a window
	rounds int           // 0: for ever
	every  time.Duration // between two rounds
}

func main() {
	port := flag.Uint("port", 2050, "port at which keepers listen")
	size := flag.Int("size", 64<<10, "bytes to write and read in a round")
	rounds := flag.Int("rounds", 0, "end after so many rounds; 0: go on for ever")
	every := flag.Duration("every", time.Second, "pause between two rounds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, plan{fabric.Port(*port), *size, *rounds, *every})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "visitor:", err)
		os.Exit(1)
	}
}

// errDone ends the rounds in good order.
var errDone = errors.New("done")

// run goes round until ctx ends, or the rounds are done, or something fails
// that does not pass. A lost node passes: the next attempt finds it, or another.
func run(ctx context.Context, p plan) error {
	round := 0
	for {
		err := attached(ctx, p, &round)
		switch {
		case ctx.Err() != nil || errors.Is(err, errDone):
			return nil
		case !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.ECONNRESET):
			return err
		}
		fmt.Println("no fabricd:", err)
		if !wait(ctx, retryPause) {
			return nil
		}
	}
}

// attached is the incarnation of one attachment: it visits until the fabricd of this
// machine goes away.
func attached(ctx context.Context, p plan, round *int) error {
	n, err := fabric.Attach(ctx, "")
	if err != nil {
		return err
	}
	defer n.Close()
	defer n.OnEvent(func(ev fabric.Event) { fmt.Println("event:", ev) })()
	fmt.Printf("attached to node %d\n", n.ID())
	// Writes to the keeper come from this memory, which fabricd reads
	// without a copy in between.
	mem, err := n.Alloc(p.size)
	if err != nil {
		return err
	}
	defer mem.Close()
	for said := ""; ; {
		conn, err := find(ctx, n, p.port)
		if err == nil {
			err = visit(ctx, conn, mem, p, round)
			fmt.Printf("node %d: %v\n", conn.RemoteAddr().(fabric.Addr).Node, err)
			said = ""
		} else if err.Error() != said {
			said = err.Error()
			fmt.Println("no keeper yet:", said)
		}
		if errors.Is(err, errDone) || errors.Is(err, errWrong) {
			return err
		}
		select {
		case <-n.Done():
			return fmt.Errorf("fabricd went away: %w", syscall.ENODEV)
		case <-time.After(retryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// find connects to the first node with a listener at port.
func find(ctx context.Context, n *fabric.Node, port fabric.Port) (*fabric.Conn, error) {
	nodes, _, err := n.Nodes()
	if err != nil {
		return nil, err
	}
	err = errors.New("there are no nodes")
	for _, id := range nodes {
		var conn *fabric.Conn
		if conn, err = n.DialAddr(ctx, fabric.Addr{Node: id, Port: port}); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// errWrong marks an error that no repetition cures: the fabric broke a guarantee.
var errWrong = errors.New("wrong")

// visit goes round with one keeper until that fails or all rounds are done.
func visit(ctx context.Context, conn *fabric.Conn, mem *fabric.Memory, p plan, round *int) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewReader(conn)
	if _, err := fmt.Fprintf(conn, "window %d\n", p.size); err != nil {
		return err
	}
	v := visited{conn: conn, lines: lines, ours: mem.Bytes()[:p.size]}
	var node, there int
	if err := read(lines, "node %d has %d bytes at %d\n", &node, &there, &v.theirs); err != nil {
		return err
	}
	var err error
	if v.here, err = conn.Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead, 0); err != nil {
		return err
	}
	fmt.Printf("connected: %v to %v, which keeps %d bytes for us\n", conn.LocalAddr(), conn.RemoteAddr(), there)
	if err := v.mapped(there); err != nil {
		return err
	}
	for {
		if err := v.once(ctx, *round); err != nil {
			return err
		}
		*round++
		if p.rounds > 0 && *round >= p.rounds {
			return errDone
		}
		if !wait(ctx, p.every) {
			return ctx.Err()
		}
	}
}

// visited is a connection and the two windows at its ends.
type visited struct {
	conn   *fabric.Conn
	lines  *bufio.Reader
	ours   []byte // the memory of our window
	here   int64  // where it begins in our space
	theirs int64  // where the keeper's begins in its space
}

// once writes fresh bytes into the keeper's memory, waits until they are
// there, asks the keeper for their checksum, and reads them back.
func (v *visited) once(ctx context.Context, round int) error {
	ep := v.conn.Endpoint()
	source := rand.NewChaCha8([32]byte{byte(round), byte(round >> 8), byte(round >> 16)})
	_, _ = source.Read(v.ours) // it never fails

	began := time.Now()
	if err := ep.WriteTo(v.here, int64(len(v.ours)), v.theirs, 0); err != nil {
		return err
	}
	mark, err := ep.FenceMark(fabric.InitSelf)
	if err != nil {
		return err
	}
	if err := ep.FenceWait(ctx, mark); err != nil {
		return err
	}
	written := time.Since(began)

	began = time.Now()
	if _, err := fmt.Fprintf(v.conn, "look %d\n", round); err != nil {
		return err
	}
	var saw int
	var sum uint32
	if err := read(v.lines, "saw %d %x\n", &saw, &sum); err != nil {
		return err
	}
	answered := time.Since(began)
	if want := crc32.ChecksumIEEE(v.ours); saw != round || sum != want {
		return fmt.Errorf("%w: the keeper saw %08x in round %d, want %08x in round %d", errWrong, sum, saw, want, round)
	}

	back := make([]byte, len(v.ours))
	began = time.Now()
	if err := ep.VReadFrom(back, v.theirs, fabric.Sync); err != nil {
		return err
	}
	if !bytes.Equal(back, v.ours) {
		return fmt.Errorf("%w: what was read back is not what was written", errWrong)
	}
	fmt.Printf("round %d: %d bytes written and fenced in %v, message answered in %v, read back in %v\n", round, len(v.ours),
		written.Round(time.Microsecond), answered.Round(time.Microsecond), time.Since(began).Round(time.Microsecond))
	return nil
}

// mapped maps the keeper's memory if it is on our node: the same pages, with
// no process in between.
func (v *visited) mapped(n int) error {
	if v.conn.LocalAddr().(fabric.Addr).Node != v.conn.RemoteAddr().(fabric.Addr).Node {
		return nil
	}
	m, err := v.conn.Endpoint().Mmap(v.theirs, int64(n), fabric.ProtRead|fabric.ProtWrite)
	if err != nil {
		return err
	}
	defer m.Close()
	copy(m.Bytes(), "written without a call")
	seen := make([]byte, len("written without a call"))
	if err := v.conn.Endpoint().VReadFrom(seen, v.theirs, fabric.Sync); err != nil {
		return err
	}
	if string(seen) != "written without a call" {
		return fmt.Errorf("%w: the keeper's memory holds %q", errWrong, seen)
	}
	fmt.Printf("mapped: %d bytes of the keeper's memory, which is on our node\n", n)
	return nil
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

// wait waits for d; it reports false if ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
