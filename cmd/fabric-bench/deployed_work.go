package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A deployedTest is one measurement between two application processes.
type deployedTest struct {
	name string
	kind byte
	size int64
	unit string // of the figure
	// atLeast: a larger figure is better, and target is the least of ours/baseline.
	// Otherwise target is the most of it.
	atLeast bool
	target  figure
	// as is the kind of the baseline where only a fabric has the test's own.
	as byte
}

// The kinds of a deployedTest.
const (
	kindEcho    = 'e' // a message there and back; figure: half a round trip, µs
	kindTrip    = 't' // the same; figure: a whole round trip, µs
	kindStream  = 's' // messages one way; figure: MB/s
	kindConnect = 'c' // a new connection and a byte there and back; figure: µs
	kindPut     = 'p' // a write of size bytes and a fence; figure: µs
	kindAdd     = 'a' // a fetch-and-add; figure: µs
	kindWrite   = 'w' // writes of size bytes, one after the other; figure: MB/s
	kindRead    = 'r' // reads of size bytes, one after the other; figure: MB/s
)

// deployedTests are DESIGN.md's rows of attached applications.
var deployedTests = []deployedTest{
	{name: "message 8 B, half round trip", kind: kindEcho, size: 8, unit: "µs", target: 1.15},
	{name: "messages 64 KiB", kind: kindStream, size: 64 << 10, unit: "MB/s", atLeast: true, target: 0.95},
	{name: "messages 1 MiB", kind: kindStream, size: 1 << 20, unit: "MB/s", atLeast: true, target: 0.95},
	{name: "connect", kind: kindConnect, size: 1, unit: "µs"},
	{name: "RMA write 8 B and fence", kind: kindPut, size: 8, unit: "µs", target: 1.3, as: kindTrip},
	{name: "RMA fetch-add", kind: kindAdd, size: 8, unit: "µs", target: 1.3, as: kindTrip},
	{name: "RMA write 1 MiB", kind: kindWrite, size: 1 << 20, unit: "MB/s", atLeast: true, target: 0.95, as: kindStream},
	{name: "RMA read 1 MiB", kind: kindRead, size: 1 << 20, unit: "MB/s", atLeast: true, target: 0.95, as: kindStream},
}

// An order is what a client process does next, one line of JSON on its input.
type order struct {
	Kind   byte          `json:"kind"`
	Size   int64         `json:"size"` // bytes, 1 to maxOrder
	Warmup time.Duration `json:"warmup"`
	During time.Duration `json:"during"`
}

const maxOrder = 64 << 20

// An outcome is what a client has measured.
type outcome struct {
	Ops     int64         `json:"ops"`
	Bytes   int64         `json:"bytes"` // payload, one direction
	Elapsed time.Duration `json:"elapsed"`
	Error   string        `json:"error,omitempty"`
}

// figure is the outcome as the test's unit has it.
func (o outcome) figure(kind byte) figure {
	if o.Ops == 0 || o.Elapsed <= 0 {
		return absent
	}
	each := figure(o.Elapsed.Seconds()*1e6) / figure(o.Ops)
	switch kind {
	case kindEcho:
		return each / 2
	case kindStream, kindWrite, kindRead:
		return figure(o.Bytes) / figure(o.Elapsed.Seconds()) / 1e6
	}
	return each
}

// A request opens every connection: kind 1 | size 8, big-endian.
const requestLen = 9

func request(kind byte, size int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{kind}, uint64(size))
}

// serveDeployed answers one connection until its end.
func serveDeployed(node *fabric.Node, c net.Conn) error {
	defer c.Close()
	var head [requestLen]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	kind, size := head[0], int64(binary.BigEndian.Uint64(head[1:]))
	if size < 1 || size > maxOrder {
		return fmt.Errorf("request %q has size %d", kind, size)
	}
	switch kind {
	case kindEcho, kindTrip, kindConnect:
		return echo(c, make([]byte, size))
	case kindStream:
		return sink(c, make([]byte, size))
	case kindPut, kindAdd, kindWrite, kindRead:
		return exposeWindow(node, c, size)
	}
	return fmt.Errorf("request %q is unknown", kind)
}

func echo(c net.Conn, buf []byte) error {
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

// The first byte of a message of a stream: the last one is answered.
const (
	moreFollows = 0
	lastMessage = 1
)

func sink(c net.Conn, buf []byte) error {
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if buf[0] == lastMessage {
			if _, err := c.Write([]byte{lastMessage}); err != nil {
				return err
			}
		}
	}
}

// exposeWindow registers a window of size bytes, sends its offset and keeps it
// until the peer closes.
func exposeWindow(node *fabric.Node, c net.Conn, size int64) error {
	fc, ok := c.(*fabric.Conn)
	if !ok || node == nil {
		return errors.New("windows are a fabric's")
	}
	mem, err := node.Alloc(int(size))
	if err != nil {
		return err
	}
	off, err := fc.Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return err
	}
	if err := writeWord(c, uint64(off)); err != nil {
		return err
	}
	if _, err = c.Read(make([]byte, 1)); err == nil {
		err = errors.New("bytes beside a window")
	}
	return errors.Join(ignoreEOF(err), fc.Close(), mem.Close())
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// A dialFunc connects to the server of a carrier.
type dialFunc func(ctx context.Context) (net.Conn, error)

// A workload is one order on a connection: step does one operation, end waits
// until all have arrived.
type workload struct {
	step  func() error
	end   func() error
	close func() error
}

// newWorkload connects and prepares what o asks for.
func newWorkload(ctx context.Context, node *fabric.Node, dial dialFunc, o order) (*workload, error) {
	if o.Size < 1 || o.Size > maxOrder {
		return nil, fmt.Errorf("a size of %d bytes", o.Size)
	}
	if o.Kind == kindConnect {
		step := func() error { return connectOnce(ctx, dial, o) }
		return &workload{step: step, end: func() error { return nil }, close: func() error { return nil }}, nil
	}
	c, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(request(o.Kind, o.Size)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	buf := make([]byte, o.Size)
	switch o.Kind {
	case kindEcho, kindTrip:
		step := func() error { return trip(c, buf) }
		return &workload{step: step, end: func() error { return nil }, close: c.Close}, nil
	case kindStream:
		step := func() error { _, err := c.Write(buf); return err }
		end := func() error {
			buf[0] = lastMessage
			defer func() { buf[0] = moreFollows }()
			if _, err := c.Write(buf); err != nil {
				return err
			}
			_, err := io.ReadFull(c, make([]byte, 1))
			return err
		}
		return &workload{step: step, end: end, close: c.Close}, nil
	}
	return windowWorkload(ctx, node, c, o)
}

func trip(c net.Conn, buf []byte) error {
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf)
	return err
}

func connectOnce(ctx context.Context, dial dialFunc, o order) error {
	c, err := dial(ctx)
	if err != nil {
		return err
	}
	if _, err := c.Write(request(kindConnect, o.Size)); err != nil {
		return errors.Join(err, c.Close())
	}
	return errors.Join(trip(c, make([]byte, o.Size)), c.Close())
}

// windowWorkload is newWorkload for remote memory.
func windowWorkload(ctx context.Context, node *fabric.Node, c net.Conn, o order) (_ *workload, err error) {
	fc, ok := c.(*fabric.Conn)
	if !ok || node == nil {
		return nil, errors.Join(errors.New("remote memory is a fabric's"), c.Close())
	}
	ep := fc.Endpoint()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	word, err := readWord(c)
	if err != nil {
		return nil, err
	}
	far := int64(word)
	mem, err := node.Alloc(int(o.Size))
	if err != nil {
		return nil, err
	}
	near, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	w := &workload{
		end:   func() error { return nil },
		close: func() error { return errors.Join(c.Close(), mem.Close()) },
	}
	switch o.Kind {
	case kindPut:
		w.step = func() error {
			if err := ep.WriteTo(near, o.Size, far, 0); err != nil {
				return err
			}
			mark, err := ep.FenceMark(fabric.InitSelf)
			if err != nil {
				return err
			}
			return ep.FenceWait(ctx, mark)
		}
	case kindWrite:
		w.step = func() error { return ep.WriteTo(near, o.Size, far, fabric.Sync) }
	case kindRead:
		w.step = func() error { return ep.ReadFrom(near, o.Size, far, fabric.Sync) }
	case kindAdd:
		w.step = func() error { _, err := ep.FetchAdd64(ctx, far, 1); return err }
	default:
		return nil, errors.Join(fmt.Errorf("order %q is unknown", o.Kind), mem.Close())
	}
	return w, nil
}

// repeat does w for d and at least once.
func (w *workload) repeat(d time.Duration, size int64) (outcome, error) {
	var o outcome
	begin := time.Now()
	for {
		if err := w.step(); err != nil {
			return o, err
		}
		o.Ops++
		if o.Elapsed = time.Since(begin); o.Elapsed >= d {
			break
		}
	}
	err := w.end()
	o.Elapsed = time.Since(begin)
	o.Bytes = o.Ops * size
	return o, err
}
