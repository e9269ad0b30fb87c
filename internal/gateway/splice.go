package gateway

import (
	"io"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/hook"
)

const (
	bulk     = 1 << 20 // bytes in large pieces, one behind the other, until a direction is spliced
	pipeSize = 1 << 20
)

// splicing has a place for each direction that has a pipe.
var splicing = make(chan struct{}, 64)

// splice copies inside the kernel while the pieces are large, if both ends have sockets with the
// bytes as they are. It returns the results of copyWith.
func splice(to *counted, from io.Reader) (more bool, err error) {
	take, give := passage(from, true), passage(to.to, false)
	if take == nil || give == nil {
		return true, nil
	}
	select {
	case splicing <- struct{}{}:
		defer func() { <-splicing }()
	default:
		return true, nil
	}
	p, err := newPipe()
	if err != nil {
		return true, nil // without it the bytes are copied
	}
	defer p.close()
	for large := true; large; {
		if err := take(p.fill); err != nil {
			return false, err
		}
		large = p.held >= smallBuffer
		if err := to.empty(p, give); err != nil {
			return false, err
		}
	}
	return true, nil
}

// empty writes the bytes of a pipe, and counts them as they go.
func (c *counted) empty(p *pipe, give func(move) error) error {
	for p.held > 0 {
		before := p.held
		err := give(p.drain)
		c.count.Add(int64(before - p.held))
		if err != nil {
			return err
		}
		if p.held < before {
			continue
		}
		rest := make([]byte, p.held)
		n, err := syscall.Read(p.r, rest)
		if err != nil {
			return err
		}
		p.held -= n
		if err := c.write(rest[:n]); err != nil {
			return err
		}
	}
	return nil
}

// A move moves bytes between a socket and a pipe. The error is EAGAIN if it has to wait. Where it
// moves none without one a read or a write has to follow, which finds out why.
type move func(fd int) error

// passage returns how a move gets the socket of an end, to take bytes (in) or to give them, and
// waits; nil: it does not.
func passage(end any, in bool) func(move) error {
	switch end := end.(type) {
	case *replayed:
		if !in || len(end.early) == 0 {
			return passage(end.conn, in)
		}
	case *socket:
		if in {
			return func(m move) error { return end.use(end.raw.Read, "read", m) }
		}
		return func(m move) error { return end.use(end.raw.Write, "write", m) }
	case *fabric.Conn:
		if ep := hook.Endpoint(end); ep.Plain(in) {
			return func(m move) error { ep.Splice(in, m); return nil }
		}
	}
	return nil
}

// use gives m the socket when it is ready, for which wait waits.
func (s *socket) use(wait func(func(fd uintptr) bool) error, op string, m move) error {
	var err error
	waited := wait(func(fd uintptr) bool {
		err = m(int(fd))
		return err != syscall.EAGAIN
	})
	if waited != nil || err != nil {
		return s.fail(op, waited, err)
	}
	return nil
}

// A pipe is the kernel's memory between two sockets.
type pipe struct{ r, w, held int }

func newPipe() (*pipe, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC); err != nil {
		return nil, err
	}
	// It stays small where the user has too much in pipes already.
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[1]), syscall.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: fds[0], w: fds[1]}, nil
}

func (p *pipe) close() { _, _ = syscall.Close(p.r), syscall.Close(p.w) }

// fill is for an empty pipe: with bytes in it EAGAIN could mean that it is full.
func (p *pipe) fill(fd int) error {
	n, err := spliceOnce(fd, p.w, pipeSize)
	p.held += n
	return err
}

func (p *pipe) drain(fd int) error {
	n, err := spliceOnce(p.r, fd, p.held)
	p.held -= n
	return err
}

// spliceOnce moves none where the kernel has no way between the two.
func spliceOnce(from, to, most int) (int, error) {
	const moveNonblock = 0x1 | 0x2 // SPLICE_F_MOVE, SPLICE_F_NONBLOCK
	for {
		n, err := syscall.Splice(from, nil, to, nil, most, moveNonblock)
		switch err {
		case syscall.EINTR:
		case syscall.EINVAL, syscall.ENOSYS:
			return 0, nil
		default:
			return int(max(n, 0)), err
		}
	}
}
