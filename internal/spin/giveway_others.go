//go:build !linux

package spin

import "runtime"

// GiveWay lets other goroutines run: the caller may be looking for what one of them is
// about to do.
func GiveWay(bool) { runtime.Gosched() }
