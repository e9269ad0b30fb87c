package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

func testLaneOrder(e *env) {
	data := payload(3 << 20)
	s := e.open()
	sent := async(func() error {
		defer s.Close()
		sizes := rand.New(rand.NewPCG(1, 2))
		for rest := data; len(rest) > 0; {
			k := min(len(rest), 1+sizes.IntN(100<<10))
			if _, err := s.Write(rest[:k]); err != nil {
				return err
			}
			rest = rest[k:]
		}
		return nil
	})
	e.wantEnd(e.accept(), data)
	if err := soon(e, "writes", sent); err != nil {
		e.Errorf("write: %v", err)
	}
}

func testEndAfterData(e *env) {
	s := e.open()
	e.write(s, []byte("first"))
	e.write(s, []byte(" last"))
	if err := s.Close(); err != nil {
		e.Errorf("close: %v", err)
	}
	r := e.accept()
	e.wantEnd(r, []byte("first last"))
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		e.Errorf("read after the end: %d, %v; want EOF again", n, err)
	}
}

func testEmptyLane(e *env) {
	e.open().Close()
	e.wantEnd(e.accept(), nil)
}

func testWriteCopies(e *env) {
	s := e.open()
	p := []byte("kept")
	e.write(s, p)
	copy(p, "lost")
	if ok, err := s.TryWrite(p); !ok || err != nil {
		e.Fatalf("try write: %v, %v", ok, err)
	}
	clear(p)
	s.Close()
	e.wantEnd(e.accept(), []byte("keptlost"))
}

func testWriteAfterClose(e *env) {
	s := e.open()
	s.Close()
	_, err := s.Write([]byte("x"))
	e.wantError("write after close", err, transport.ErrClosed)
	_, err = s.TryWrite([]byte("x"))
	e.wantError("try write after close", err, transport.ErrClosed)
	if err := e.a.Err(); err != nil {
		e.Errorf("the session ended: %v", err)
	}
}

func testCancelAfterClose(e *env) {
	data := payload(100 << 10)
	s := e.open()
	e.write(s, data)
	s.Close()
	s.Cancel()
	e.wantEnd(e.accept(), data)
}

func testSenderCancel(e *env) {
	s, r := e.lane()
	s.Cancel()
	_, err := r.Read(make([]byte, 1))
	e.wantError("read", err, transport.ErrLaneCanceled)
	_, err = s.Write([]byte("x"))
	e.wantError("write", err, transport.ErrLaneCanceled)
	_, err = s.TryWrite([]byte("x"))
	e.wantError("try write", err, transport.ErrLaneCanceled)
	s.Cancel()
	r.Cancel()
	e.lane() // the session lives
}

func testSenderCancelWakesWrite(e *env) {
	s, _ := e.lane()
	e.fill(s)
	blocked := async(func() error { _, err := s.Write(make([]byte, 1<<20)); return err })
	s.Cancel()
	e.wantError("blocked write", soon(e, "write", blocked), transport.ErrLaneCanceled)
}

func testReaderCancel(e *env) {
	s, r := e.lane()
	e.fill(s)
	blocked := async(func() error { _, err := s.Write(make([]byte, 1<<20)); return err })
	r.Cancel()
	e.wantError("blocked write", soon(e, "write", blocked), transport.ErrLaneCanceled)
	_, err := s.Write([]byte("x"))
	e.wantError("later write", err, transport.ErrLaneCanceled)
	_, err = r.Read(make([]byte, 1))
	e.wantError("read", err, transport.ErrLaneCanceled)
	r.Cancel()
	s.Cancel()
}

func testReaderCancelWakesRead(e *env) {
	_, r := e.lane()
	blocked := async(func() error { _, err := r.Read(make([]byte, 1)); return err })
	r.Cancel()
	e.wantError("blocked read", soon(e, "read", blocked), transport.ErrLaneCanceled)
}

func testReadDeadline(e *env) {
	s, r := e.lane()
	blocked := async(func() error { _, err := r.Read(make([]byte, 1)); return err })
	r.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	e.wantError("blocked read", soon(e, "read", blocked), os.ErrDeadlineExceeded)
	_, err := r.Read(make([]byte, 1))
	e.wantError("later read", err, os.ErrDeadlineExceeded)
	r.SetReadDeadline(time.Time{})
	e.write(s, []byte("after"))
	e.want(r, []byte("after"))
}

func testWriteDeadline(e *env) {
	s, r := e.lane()
	took := e.fill(s)
	blocked := async(func() error { _, err := s.Write(make([]byte, 1)); return err })
	s.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	// The write may still fit into the buffers of the provider's lane.
	if err := soon(e, "write", blocked); err == nil {
		took++
	} else {
		e.wantError("blocked write", err, os.ErrDeadlineExceeded)
	}
	s.SetWriteDeadline(time.Now().Add(-time.Second))
	_, err := s.Write(make([]byte, 1))
	e.wantError("write after the deadline", err, os.ErrDeadlineExceeded)
	s.SetWriteDeadline(time.Time{})
	rest := async(func() error {
		defer s.Close()
		_, err := s.Write([]byte("z"))
		return err
	})
	e.wantEnd(r, append(make([]byte, took), 'z'))
	if err := soon(e, "write without deadline", rest); err != nil {
		e.Errorf("write without deadline: %v", err)
	}
}

func testTryWrite(e *env) {
	s := e.open()
	message := payload(1000)
	took := 0
	for ; ; took++ {
		ok, err := s.TryWrite(message)
		if err != nil {
			e.Fatalf("try write: %v", err)
		}
		if !ok {
			break
		}
		if took > 1<<20 {
			e.Fatal("a lane that nobody reads takes more than 1 GiB")
		}
	}
	if took == 0 {
		e.Fatal("an empty lane takes nothing")
	}
	r := e.accept()
	for i := range took {
		got := make([]byte, len(message))
		if _, err := io.ReadFull(r, got); err != nil {
			e.Fatalf("message %d of %d: %v", i, took, err)
		}
		if string(got) != string(message) {
			e.Fatalf("message %d of %d is torn", i, took)
		}
	}
	// There is room again, soon: the reader's credit travels.
	for {
		ok, err := s.TryWrite([]byte("more"))
		if ok {
			break
		}
		if err != nil || e.ctx.Err() != nil {
			e.Fatalf("no room after the reader drained the lane: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	s.Close()
	e.wantEnd(r, []byte("more"))
}

func testIndependence(e *env) {
	full, _ := e.lane()
	e.fill(full)
	data := payload(4 << 20)
	s := e.open()
	sent := async(func() error {
		defer s.Close()
		_, err := s.Write(data)
		return err
	})
	e.wantEnd(e.accept(), data)
	if err := soon(e, "write", sent); err != nil {
		e.Errorf("write beside a full lane: %v", err)
	}
	full.Cancel()
}

func testManyLanes(e *env) {
	var all sync.WaitGroup
	defer all.Wait()
	count := e.pair.MaxLanes
	for i := range count {
		all.Go(func() {
			s, err := e.a.OpenLane(e.ctx)
			if err != nil {
				e.Errorf("open lane %d: %v", i, err)
				return
			}
			defer s.Close()
			if _, err := s.Write(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
				e.Errorf("write on lane %d: %v", i, err)
			}
		})
	}
	seen := make(map[uint32]bool)
	for range count {
		got, err := io.ReadAll(e.accept())
		if err != nil || len(got) != 4 {
			e.Fatalf("read % x, %v", got, err)
		}
		seen[binary.BigEndian.Uint32(got)] = true
	}
	if len(seen) != count {
		e.Errorf("%d of %d lanes arrived", len(seen), count)
	}
}

func testLanesInOrder(e *env) {
	count := e.pair.MaxLanes
	for i := range count {
		s := e.open()
		e.write(s, []byte{byte(i)})
		s.Close()
	}
	var seen, want []byte
	for i := range count {
		got, err := io.ReadAll(e.accept())
		if err != nil {
			e.Fatal(err)
		}
		seen, want = append(seen, got...), append(want, byte(i))
	}
	if e.pair.Overtake {
		slices.Sort(seen)
	}
	if !bytes.Equal(seen, want) {
		e.Errorf("lanes arrived as %d, want %d", seen, want)
	}
}

func testLaneCredit(e *env) {
	for i := range 3 * e.pair.MaxLanes {
		s, err := e.a.OpenLane(e.ctx)
		if err != nil {
			e.Fatalf("lane %d of limit %d: %v", i, e.pair.MaxLanes, err)
		}
		e.write(s, []byte("x"))
		s.Close()
		e.wantEnd(e.accept(), []byte("x"))
	}
}

func testLaneLimit(e *env) {
	var open []transport.SendLane
	for range e.pair.MaxLanes {
		s := e.open()
		e.write(s, []byte("x"))
		open = append(open, s)
	}
	ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := e.a.OpenLane(ctx)
	e.wantError("open beyond the limit", err, context.DeadlineExceeded)
	waiting := async(func() error { _, err := e.a.OpenLane(e.ctx); return err })
	open[0].Close()
	e.wantEnd(e.accept(), []byte("x"))
	if err := soon(e, "open lane", waiting); err != nil {
		e.Errorf("open after a lane ended: %v", err)
	}
}

func testCanceledLaneCredit(e *env) {
	for i := range 3 * e.pair.MaxLanes {
		s, err := e.a.OpenLane(e.ctx)
		if err != nil {
			e.Fatalf("lane %d of limit %d: %v", i, e.pair.MaxLanes, err)
		}
		e.write(s, []byte("x"))
		e.accept().Cancel()
		s.Cancel()
	}
}
