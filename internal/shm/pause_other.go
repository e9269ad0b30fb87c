//go:build !amd64 && !arm64

package shm

import "sync/atomic"

var idle atomic.Uint32

func pause(n uint32) {
	for range n {
		idle.Load()
	}
}
