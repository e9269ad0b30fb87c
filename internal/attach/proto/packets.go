package proto

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// A socket is Packets to another process.
type socket struct {
	*net.UnixConn
	*shm.Sender
	*shm.Receiver
}

// Socket returns Packets over c, a socket of packets, which it takes.
func Socket(c *net.UnixConn) attach.Packets {
	return socket{c, shm.NewSender(c), shm.NewReceiver(c)}
}

func (s socket) Send(p []byte, f *os.File) error { return shm.Send(s.UnixConn, p, f) }

// Pair returns the two ends of Packets within this process.
func Pair() (a, b attach.Packets) {
	there, back := newQueue(), newQueue()
	return end{in: back, out: there}, end{in: there, out: back}
}

// An end is one end of a Pair.
type end struct{ in, out *queue }

func (e end) Send(p []byte, f *os.File) error              { return e.out.put(p, f, true) }
func (e end) TrySend(p []byte, f *os.File) error           { return e.out.put(p, f, false) }
func (e end) Recv(p []byte) (n int, f *os.File, err error) { return e.in.take(p) }

func (e end) Close() error {
	e.out.close(false)
	e.in.close(true)
	return nil
}

// queued bounds the packets on their way in one direction of a Pair.
const queued = 32

// A queue is one direction of a Pair.
type queue struct {
	mu      sync.Mutex // guards the fields below
	moved   sync.Cond  // broadcast at every change
	packets [queued]struct {
		bytes []byte // their memory is kept for later packets
		file  *os.File
	}
	first, n    int  // of packets that wait
	ended, gone bool // the sender has closed, the receiver has
}

func newQueue() *queue {
	q := new(queue)
	q.moved.L = &q.mu
	return q
}

// put copies p and duplicates f, as a socket would.
func (q *queue) put(p []byte, f *os.File, wait bool) (err error) {
	if f != nil {
		if f, err = shm.Duplicate(f); err != nil {
			return err
		}
	}
	if err = q.add(p, f, wait); err != nil && f != nil {
		f.Close()
	}
	return err
}

func (q *queue) add(p []byte, f *os.File, wait bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.n == queued && wait && !q.ended && !q.gone {
		q.moved.Wait()
	}
	switch {
	case q.ended:
		return net.ErrClosed
	case q.gone:
		return syscall.EPIPE
	case q.n == queued:
		return status.Again
	}
	next := &q.packets[(q.first+q.n)%queued]
	next.bytes, next.file = append(next.bytes[:0], p...), f
	q.n++
	q.moved.Broadcast()
	return nil
}

func (q *queue) take(p []byte) (int, *os.File, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.n == 0 && !q.ended && !q.gone {
		q.moved.Wait()
	}
	switch {
	case q.gone:
		return 0, nil, net.ErrClosed
	case q.n == 0:
		return 0, nil, io.EOF
	}
	b, f := q.pop()
	if len(b) > len(p) {
		if f != nil {
			f.Close()
		}
		return 0, nil, fmt.Errorf("packet longer than %d bytes: %w", len(p), status.Protocol)
	}
	return copy(p, b), f, nil
}

// pop takes the first packet; the queue has one, and the caller mu.
func (q *queue) pop() ([]byte, *os.File) {
	next := &q.packets[q.first]
	q.first, q.n = (q.first+1)%queued, q.n-1
	b, f := next.bytes, next.file
	next.file = nil
	if cap(b) > maxKept {
		next.bytes = nil
	}
	q.moved.Broadcast()
	return b, f
}

// maxKept bounds the memory that a packet which was taken keeps.
const maxKept = 1 << 10

// close ends the queue, for its receiver or its sender. The packets for a
// receiver that is gone are dropped.
func (q *queue) close(receiver bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if receiver {
		q.gone = true
		for q.n > 0 {
			if _, f := q.pop(); f != nil {
				f.Close()
			}
		}
	} else {
		q.ended = true
	}
	q.moved.Broadcast()
}
