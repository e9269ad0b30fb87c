//go:build amd64 || arm64

package ring

// prefetchWrite makes the processor fetch the cache line at p for a store that
// comes soon. It changes nothing.
//
//go:noescape
func prefetchWrite(p *byte)
