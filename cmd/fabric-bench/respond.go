package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/fabricd/fabricd/fabric"
)

// A responder is the passive end of one connection. One goroutine runs it.
type responder struct {
	rw   io.ReadWriter
	node *fabric.Node     // nil at an anchor, which has no windows
	ep   *fabric.Endpoint // the same

	fill   *pattern       // of the last command that had a seed
	window []byte         // nil before opWindow
	memory *fabric.Memory // that window is part of
	offset int64          // at which it is registered
	shared *shared        // with the other responders; nil at an anchor

	pushing *rmaLoad // of opPush; nil before the first
}

// run obeys commands until the initiator closes the connection.
func (r *responder) run() error {
	defer r.release()
	for {
		c, err := readCommand(r.rw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.obey(c); err != nil {
			return fmt.Errorf("command %d: %w", c.Op, err)
		}
	}
}

func (r *responder) release() {
	if r.memory != nil {
		// The window keeps the pages until the endpoint has closed.
		_ = r.memory.Close()
	}
	if r.pushing != nil {
		_ = r.pushing.end()
	}
}

func (r *responder) obey(c command) error {
	if err := affordAt(c.memory(), 1); err != nil {
		return err
	}
	if c.Seed != 0 && (r.fill == nil || r.fill.seed != c.Seed || int64(r.fill.size) != c.Size) {
		r.fill = newPattern(c.Seed, int(c.Size))
	}
	switch c.Op {
	case opEcho:
		return r.echo(c)
	case opSink:
		return r.sink(c)
	case opAck:
		return r.exchange(c.Count, make([]byte, c.Size), make([]byte, tokenSize))
	case opReply:
		return r.exchange(c.Count, make([]byte, tokenSize), make([]byte, c.Size))
	case opBoth:
		return r.both(c)
	case opSource:
		if _, err := io.ReadFull(r.rw, make([]byte, tokenSize)); err != nil {
			return err
		}
		return r.exchange(c.Count, nil, make([]byte, c.Size))
	case opWindow:
		return r.open(c)
	case opRenew:
		return r.renew()
	case opSignal:
		return r.signals(c)
	case opMirror:
		return r.mirror(c)
	case opShare, opWord:
		return r.share(c)
	case opPush:
		return r.push(c)
	}
	if r.fill == nil || int64(len(r.window)) < c.Size*c.Count {
		return errors.New("it needs a window and a seed")
	}
	return writeWord(r.rw, r.onWindow(c))
}

func (r *responder) echo(c command) error {
	p := make([]byte, c.Size)
	return repeat(c.Count, func(int64) error {
		if _, err := io.ReadFull(r.rw, p); err != nil {
			return err
		}
		_, err := r.rw.Write(p)
		return err
	})
}

func (r *responder) sink(c command) error {
	p, wrong := make([]byte, c.Size), uint64(0)
	err := repeat(c.Count, func(i int64) error {
		if _, err := io.ReadFull(r.rw, p); err != nil {
			return err
		}
		if c.Seed != 0 && !r.fill.is(p, i) {
			wrong++
		}
		if c.Index > 0 && (i+1)%c.Index == 0 {
			_, err := r.rw.Write(make([]byte, tokenSize))
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	return writeWord(r.rw, wrong)
}

// exchange n times fills in and then sends out.
func (r *responder) exchange(n int64, in, out []byte) error {
	return repeat(n, func(int64) error {
		if len(in) > 0 {
			if _, err := io.ReadFull(r.rw, in); err != nil {
				return err
			}
		}
		_, err := r.rw.Write(out)
		return err
	})
}

func repeat(n int64, f func(i int64) error) error {
	for i := range n {
		if err := f(i); err != nil {
			return err
		}
	}
	return nil
}

// open registers the window.
func (r *responder) open(c command) error {
	if r.ep == nil || r.memory != nil {
		return errors.New("this connection can have no window, or has one")
	}
	mem, off, err := register(r.node, r.ep, c.Size*c.Count)
	if err != nil {
		return err
	}
	r.memory, r.window, r.offset = mem, mem.Bytes(), off
	return writeWord(r.rw, uint64(off))
}

// renew registers the window's memory again, as another window.
func (r *responder) renew() error {
	if r.memory == nil {
		return errors.New("it needs a window")
	}
	if err := r.ep.Unregister(r.offset, int64(len(r.window))); err != nil {
		return err
	}
	off, err := r.ep.Register(r.window, 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return err
	}
	r.offset = off
	return writeWord(r.rw, uint64(off))
}

// register makes n bytes, rounded up to pages, a window of the endpoint.
func register(node *fabric.Node, ep *fabric.Endpoint, n int64) (*fabric.Memory, int64, error) {
	mem, err := node.Alloc(int((n + fabric.PageSize - 1) / fabric.PageSize * fabric.PageSize))
	if err != nil {
		return nil, 0, err
	}
	off, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return nil, 0, errors.Join(err, mem.Close())
	}
	return mem, off, nil
}

// onWindow does what concerns the window's bytes.
func (r *responder) onWindow(c command) uint64 {
	switch c.Op {
	case opClear:
		wipe(r.window)
	case opFill:
		r.fill.fill(r.window, c.Count)
	case opStore:
		r.fill.put(r.window, c.Index)
	case opCompare:
		if !r.fill.is(r.window[:c.Size], c.Index) {
			return 1
		}
	case opVerify:
		return uint64(r.fill.wrong(r.window, c.Count))
	}
	return 0
}
