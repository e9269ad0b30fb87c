package workload

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// exchange is a short connection: the client sends and the server answers, each
// as much as follows from the nonce, and closes; the client reads to the end.
func (e *end) exchange() {
	defer e.s.app.active()()
	most := uint64(cmp.Or(e.s.app.c.ConnectSize, shortSize))
	there := int64(mix(e.id.Conn)%most) + 1
	back := int64(mix(^e.id.Conn)%most) + 1
	if e.id.Side == history.Client {
		if e.give(there) {
			e.take(back)
		}
		return
	}
	if e.take(there) {
		e.give(back)
	}
}

const shortSize = 16 << 10 // bytes at most, each way, and of a message

// give sends n bytes from the beginning, in messages.
func (e *end) give(n int64) bool {
	p := make([]byte, n)
	Fill(p, e.id.Conn, e.id.Side, 0)
	e.put(&history.Offered{ConnEnd: e.id, Range: history.Range{To: n}})
	sent := 0
	var err error
	for sent < len(p) && err == nil {
		k := 0
		k, err = e.send(p[sent:min(len(p), sent+shortSize)])
		sent += k
	}
	e.put(&history.Sent{ConnEnd: e.id, Range: history.Range{To: int64(sent)}})
	return err == nil
}

// take receives n bytes from the beginning. A client reads on to the orderly
// end that has to follow.
func (e *end) take(n int64) bool {
	p := make([]byte, n)
	got, err := e.recv(p)
	r := &history.Received{ConnEnd: e.id, Range: history.Range{To: int64(got)}}
	if bad := Verify(p[:got], e.id.Conn, e.id.Side.Other(), 0); bad >= 0 {
		at := int64(bad)
		r.Bad = &at
	}
	e.put(r)
	if err == nil && e.id.Side == history.Client {
		more, err := e.recv(p[:1])
		if more > 0 { // bytes that nobody has sent
			at := n
			e.put(&history.Received{ConnEnd: e.id, Range: history.Range{From: n, To: n + 1}, Bad: &at})
		}
		return errors.Is(err, io.EOF)
	}
	return err == nil
}

// parkedBytes is what a parked end offers to a peer that does not receive: more
// than a connection buffers.
const parkedBytes = 4 << 20

// park makes calls that wait, until the connection ends: the client sends to a
// server that does not receive, and receives and polls for what never comes;
// the server polls for the end.
func (e *end) park() {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.cancel()
	if e.id.Side == history.Client {
		wg.Go(e.parkSend)
		wg.Go(e.parkRecv)
	}
	e.parkPoll()
}

func (e *end) parkSend() {
	p := make([]byte, parkedBytes)
	Fill(p, e.id.Conn, e.id.Side, 0)
	e.put(&history.Offered{ConnEnd: e.id, Range: history.Range{To: parkedBytes}})
	n := e.parkCall("send", func(ctx context.Context) (int, error) { return e.ep.Send(ctx, p) })
	e.put(&history.Sent{ConnEnd: e.id, Range: history.Range{To: int64(n)}})
}

func (e *end) parkRecv() {
	p := make([]byte, 1)
	if n := e.parkCall("recv", func(ctx context.Context) (int, error) { return e.ep.Recv(ctx, p) }); n > 0 {
		at := int64(0)
		e.put(&history.Received{ConnEnd: e.id, Range: history.Range{To: int64(n)}, Bad: &at})
	}
}

// parkPoll waits for the end of the connection.
func (e *end) parkPoll() {
	e.parkCall("poll", func(ctx context.Context) (int, error) {
		_, err := e.s.node.Poll(ctx, []fabric.PollItem{{Endpoint: e.ep}})
		return 0, err
	})
	if e.ctx.Err() == nil {
		// It says that the connection has ended; how, a receive says.
		_, _ = e.recv(make([]byte, 1))
	}
}

// parkCall makes a call that waits for ever, as far as the workload goes.
func (e *end) parkCall(name string, f func(context.Context) (int, error)) int {
	c := e.call(name)
	c.Idle = true
	call := e.s.app.calls.begin(c, true)
	n, err := f(e.ctx)
	e.end(call, n, err)
	return n
}
