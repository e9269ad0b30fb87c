package main

import (
	"context"
	"errors"

	"github.com/fabricd/fabricd/fabric"
)

// openingSize is how much an operation of window_open_cached writes, in bytes.
const openingSize = 8

// payingUses is how often a window is used beside what is timed: a node that maps
// windows stops doing so for those that are hardly used.
const payingUses = 4

// An opening load writes a few bytes to a window that it has not used before, or
// to one that it has.
type opening struct {
	rmaLoad
	fresh bool // the peer registers the window anew before every operation
}

func onOpening(fresh bool) builder {
	return func(ctx context.Context, _ side, ch *channel, j job) (load, error) {
		l, err := newRMA(ctx, ch, j, rmaLoad{heap: true})
		if err != nil {
			return nil, err
		}
		return &opening{rmaLoad: *l, fresh: fresh}, nil
	}
}

func (o *opening) begin(n int64) error {
	if err := o.rmaLoad.begin(n); err != nil {
		return err
	}
	return o.use()
}

func (o *opening) prepare(i int64) error {
	copy(o.mem, o.fill.message(i))
	if !o.fresh {
		return nil
	}
	off, err := ask(o.ch, o.command(opRenew, 0))
	o.there = int64(off)
	return err
}

func (o *opening) op(int64) error {
	return o.ch.ep.VWriteTo(o.mem[:min(o.size, openingSize)], o.there, fabric.Sync)
}

// check looks at what has arrived, once the rest of the message has too.
func (o *opening) check(i int64) (int64, error) {
	if err := errors.Join(o.use(), o.op(i)); err != nil {
		return 0, err
	}
	if o.size > openingSize {
		if err := o.ch.ep.VWriteTo(o.mem[openingSize:o.size], o.there+openingSize, fabric.Sync); err != nil {
			return 0, err
		}
	}
	return o.rmaLoad.check(i)
}

// use makes the window worth being known.
func (o *opening) use() error {
	return repeat(payingUses, func(int64) error { return o.op(0) })
}
