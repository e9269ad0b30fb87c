package conformance

import (
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// shutRows are about half-close and abort, which users of net.Conn need and SCIF lacks.
var shutRows = []row{
	{call: "shutdown", name: "CONNECTED/the peer sends no more=its bytes, the end, and this end still sends", check: func(c *check) {
		near, far := c.conns()
		c.write(far, "last words")
		c.must(far.CloseWrite())
		c.readAll(near, "last words")
		c.write(near, "answer")
		c.read(far, "answer")
		c.must(near.Close())
		c.readAll(far, "")
		c.must(far.Close())
	}},
	{call: "shutdown", name: "CONNECTED/both send no more=the end at both, and good closes", check: func(c *check) {
		near, far := c.conns()
		c.write(near, "a")
		c.write(far, "b")
		c.must(near.CloseWrite())
		c.must(far.CloseWrite())
		c.readAll(near, "b")
		c.readAll(far, "a")
		time.Sleep(20 * time.Millisecond)
		c.readAll(near, "")
		c.must(near.Close())
		c.readAll(far, "")
		c.must(far.Close())
	}},
	{call: "shutdown", name: "CONNECTED/again, and a write behind it=ok, EPIPE", check: func(c *check) {
		near, far := c.conns()
		c.must(near.CloseWrite())
		c.must(near.CloseWrite())
		if n, err := near.Write([]byte("x")); n != 0 || !errors.Is(err, syscall.EPIPE) {
			c.Errorf("a write: %d, %v", n, err)
		}
		if n, err := near.Endpoint().TrySend([]byte("x")); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			c.Errorf("a send: %d, %v", n, err)
		}
		c.write(far, "still here")
		c.read(near, "still here")
	}},
	{call: "shutdown", name: "CONNECTED/a read waits=the end", check: func(c *check) {
		near, far := c.conns()
		result := c.blocked("(*Conn).Read", func() error { return errOf(near.Read(make([]byte, 1))) })
		c.must(far.CloseWrite())
		if err := <-result; err != io.EOF {
			c.Errorf("the read ends with %v", err)
		}
		c.write(near, "x")
		c.read(far, "x")
	}},
	{call: "shutdown", name: "CONNECTED/poll=POLLIN and POLLRDHUP behind the last byte, no POLLHUP", check: func(c *check) {
		near, far := c.conns()
		c.write(far, "x")
		c.must(far.CloseWrite())
		e := end{near.Endpoint(), c.near}
		c.await(e, fabric.PollIn)
		c.read(near, "x")
		c.await(e, fabric.PollRdHup)
		if ev := c.revents(e, fabric.PollIn|fabric.PollOut|fabric.PollRdHup); ev != fabric.PollIn|fabric.PollOut|fabric.PollRdHup {
			c.Errorf("the events are %#x", ev)
		}
		c.readAll(near, "")
		c.must(far.Close())
		c.await(e, fabric.PollHup)
	}},
	{call: "shutdown", name: "CONNECTED/behind many bytes=all of them, in order, at both ends", check: func(c *check) {
		near, far := c.conns()
		want := pattern(3<<20, 11)
		var sent []<-chan error
		for _, conn := range []*fabric.Conn{near, far} {
			sent = append(sent, c.start(func() error {
				for i := 0; i < len(want); i += 50_001 {
					if _, err := conn.Write(want[i:min(len(want), i+50_001)]); err != nil {
						return err
					}
				}
				return conn.CloseWrite()
			}))
		}
		got := c.start(func() error { c.readAll(far, string(want)); return nil })
		c.readAll(near, string(want))
		<-got
		c.want(<-sent[0], ok)
		c.want(<-sent[1], ok)
	}},
	{call: "shutdown", name: "closed=EBADF", check: func(c *check) {
		near, _ := c.conns()
		c.must(near.Close())
		c.want(near.CloseWrite(), syscall.EBADF)
	}},
	{call: "shutdown", name: "DISCONNECTED=ECONNRESET", check: func(c *check) {
		near, far := c.conns()
		c.must(far.Close())
		c.await(end{near.Endpoint(), c.near}, fabric.PollHup)
		c.want(near.CloseWrite(), syscall.ECONNRESET)
	}},
	{call: "abort", name: "CONNECTED/the peer aborts=its bytes, ECONNRESET, and no end of file", check: func(c *check) {
		near, far := c.conns()
		c.write(far, "torn")
		c.must(far.SetLinger(0))
		c.must(far.Close())
		c.lost(near, "torn")
	}},
	{call: "abort", name: "CONNECTED/a read waits=ECONNRESET", check: func(c *check) {
		near, far := c.conns()
		result := c.blocked("(*Conn).Read", func() error { return errOf(near.Read(make([]byte, 1))) })
		c.must(far.SetLinger(0))
		c.must(far.Close())
		if err := <-result; !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
			c.Errorf("the read ends with %v", err)
		}
	}},
	{call: "abort", name: "CONNECTED/after this end sends no more=ECONNRESET", check: func(c *check) {
		near, far := c.conns()
		c.must(near.CloseWrite())
		c.readAll(far, "")
		c.must(far.SetLinger(0))
		c.must(far.Close())
		c.lost(near, "")
	}},
	{call: "abort", name: "CONNECTED/SetLinger taken back=a good close", check: func(c *check) {
		near, far := c.conns()
		c.must(far.SetLinger(0))
		c.must(far.SetLinger(-1))
		c.must(far.Close())
		c.readAll(near, "")
	}},
}

// conns are a connection as net.Conn.
func (c *check) conns() (near, far *fabric.Conn) {
	a, b := c.connected()
	return fabric.NewConn(a.Endpoint), fabric.NewConn(b.Endpoint)
}

func (c *check) write(conn *fabric.Conn, s string) {
	c.Helper()
	if _, err := conn.Write([]byte(s)); err != nil {
		c.Fatalf("write: %v", err)
	}
}

func (c *check) read(conn *fabric.Conn, want string) {
	c.Helper()
	c.must(conn.SetReadDeadline(time.Now().Add(patience)))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		c.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

// readAll reads up to the end, which is io.EOF.
func (c *check) readAll(conn *fabric.Conn, want string) {
	c.Helper()
	c.must(conn.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != want {
		c.Errorf("read %d bytes to the end, %v; want %d", len(got), err, len(want))
	}
}

// lost reads up to the end, which is a reset.
func (c *check) lost(conn *fabric.Conn, want string) {
	c.Helper()
	c.must(conn.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(conn)
	if !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || string(got) != want {
		c.Errorf("read %q, then %v; want %q and ECONNRESET", got, err, want)
	}
}
