package fabric_test

import (
	"encoding/binary"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// Connections between applications of one node carry all sent bytes, through
// deadlines that pass and garbage collections, until both sides close.
func TestNothingEndsAConnectionWithinANode(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	app := attacher(t, c, 0)
	client, server := app(), app()
	stop := make(chan struct{})
	var background, wg sync.WaitGroup
	background.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				runtime.GC()
			}
		}
	})
	for range 6 {
		near, far := dial(t, client, server)
		wg.Go(func() { pingPong(t, near, true) })
		wg.Go(func() { pingPong(t, far, false) })
	}
	wg.Wait()
	close(stop)
	background.Wait()
}

type deadliner interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
}

// pingPong counts with the other side.
func pingPong(t *testing.T, c deadliner, first bool) {
	defer c.Close()
	var p [8]byte
	for i := uint64(0); i < 2000; i++ {
		if first == (i%2 == 0) {
			binary.LittleEndian.PutUint64(p[:], i)
			if n, err := c.Write(p[:]); n != len(p) || err != nil {
				t.Errorf("Write of number %d = %d, %v", i, n, err)
				return
			}
			continue
		}
		if i%16 < 2 {
			c.SetReadDeadline(time.Now().Add(-time.Second))
			if n, err := c.Read(p[:]); n != 0 || !isTimeout(err) {
				t.Errorf("Read past its deadline = %d, %v", n, err)
				return
			}
			c.SetReadDeadline(time.Time{})
		}
		if _, err := io.ReadFull(c, p[:]); err != nil {
			t.Errorf("Read of number %d: %v", i, err)
			return
		}
		if got := binary.LittleEndian.Uint64(p[:]); got != i {
			t.Errorf("read number %d, want %d", got, i)
			return
		}
	}
	if first { // the last number is the other side's to read
		if _, err := c.Read(p[:]); err != io.EOF {
			t.Errorf("Read at the end = %v", err)
		}
	}
}

func isTimeout(err error) bool {
	e, ok := err.(interface{ Timeout() bool })
	return ok && e.Timeout()
}
