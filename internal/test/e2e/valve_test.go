package e2e

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// A valve stands between a process and its log. It passes everything until the
// process begins to dump its goroutines, and then nothing until it is
// opened: so long the process blocks on a full pipe, and no other node
// sees it end.
type valve struct {
	log   string
	w     *os.File      // the process's standard error, until it is started
	begun chan struct{} // closed when the process has begun to say it
	open  chan struct{} // closed to let the rest pass
	done  chan struct{} // closed when all is in the log
}

// dumpBegins is the line that a Go program prints before its goroutines, all of which
// stand still then.
const dumpBegins = "SIGQUIT: quit"

// valvePipe is the size of the pipe: far less than a dump.
const valvePipe = 4096

func newValve(log string) (*valve, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	const setPipeSize = 1031 // F_SETPIPE_SZ
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, w.Fd(), setPipeSize, valvePipe); errno != 0 {
		return nil, fmt.Errorf("set the size of a pipe: %w", errno)
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	v := &valve{log: log, w: w, begun: make(chan struct{}), open: make(chan struct{}), done: make(chan struct{})}
	go func() { // ends with the process, which has the only other end
		defer close(v.done)
		defer r.Close()
		defer f.Close()
		v.pass(r, f)
	}()
	return v, nil
}

// pass copies r to f.
func (v *valve) pass(r, f *os.File) {
	var tail []byte // enough of it to find dumpBegins across two reads
	buf := make([]byte, valvePipe)
	for shut := false; ; {
		n, err := r.Read(buf)
		f.Write(buf[:n])
		tail = append(tail, buf[:n]...)
		if !shut && bytes.Contains(tail, []byte(dumpBegins)) {
			shut = true
			close(v.begun)
			<-v.open
		}
		tail = append([]byte(nil), tail[max(0, len(tail)-len(dumpBegins)):]...)
		if err != nil {
			return
		}
	}
}

// dump ends the nodes with SIGQUIT, on which they print their goroutines.
// All begin to before the first can end: a node that sees another one end has
// other goroutines, for a control connection that is gone, or one that is
// dialed in its place.
func dump(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		n.signal(t, syscall.SIGQUIT)
	}
	for _, n := range nodes {
		within := within(t, stepLimit)
		select {
		case <-n.valve.begun:
		case <-within.Done():
			t.Fatalf("%s does not say what its goroutines do", n.name)
		}
	}
	for _, n := range nodes {
		if !n.running() {
			t.Fatalf("%s has ended while its dump was held: it was too short, or not read right", n.name)
		}
	}
	for _, n := range nodes {
		close(n.valve.open)
	}
	for _, n := range nodes {
		n.exit(t, stepLimit)
		<-n.valve.done
	}
}
