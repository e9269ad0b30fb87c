package chaos

import (
	"context"
	"runtime"
)

// Hog uses one processor until ctx is done.
func Hog(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for x := uint64(1); ; x++ {
		if x&0xFFFFF == 0 && ctx.Err() != nil {
			return
		}
	}
}
