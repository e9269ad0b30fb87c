//go:build !linux

package spin

import "runtime"

// Yield lets other goroutines run: the caller may be looking for what one of them is
// about to do.
func Yield() { runtime.Gosched() }
