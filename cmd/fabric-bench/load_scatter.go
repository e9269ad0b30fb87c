package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// A move is one write of a scatter: bytes of the own window to the peer's, each
// offset from where the window begins.
type move struct{ from, to, n int64 }

// shiftMost is the largest shift of rma_align.
const shiftMost = 63

// shifted returns the one move of rma_align.
func shifted(from, to int64) func(size int64) []move {
	return func(size int64) []move { return []move{{from, to, size}} }
}

// stridedPieces is into how many pieces rma_strided divides a block.
const stridedPieces = 16

// strided returns the moves of a block that lies together here and in pieces
// there, with gaps as wide as the pieces.
func strided(size int64) (moves []move) {
	piece := (size + stridedPieces - 1) / stridedPieces
	for at := int64(0); at < size; at += piece {
		moves = append(moves, move{at, 2 * at, min(piece, size-at)})
	}
	return moves
}

// A scatter does the moves of a block, and waits until all of it is there. The
// bytes of the windows that no move touches stay 0, which it checks too.
type scatter struct {
	passive
	job
	ch          *channel
	ctx         context.Context
	moves       []move
	fill        *pattern
	memory      *fabric.Memory
	mem         []byte
	here, there int64
	seen        []byte // a copy of the peer's window; nil unless bytes are checked
}

func onScatter(plan func(size int64) []move) builder {
	return func(ctx context.Context, _ side, ch *channel, j job) (_ load, err error) {
		s := &scatter{job: j, ch: ch, ctx: ctx, moves: plan(j.size), fill: newPattern(j.seed, int(j.size))}
		span := s.span()
		if span > maxSize {
			return nil, fmt.Errorf("%w: %s scattered are more than a window of this benchmark may have", syscall.EOPNOTSUPP, sizeName(j.size))
		}
		if s.memory, s.here, err = register(ch.node, ch.ep, span); err != nil {
			return nil, err
		}
		s.mem = s.memory.Bytes()
		off, err := ask(ch, s.command(opWindow))
		if err != nil {
			return nil, errors.Join(err, s.end())
		}
		s.there = int64(off)
		if j.check {
			s.seen = make([]byte, span)
		}
		return s, nil
	}
}

// span returns how large the windows are: what the moves touch and a little
// more, which must stay untouched.
func (s *scatter) span() int64 {
	last := s.moves[len(s.moves)-1]
	return max(last.from, last.to) + last.n + shiftMost
}

func (s *scatter) command(op uint64) command {
	return command{Op: op, Size: s.span(), Count: 1, Seed: s.seed}
}

func (s *scatter) begin(int64) error {
	copy(s.mem[s.moves[0].from:], s.fill.message(0))
	_, err := ask(s.ch, s.command(opClear))
	return err
}

func (s *scatter) prepare(i int64) error {
	if s.job.check {
		copy(s.mem[s.moves[0].from:], s.fill.message(i))
	}
	return nil
}

func (s *scatter) op(int64) error {
	if len(s.moves) == 1 {
		return s.write(s.moves[0], fabric.Sync)
	}
	for _, m := range s.moves {
		if err := s.write(m, 0); err != nil {
			return err
		}
	}
	mark, err := s.ch.ep.FenceMark(fabric.InitSelf)
	if err != nil {
		return err
	}
	return s.ch.ep.FenceWait(s.ctx, mark)
}

func (s *scatter) write(m move, flags fabric.RMAFlags) error {
	return s.ch.ep.WriteTo(s.here+m.from, m.n, s.there+m.to, flags)
}

// check implements load: it reads the peer's window in one piece.
func (s *scatter) check(int64) (int64, error) {
	if !s.job.check {
		return 0, nil
	}
	if err := s.ch.ep.VReadFrom(s.seen, s.there, fabric.Sync); err != nil {
		return 0, err
	}
	untouched := int64(0) // from where on
	for _, m := range s.moves {
		if !zero(s.seen[untouched:m.to]) || !bytes.Equal(s.seen[m.to:m.to+m.n], s.mem[m.from:m.from+m.n]) {
			return 1, nil
		}
		untouched = m.to + m.n
	}
	if !zero(s.seen[untouched:]) {
		return 1, nil
	}
	return 0, nil
}

// zero reports whether all bytes are 0.
func zero(p []byte) bool { return len(bytes.TrimLeft(p, "\x00")) == 0 }

func (s *scatter) end() error { return s.memory.Close() }
