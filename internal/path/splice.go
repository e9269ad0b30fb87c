package path

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Plain reports whether the socket has the bytes of messages as they are.
func (c *Conn) Plain() bool { return c.tls == nil }

// SpliceIn is Read by move, which takes bytes from the socket, or returns EAGAIN if there are
// none. Where it takes none a Read has to follow. An error comes once, and is no end in order.
func (c *Conn) SpliceIn(move func(fd int) error) (err error) {
	c.reads.end()
	if c.hasAhead.Load() {
		return nil
	}
	werr := c.sock.raw.Read(func(fd uintptr) bool {
		err = move(int(fd))
		return err != unix.EAGAIN
	})
	return errors.Join(werr, err)
}

// SpliceOut is Write by move. Where that writes none a Write has to follow, which has the error.
func (c *Conn) SpliceOut(move func(fd int) error) {
	if c.flush(context.Background()) != nil {
		return
	}
	<-c.flushing
	var err error
	if c.failure() == nil {
		werr := c.sock.raw.Write(func(fd uintptr) bool {
			err = move(int(fd))
			return err != unix.EAGAIN
		})
		err = errors.Join(werr, err)
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.fails(err)
	}
	c.flushing <- struct{}{}
}
