//go:build amd64 || arm64

package ring

// prefetchWrite makes the processor fetch the cache line at p for an imminent store. It has no
// other effect.
//
//go:noescape
func prefetchWrite(p *byte)
