package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A crossWrites load writes into the responder's window while that writes into
// ours, for rma_bibw.
type crossWrites struct {
	rmaLoad
	from   *fabric.Memory // what the responder writes to
	fromAt int64
}

func newCrossWrites(ctx context.Context, _ side, ch *channel, j job) (load, error) {
	l, err := newRMA(ctx, ch, j, rmaLoad{style: streamed})
	if err != nil {
		return nil, err
	}
	mem, at, err := register(ch.node, ch.ep, l.size*l.slots)
	if err != nil {
		return nil, errors.Join(err, l.end())
	}
	return &crossWrites{*l, mem, at}, nil
}

// begin returns when the responder is ready to write, for a token.
func (c *crossWrites) begin(n int64) error {
	clear(c.from.Bytes())
	if err := c.rmaLoad.begin(n); err != nil {
		return err
	}
	_, err := ask(c.ch, command{Op: opPush, Size: c.size, Count: n, Seed: c.seed, Index: c.fromAt})
	return err
}

// run implements runner. Its bytes are those of both directions.
func (c *crossWrites) run(n int64, s *sample) error {
	began := time.Now()
	if _, err := c.ch.Write(make([]byte, tokenSize)); err != nil {
		return err
	}
	if err := repeat(n, c.op); err != nil {
		return err
	}
	if err := c.fence(); err != nil {
		return err
	}
	_, err := readWord(c.ch) // the responder's have arrived too
	s.elapsed = time.Since(began)
	s.bytes = 2 * n * c.size
	return err
}

// verify checks both windows.
func (c *crossWrites) verify(ops int64) (int64, error) {
	if !c.job.check || ops < c.slots {
		return 0, nil
	}
	there, err := c.rmaLoad.verify(ops)
	return there + c.fill.wrong(c.from.Bytes(), c.slots), err
}

func (c *crossWrites) end() error { return errors.Join(c.from.Close(), c.rmaLoad.end()) }

// push, after a token, writes Count times into the window of the initiator that
// begins at Index, from memory of its own.
func (r *responder) push(c command) error {
	if r.ep == nil || c.Seed == 0 {
		return errors.New("it needs an endpoint and a seed")
	}
	l, err := r.pusher(c)
	if err != nil {
		return err
	}
	if err := writeWord(r.rw, 0); err != nil {
		return err
	}
	if _, err := io.ReadFull(r.rw, make([]byte, tokenSize)); err != nil {
		return err
	}
	if err := repeat(c.Count, l.op); err != nil {
		return err
	}
	if err := l.fence(); err != nil {
		return err
	}
	return writeWord(r.rw, 0)
}

// pusher returns what writes, which a connection makes once: all its pushes have
// one size.
func (r *responder) pusher(c command) (*rmaLoad, error) {
	if r.pushing == nil {
		l := &rmaLoad{job: job{size: c.Size, seed: c.Seed}, ch: &channel{ReadWriter: r.rw, node: r.node, ep: r.ep},
			ctx: context.Background(), style: streamed, window: underWay(c.Size), slots: slotsOf(c.Size), fill: r.fill}
		var err error
		if l.memory, l.here, err = register(r.node, r.ep, l.size*l.slots); err != nil {
			return nil, err
		}
		l.mem = l.memory.Bytes()
		r.pushing = l
	}
	l := r.pushing
	if l.size != c.Size {
		return nil, errors.New("another size than before")
	}
	l.there = c.Index
	r.fill.fill(l.mem, l.slots)
	return l, nil
}
