package workload

import (
	"encoding/binary"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// mix returns a number that depends on all bits of x.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// streamKey is what the bytes of one direction of a connection depend on.
func streamKey(nonce uint64, sender history.Side) uint64 {
	if sender == history.Server {
		nonce = ^nonce
	}
	return mix(nonce)
}

// Fill fills p with the bytes that sender sends on connection nonce from
// position pos on.
func Fill(p []byte, nonce uint64, sender history.Side, pos int64) {
	key := streamKey(nonce, sender)
	var word [8]byte
	for i := 0; i < len(p); {
		at := uint64(pos) + uint64(i)
		binary.LittleEndian.PutUint64(word[:], mix(key^at>>3))
		i += copy(p[i:], word[at&7:])
	}
}

// Verify returns the index of the first byte of p that is not what [Fill] puts
// there, -1 if there is none.
func Verify(p []byte, nonce uint64, sender history.Side, pos int64) int {
	key := streamKey(nonce, sender)
	var word [8]byte
	for i := 0; i < len(p); {
		at := uint64(pos) + uint64(i)
		binary.LittleEndian.PutUint64(word[:], mix(key^at>>3))
		for _, b := range word[at&7:] {
			if i == len(p) {
				break
			}
			if p[i] != b {
				return i
			}
			i++
		}
	}
	return -1
}
