package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// patternTurns is how many different messages a pattern has.
const patternTurns = 257

// A pattern is what messages and windows are filled with: pseudorandom bytes
// of a seed, of which message i takes those from i mod patternTurns on. Both
// ends make it for themselves, so that every byte can be checked. In what is larger
// than commonSize they come again after so many, which bounds its memory.
type pattern struct {
	seed  uint64
	size  int
	bytes []byte // patternTurns more than a block
}

func newPattern(seed uint64, size int) *pattern {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	p := &pattern{seed: seed, size: size, bytes: make([]byte, min(size, int(commonSize))+patternTurns)}
	// It cannot fail.
	_, _ = rand.NewChaCha8(key).Read(p.bytes)
	return p
}

// block returns what message i begins with, and repeats if it is longer.
func (p *pattern) block(i int64) []byte {
	at, n := int(uint64(i)%patternTurns), len(p.bytes)-patternTurns
	return p.bytes[at : at+n : at+n]
}

// message returns message i, in memory of its own if it is longer than a block. It
// must not be changed.
func (p *pattern) message(i int64) []byte {
	if p.size <= int(commonSize) {
		return p.block(i)
	}
	long := make([]byte, p.size)
	p.put(long, i)
	return long
}

// put writes message i to the beginning of mem.
func (p *pattern) put(mem []byte, i int64) {
	for mem = mem[:p.size]; len(mem) > 0; {
		for block := p.block(i); len(block) > 0 && len(mem) > 0; { // in pieces, as in wipe
			n := copy(mem, block[:min(len(block), wipePiece)])
			mem, block = mem[n:], block[n:]
		}
	}
}

// next returns message i, in last if that is one which is longer than a block.
func (p *pattern) next(last []byte, i int64) []byte {
	if len(last) <= int(commonSize) {
		return p.message(i)
	}
	p.put(last, i)
	return last
}

// is reports whether mem is message i.
func (p *pattern) is(mem []byte, i int64) bool {
	if len(mem) != p.size {
		return false
	}
	for block := p.block(i); len(mem) > 0; {
		n := min(len(mem), len(block))
		if !bytes.Equal(mem[:n], block[:n]) {
			return false
		}
		mem = mem[n:]
	}
	return true
}

// fill writes message s into slot s of mem, for all slots.
func (p *pattern) fill(mem []byte, slots int64) {
	for s := range slots {
		p.put(mem[s*int64(p.size):], s)
	}
}

// wipe clears mem in pieces: the runtime stops nobody within one, and would let the
// links of this process be silent for as long as 1 GiB takes.
func wipe(mem []byte) {
	for piece := range slices.Chunk(mem, wipePiece) {
		clear(piece)
	}
}

const wipePiece = 1 << 20 // bytes

// wrong returns how many slots of mem do not hold what fill writes.
func (p *pattern) wrong(mem []byte, slots int64) (n int64) {
	for s := range slots {
		if at := s * int64(p.size); !p.is(mem[at:at+int64(p.size)], s) {
			n++
		}
	}
	return n
}
