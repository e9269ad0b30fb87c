package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// The kinds of an order.
const (
	kindAdd     = 'a' // a fetch-and-add; figure: µs
	kindConnect = 'c' // a new connection and a byte there and back; figure: µs
	kindEcho    = 'e' // a message there and back; figure: half a round trip, µs
	kindRate    = 'm' // messages one way; figure: how many a second
	kindPut     = 'p' // a write of size bytes and a fence; figure: µs
	kindRead    = 'r' // reads of size bytes, one after the other; figure: MB/s
	kindReads   = 'R' // reads of size bytes, a few in flight at once; figure: MB/s
	kindStream  = 's' // messages one way; figure: MB/s
	kindTrip    = 't' // a message there and back; figure: a whole round trip, µs
	kindWrite   = 'w' // writes of size bytes, a few in flight at once; figure: MB/s
)

// The kinds of an order for connections that stay open: see manyAtOnce.
const (
	kindOpen = 0x80 + iota // open Count, and use each
	kindHold               // leave them idle
	kindTalk               // a message there and back on each in turn, by a few goroutines
	kindShut               // close them
)

// An order is the next task of a client process, one line of JSON on its input.
type order struct {
	Kind   byte          `json:"kind"`
	Size   int64         `json:"size"` // bytes, 1 to maxOrder
	Warmup time.Duration `json:"warmup"`
	During time.Duration `json:"during"`
	Count  int           `json:"count,omitempty"` // connections, of kindOpen
}

const maxOrder = 64 << 20

// An outcome is a client's measurement.
type outcome struct {
	Ops     int64         `json:"ops"`
	Bytes   int64         `json:"bytes"` // payload, one direction
	Elapsed time.Duration `json:"elapsed"`
	Mallocs int64         `json:"mallocs"` // in this process, during the measurement
	Error   string        `json:"error,omitempty"`
}

// figure returns the outcome in the unit of the kind.
func (o outcome) figure(kind byte) figure {
	if o.Ops == 0 || o.Elapsed <= 0 {
		return absent
	}
	each := figure(o.Elapsed.Seconds()*1e6) / figure(o.Ops)
	switch kind {
	case kindEcho:
		return each / 2
	case kindRate:
		return figure(o.Ops) / figure(o.Elapsed.Seconds())
	case kindStream, kindWrite, kindRead, kindReads:
		return figure(o.Bytes) / figure(o.Elapsed.Seconds()) / 1e6
	}
	return each
}

// A request opens every connection: kind 1 | size 8, big-endian.
const requestLen = 9

func request(kind byte, size int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{kind}, uint64(size))
}

// serveOne answers one connection until its end.
func serveOne(node *fabric.Node, c net.Conn) error {
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
	case kindStream, kindRate:
		return sink(c, make([]byte, size))
	case kindPut, kindAdd, kindWrite, kindRead, kindReads:
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
	if err := binary.Write(c, binary.BigEndian, off); err != nil {
		return err
	}
	if _, err = c.Read(make([]byte, 1)); err == nil {
		err = errors.New("bytes beside a window")
	}
	return errors.Join(ignore(err, io.EOF), fc.Close(), mem.Close())
}

// A dialFunc connects to the server of a carrier.
type dialFunc func(ctx context.Context) (net.Conn, error)

// A workload is one order on a connection: step performs one operation, end waits until all have
// completed.
type workload struct {
	step  func() error
	end   func() error
	close func() error
}

// newWorkload connects and prepares the operations of o.
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
		for i := range buf {
			buf[i] = byte(i*31 + 7)
		}
		want := bytes.Clone(buf)
		step := func() error { return trip(c, buf) }
		return &workload{step: step, end: func() error { return same(buf, want) }, close: c.Close}, nil
	case kindStream, kindRate:
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

var errWrongBytes = errors.New("the bytes are wrong")

func same(got, want []byte) error {
	if !bytes.Equal(got, want) {
		return errWrongBytes
	}
	return nil
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
	var far int64
	if err := binary.Read(c, binary.BigEndian, &far); err != nil {
		return nil, err
	}
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
		w.step, w.end = posted(ctx, ep, func() error { return ep.WriteTo(near, o.Size, far, 0) })
	case kindRead:
		w.step = func() error { return ep.ReadFrom(near, o.Size, far, fabric.Sync) }
	case kindReads:
		w.step, w.end = abreast(func() error { return ep.ReadFrom(near, o.Size, far, fabric.Sync) })
	case kindAdd:
		w.step = func() error { _, err := ep.FetchAdd64(ctx, far, 1); return err }
	default:
		return nil, errors.Join(fmt.Errorf("order %q is unknown", o.Kind), mem.Close())
	}
	return w, nil
}

// This many writes, or reads, are in flight at once, as when UCX and OSU measure the throughput of
// a put or a get.
const (
	writesUnderWay = 16
	readsUnderWay  = 8
)

// posted returns a step that calls post, which does not wait, and then waits for the post
// writesUnderWay before; end waits for all.
func posted(ctx context.Context, ep *fabric.Endpoint, post func() error) (step, end func() error) {
	var marks [writesUnderWay]fabric.Mark
	n := 0
	step = func() error {
		at := n % writesUnderWay
		if n >= writesUnderWay {
			if err := ep.FenceWait(ctx, marks[at]); err != nil {
				return err
			}
		}
		if err := post(); err != nil {
			return err
		}
		n++
		var err error
		marks[at], err = ep.FenceMark(fabric.InitSelf)
		return err
	}
	end = func() error {
		mark, err := ep.FenceMark(fabric.InitSelf)
		if err != nil {
			return err
		}
		return ep.FenceWait(ctx, mark)
	}
	return step, end
}

// abreast returns a step that starts do in its own goroutine once fewer than readsUnderWay run; end
// waits for all.
func abreast(do func() error) (step, end func() error) {
	ended := make(chan error, readsUnderWay)
	for range readsUnderWay {
		ended <- nil
	}
	step = func() error {
		if err := <-ended; err != nil {
			return err
		}
		go func() { ended <- do() }()
		return nil
	}
	end = func() error {
		var errs []error
		for range readsUnderWay {
			errs = append(errs, <-ended)
		}
		for range readsUnderWay { // for the next time
			ended <- nil
		}
		return errors.Join(errs...)
	}
	return step, end
}

// repeat performs w for d, and at least once.
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
