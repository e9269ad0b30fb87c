package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

func testStreamOrder(e *env) {
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
	e.done("writes", sent)
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

func testEmptyStream(e *env) {
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
	s, r := e.stream()
	s.Cancel()
	_, err := r.Read(make([]byte, 1))
	e.wantError("read", err, transport.ErrStreamCanceled)
	_, err = s.Write([]byte("x"))
	e.wantError("write", err, transport.ErrStreamCanceled)
	_, err = s.TryWrite([]byte("x"))
	e.wantError("try write", err, transport.ErrStreamCanceled)
	s.Cancel()
	r.Cancel()
	e.stream() // the session lives
}

func testSenderCancelWakesWrite(e *env) {
	s, _ := e.stream()
	e.fill(s)
	blocked := async(func() error { _, err := s.Write(make([]byte, 1<<20)); return err })
	s.Cancel()
	e.wantError("blocked write", soon(e, "write", blocked), transport.ErrStreamCanceled)
}

func testReaderCancel(e *env) {
	s, r := e.stream()
	e.fill(s)
	blocked := async(func() error { _, err := s.Write(make([]byte, 1<<20)); return err })
	r.Cancel()
	e.wantError("blocked write", soon(e, "write", blocked), transport.ErrStreamCanceled)
	_, err := s.Write([]byte("x"))
	e.wantError("later write", err, transport.ErrStreamCanceled)
	_, err = r.Read(make([]byte, 1))
	e.wantError("read", err, transport.ErrStreamCanceled)
	r.Cancel()
	s.Cancel()
}

func testReaderCancelWakesRead(e *env) {
	_, r := e.stream()
	blocked := async(func() error { _, err := r.Read(make([]byte, 1)); return err })
	r.Cancel()
	e.wantError("blocked read", soon(e, "read", blocked), transport.ErrStreamCanceled)
}

func testReadDeadline(e *env) {
	s, r := e.stream()
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
	s, r := e.stream()
	took := e.fill(s)
	blocked := async(func() error { _, err := s.Write(make([]byte, 1)); return err })
	s.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	// The write may still fit into the buffers of the provider's stream.
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
	e.done("write without deadline", rest)
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
			e.Fatal("a stream that nobody reads takes more than 1 GiB")
		}
	}
	if took == 0 {
		e.Fatal("an empty stream takes nothing")
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
			e.Fatalf("no room after the reader drained the stream: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	s.Close()
	e.wantEnd(r, []byte("more"))
}

func testIndependence(e *env) {
	full, _ := e.stream()
	e.fill(full)
	data := payload(4 << 20)
	s := e.open()
	sent := async(func() error {
		defer s.Close()
		_, err := s.Write(data)
		return err
	})
	e.wantEnd(e.accept(), data)
	e.done("write beside a full stream", sent)
	full.Cancel()
}

func testManyStreams(e *env) {
	var all sync.WaitGroup
	defer all.Wait()
	count := e.pair.MaxStreams
	for i := range count {
		all.Go(func() {
			s, err := e.a.OpenStream(e.ctx)
			if err != nil {
				e.Errorf("open stream %d: %v", i, err)
				return
			}
			defer s.Close()
			if _, err := s.Write(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
				e.Errorf("write on stream %d: %v", i, err)
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
		e.Errorf("%d of %d streams arrived", len(seen), count)
	}
}

func testStreamsInOrder(e *env) {
	count := e.pair.MaxStreams
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
	if !bytes.Equal(seen, want) {
		e.Errorf("streams arrived as %d, want %d", seen, want)
	}
}

func testStreamCredit(e *env) {
	testCredit(e, func(s transport.SendStream) {
		s.Close()
		e.wantEnd(e.accept(), []byte("x"))
	})
}

func testCanceledStreamCredit(e *env) {
	testCredit(e, func(s transport.SendStream) {
		e.accept().Cancel()
		s.Cancel()
	})
}

// testCredit opens more streams than the limit, and ends each.
func testCredit(e *env, end func(transport.SendStream)) {
	for i := range 3 * e.pair.MaxStreams {
		s, err := e.a.OpenStream(e.ctx)
		if err != nil {
			e.Fatalf("stream %d of limit %d: %v", i, e.pair.MaxStreams, err)
		}
		e.write(s, []byte("x"))
		end(s)
	}
}

func testStreamLimit(e *env) {
	var open []transport.SendStream
	for range e.pair.MaxStreams {
		s := e.open()
		e.write(s, []byte("x"))
		open = append(open, s)
	}
	ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := e.a.OpenStream(ctx)
	e.wantError("open beyond the limit", err, context.DeadlineExceeded)
	waiting := async(func() error { _, err := e.a.OpenStream(e.ctx); return err })
	open[0].Close()
	e.wantEnd(e.accept(), []byte("x"))
	e.done("open after a stream ended", waiting)
}
