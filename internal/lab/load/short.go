package load

import "github.com/fabricd/fabricd/internal/lab/history"

// pieceSize is how much of a short connection's bytes one message has at most.
const pieceSize = 16 << 10

// exchange is a short connection: the client sends and the server answers, each as
// much as follows from the nonce, and closes; the client reads to the end.
func (e *End) exchange() Step {
	most := uint64(e.plan.ConnectSize)
	there := int64(mix(e.ID.Conn)%most) + 1
	back := int64(mix(^e.ID.Conn)%most) + 1
	if e.ID.Side == history.Client {
		return e.give(there, func() Step { return e.take(back, e.takeEnd) })
	}
	return e.take(there, func(int64) Step { return e.give(back, func() Step { return done }) })
}

// give sends n bytes from the beginning, in messages.
func (e *End) give(n int64, then func() Step) Step {
	p := make([]byte, n)
	fill(p, e.ID, 0)
	e.env.Put(&history.Offered{ConnEnd: e.ID, Range: history.Range{To: n}})
	sent := 0
	var piece func(Result) Step
	piece = func(r Result) Step {
		sent += int(r.N)
		if r.Status == "" && sent < len(p) {
			return send(p[sent:min(len(p), sent+pieceSize)], piece)
		}
		e.sent(int64(sent))
		if r.Status != "" {
			return done
		}
		return then()
	}
	return piece(Result{})
}

// sent writes that the first n bytes were sent.
func (e *End) sent(n int64) {
	if n > 0 {
		e.env.Put(&history.Sent{ConnEnd: e.ID, Range: history.Range{To: n}})
	}
}

// take receives n bytes from the beginning.
func (e *End) take(n int64, then func(n int64) Step) Step {
	return recvFull(int(n), func(r Result) Step {
		got := &history.Received{ConnEnd: e.ID, Range: history.Range{To: int64(len(r.Data))}}
		if bad := verify(r.Data, e.ID.Other(), 0); bad >= 0 {
			got.Bad = new(int64(bad))
		}
		if len(r.Data) > 0 {
			e.env.Put(got)
		}
		if r.Status != "" {
			return done
		}
		return then(n)
	})
}

// takeEnd reads on, behind n bytes, to the orderly end that has to follow.
func (e *End) takeEnd(n int64) Step {
	return recvFull(1, func(r Result) Step { return e.nothing(n, r) })
}

// nothing records bytes from pos on that the peer never sent.
func (e *End) nothing(pos int64, r Result) Step {
	if n := int64(len(r.Data)); n > 0 {
		e.env.Put(&history.Received{ConnEnd: e.ID, Range: history.Range{From: pos, To: pos + n}, Bad: new(pos)})
	}
	return ended(r)
}

// park makes calls that block until the connection ends. The client sends to a server
// that does not receive, and receives and polls for data that never arrives. The server
// polls for the end.
func (e *End) park() (tasks []Task) {
	call := func(c Call, then func(Result) Step) {
		c.AtOnce = true
		tasks = append(tasks, Task{First: Step{Call: c, Then: then}})
	}
	if e.ID.Side == history.Client {
		p := make([]byte, e.plan.Parked)
		fill(p, e.ID, 0)
		e.env.Put(&history.Offered{ConnEnd: e.ID, Range: history.Range{To: int64(len(p))}})
		call(Call{Do: Send, Data: p}, func(r Result) Step {
			e.sent(r.N)
			return ended(r)
		})
		call(Call{Do: Recv, Len: 1, Full: true}, func(r Result) Step { return e.nothing(0, r) })
	}
	call(Call{Do: Poll}, func(r Result) Step {
		if r.Over || r.Status != "" {
			return ended(r)
		}
		// The poll reports that the connection has ended; a receive returns the reason.
		return recvFull(1, ended)
	})
	return tasks
}
