package main

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// shared is what the responders of one server have in common.
type shared struct {
	ending chan struct{} // closed when the server ends

	mu     sync.Mutex
	memory *fabric.Memory // one page, made for the first that asks
}

// page returns the memory that all responders register.
func (s *shared) page(node *fabric.Node) (*fabric.Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory == nil {
		mem, err := node.Alloc(fabric.PageSize)
		if err != nil {
			return nil, err
		}
		s.memory = mem
	}
	return s.memory, nil
}

// release gives the page back, after the responders.
func (s *shared) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory != nil {
		// Windows keep the page until their endpoints have closed.
		_ = s.memory.Close()
	}
}

// share registers the shared page, or reads its first word.
func (r *responder) share(c command) error {
	if r.shared == nil {
		return errors.New("this connection can have no window")
	}
	mem, err := r.shared.page(r.node)
	if err != nil {
		return err
	}
	if c.Op == opWord {
		return writeWord(r.rw, wordAt(mem.Bytes()).Load())
	}
	off, err := r.ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return err
	}
	return writeWord(r.rw, uint64(off))
}

// signals answers Count signals, each with one of the same value.
func (r *responder) signals(c command) error {
	if r.shared == nil || len(r.window) < 8 {
		return errors.New("it needs a window")
	}
	word := wordAt(r.window)
	err := repeat(c.Count, func(i int64) error {
		next := c.Seed + uint64(i) + 1
		if err := await(r.shared.ending, func() bool { return word.Load() >= next }); err != nil {
			return err
		}
		return r.ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: c.Index, RemoteValue: next})
	})
	if err != nil {
		return err
	}
	return writeWord(r.rw, 0)
}

// mirror answers Count numbers in the window's first word, each at mirrorAt.
func (r *responder) mirror(c command) error {
	if r.shared == nil || len(r.window) < mirrorSize {
		return errors.New("it needs a window")
	}
	in, out := wordAt(r.window), wordAt(r.window[mirrorAt:])
	err := repeat(c.Count, func(i int64) error {
		next := c.Seed + uint64(i) + 1
		if err := await(r.shared.ending, func() bool { return in.Load() >= next }); err != nil {
			return err
		}
		out.Store(next)
		return nil
	})
	if err != nil {
		return err
	}
	return writeWord(r.rw, 0)
}

// awaitLimit bounds the wait for one word of memory.
const awaitLimit = 10 * time.Second

// await yields until done reports true, which nobody announces. It gives up when
// stop is closed, and after awaitLimit.
func await(stop <-chan struct{}, done func() bool) error {
	began := time.Now()
	for i := 1; !done(); i++ {
		if i%1024 == 0 {
			select {
			case <-stop:
				return errors.New("the server has ended")
			default:
			}
			if time.Since(began) > awaitLimit {
				return errors.New("the signal has not come")
			}
		}
		runtime.Gosched()
	}
	return nil
}

// both, after a token, sends and receives Count messages at the same time.
func (r *responder) both(c command) error {
	fill := r.fill
	if c.Seed == 0 {
		fill = newPattern(1, int(c.Size))
	}
	if _, err := io.ReadFull(r.rw, make([]byte, tokenSize)); err != nil {
		return err
	}
	wrong, err := exchangeBoth(r.rw, fill, c.Count, c.Seed != 0)
	if err != nil {
		return err
	}
	return writeWord(r.rw, uint64(wrong))
}

// exchangeBoth sends n messages of a pattern and at the same time receives n,
// and returns how many of these are wrong.
func exchangeBoth(rw io.ReadWriter, fill *pattern, n int64, check bool) (wrong int64, err error) {
	sent := make(chan error, 1)
	go func() { // ends with the last message, or with the connection
		sent <- repeat(n, func(i int64) error {
			_, err := rw.Write(fill.message(i))
			return err
		})
	}()
	p := make([]byte, fill.size)
	err = repeat(n, func(i int64) error {
		if _, err := io.ReadFull(rw, p); err != nil {
			return err
		}
		if check && !bytes.Equal(p, fill.message(i)) {
			wrong++
		}
		return nil
	})
	return wrong, first(err, <-sent)
}
