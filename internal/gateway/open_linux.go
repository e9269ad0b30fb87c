package gateway

import (
	"net"
	"runtime"
	"syscall"
)

// openToAll calls listen so that every user may write to the socket file that it makes. The
// mode is there with the file: what changes it later could be led to another one by whom the
// directory belongs to.
func openToAll(listen func() (net.Listener, error)) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() { // ends with listen, and its thread, whose umask is its own, with it
		defer close(done)
		runtime.LockOSThread()
		if err = syscall.Unshare(syscall.CLONE_FS); err != nil {
			return
		}
		syscall.Umask(0o111)
		l, err = listen()
	}()
	<-done
	return l, err
}
