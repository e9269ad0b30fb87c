package main

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"
)

// Where the kernel lets us count, all threads count, also those that begin
// later; elsewhere a run says why it does not.
func TestSystemCallsAreCounted(t *testing.T) {
	c, err := newCallCounter()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return // without tracefs or the right to it; TestARunThatDoesNotCountSaysWhy
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	before, err := c.count()
	if err != nil {
		t.Fatal(err)
	}
	const goroutines, each = 32, 1000
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range each {
				if _, err := f.Read(make([]byte, 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	after, err := c.count()
	if got := after - before; err != nil || got < goroutines*each || got > 2*goroutines*each {
		t.Errorf("%d calls, %v; want the %d that were made and a few", got, err, goroutines*each)
	}
}

func TestARunThatDoesNotCountSaysWhy(t *testing.T) {
	temporaries(t)
	d := document(t, "run", "msg_lat", "--provider", "mem", "--size", "64", "--iters", "20", "--reps", "1")
	if counted := d.Results[0].Syscalls.measured(); counted == (len(d.Notes) == 1) {
		t.Errorf("counted %v, notes %q", counted, d.Notes)
	}
}
