package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
)

// patternTurns is how many different messages a pattern has.
const patternTurns = 257

// A pattern is what messages and windows are filled with: pseudorandom bytes
// of a seed, of which message i takes those from i mod patternTurns on. Both
// ends make it for themselves, so that every byte can be checked.
type pattern struct {
	seed  uint64
	size  int
	bytes []byte
}

func newPattern(seed uint64, size int) *pattern {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	p := &pattern{seed: seed, size: size, bytes: make([]byte, size+patternTurns)}
	// It cannot fail.
	_, _ = rand.NewChaCha8(key).Read(p.bytes)
	return p
}

// message returns message i. It must not be changed.
func (p *pattern) message(i int64) []byte {
	at := int(uint64(i) % patternTurns)
	return p.bytes[at : at+p.size : at+p.size]
}

// fill writes message s into slot s of mem, for all slots.
func (p *pattern) fill(mem []byte, slots int64) {
	for s := range slots {
		copy(mem[s*int64(p.size):], p.message(s))
	}
}

// wrong returns how many slots of mem do not hold what fill writes.
func (p *pattern) wrong(mem []byte, slots int64) (n int64) {
	for s := range slots {
		if at := s * int64(p.size); !bytes.Equal(mem[at:at+int64(p.size)], p.message(s)) {
			n++
		}
	}
	return n
}
