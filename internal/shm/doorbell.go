package shm

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// A Doorbell is one end of a pair by which two processes wake each other. It is a
// stream socket whose bytes mean nothing, so that the end of either process is
// noticed at once. One goroutine waits at a time; all other methods may be called
// from any goroutine.
type Doorbell struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	send func(fd uintptr) // one byte, if there is room
	buf  [64]byte         // bytes that Wait discards
}

// DoorbellPair returns the two ends of a doorbell, to be passed on.
func DoorbellPair() (a, b *os.File, err error) { return socketPair(unix.SOCK_STREAM, "doorbell") }

// NewDoorbell makes f, a stream socket, a doorbell. It takes f in any case.
func NewDoorbell(f *os.File) (*Doorbell, error) {
	conn, err := Conn(f)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	b := &Doorbell{conn: conn, raw: raw}
	one := []byte{1}
	b.send = func(fd uintptr) {
		// A full socket rings already. Wait reports the end of a broken one.
		unix.SendmsgN(int(fd), one, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	return b, nil
}

// Ring wakes the other side, now or when it next waits. It does not block.
func (b *Doorbell) Ring() { b.raw.Control(b.send) }

// Wait returns after a Ring of the other side: one that was before Wait, too.
// After Stop, and when the other side is gone, it returns an error at once; when
// ctx is done, that of ctx with a status.Code.
func (b *Doorbell) Wait(ctx context.Context) error {
	if ctx.Done() == nil {
		_, err := b.conn.Read(b.buf[:])
		return err
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { b.conn.SetReadDeadline(long); close(fired) })
	_, err := b.conn.Read(b.buf[:])
	if stop() {
		return err
	}
	<-fired
	b.conn.SetReadDeadline(time.Time{})
	return fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
}

// long is a deadline that has passed long ago.
var long = time.Unix(1, 0)

// Drain discards pending rings, for a side that did not wait.
func (b *Doorbell) Drain() {
	b.raw.Control(func(fd uintptr) {
		var p [64]byte
		for {
			if n, err := unix.Read(int(fd), p[:]); n < len(p) || err != nil {
				return
			}
		}
	})
}

// WaitEdge returns after a Ring and leaves it to be waited for.
func (b *Doorbell) WaitEdge() error { return WaitRead(b.conn) }

// Stop makes every Wait from now on return at once. A Wait that its ctx ends at the same
// time may undo that, so the caller first sets the mark that Wait's user checks.
func (b *Doorbell) Stop() { b.conn.SetReadDeadline(long) }

// Watcher returns a descriptor of its own for [WatchRead], which the caller
// closes.
func (b *Doorbell) Watcher() (*net.UnixConn, error) { return Watcher(b.conn) }

// Close ends the doorbell: the other side's Wait returns, and so does one here.
func (b *Doorbell) Close() error { return b.conn.Close() }
