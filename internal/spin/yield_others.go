//go:build !linux

package spin

import "runtime"

// Yield yields to other goroutines: the caller may be polling for a result of one of them.
func Yield() { runtime.Gosched() }
