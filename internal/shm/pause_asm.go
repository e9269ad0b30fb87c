//go:build amd64 || arm64

package shm

//go:noescape
func pause(n uint32)
