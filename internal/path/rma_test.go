package path

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The golden vectors: deployed applications and nodes send these bytes. Add, never edit.
var rmaRequests = map[string]RMARequest{
	"01010000000000000000000000000001000000000000000000000000000000000000000000000000": {Kind: RMANop, Flags: RMAWantAnswer, Number: 1},
	"02030000000000000000000000000002400000000000100800000000000000400000000000000000": {Kind: RMAWrite, Flags: RMAWantAnswer | RMAOrdered, Number: 2, Offset: 0x4000000000001008, Length: 64},
	"03000000000000000000000000000003400000000000000000000000001000000000000000000000": {Kind: RMARead, Number: 3, Offset: 1 << 62, Length: 1 << 20},
	"04010608000000000000000000000004400000000000000800000000000000050000000000000006": {Kind: RMAAtomic, Flags: RMAWantAnswer, Op: 6, Width: 8, Number: 4, Offset: 1<<62 + 8, Length: 5, Compare: 6},
	"05000000000000000000000000000005400000000000001000000000000000070000000000000000": {Kind: RMASignal, Number: 5, Offset: 1<<62 + 16, Length: 7},
	"05040000000000000000000000000006400000000000001000000000000000070000000000000000": {Kind: RMASignal, Flags: RMABehind, Number: 6, Offset: 1<<62 + 16, Length: 7},
	"01010000000000000000000000000007000000000000000500000000000000020000000000000000": {Kind: RMANop, Flags: RMAWantAnswer, Number: 7, Offset: 5, Length: 2},
}

var rmaAnswers = map[string]RMAAnswer{
	"1001000000000000000000000000000100000000000000000000000000000000": {Kind: RMADone, Flags: RMALast, Number: 1},
	"1001000b000b0000000000000000000200000000000000000000000000000002": {Kind: RMADone, Flags: RMALast, Code: 11, BadCode: 11, Number: 2, Bad: 2},
	"1100000000000000000000000000000300000000000100000000000000000000": {Kind: RMAData, Number: 3, Value: 65536},
	"1101000000000000000000000000000300000000000000080000000000000000": {Kind: RMAData, Flags: RMALast, Number: 3, Value: 8},
}

func TestTheFormatOfTheRMAPathStays(t *testing.T) {
	for text, want := range rmaRequests {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != RMARequestLen {
			t.Fatal(len(b), err)
		}
		got, err := ParseRMARequest((*[RMARequestLen]byte)(b))
		if err != nil || got != want || !bytes.Equal(want.AppendTo(nil), b) {
			t.Errorf("%s is %+v, %v, want %+v, which is %x", text, got, err, want, want.AppendTo(nil))
		}
	}
	for text, want := range rmaAnswers {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != RMAAnswerLen {
			t.Fatal(len(b), err)
		}
		got, err := ParseRMAAnswer((*[RMAAnswerLen]byte)(b))
		if err != nil || got != want || !bytes.Equal(want.AppendTo(nil), b) {
			t.Errorf("%s is %+v, %v, want %+v, which is %x", text, got, err, want, want.AppendTo(nil))
		}
	}
}

func FuzzRMARequest(f *testing.F) {
	for text := range rmaRequests {
		b, _ := hex.DecodeString(text)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != RMARequestLen {
			return
		}
		r, err := ParseRMARequest((*[RMARequestLen]byte)(b))
		if err == nil && !bytes.Equal(r.AppendTo(nil), b) {
			t.Errorf("%x comes back as %x", b, r.AppendTo(nil))
		}
		if err != nil && (!errors.Is(err, ErrRMA) || !reflect.ValueOf(r).IsZero()) {
			t.Errorf("%x: %+v, %v", b, r, err)
		}
	})
}

func FuzzRMAAnswer(f *testing.F) {
	for text := range rmaAnswers {
		b, _ := hex.DecodeString(text)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != RMAAnswerLen {
			return
		}
		a, err := ParseRMAAnswer((*[RMAAnswerLen]byte)(b))
		if err == nil && !bytes.Equal(a.AppendTo(nil), b) {
			t.Errorf("%x comes back as %x", b, a.AppendTo(nil))
		}
	})
}

// TestAnRMAPathIsServed: an application's end of a path and a node's understand each
// other, and the node has taken all bytes sent when it waits again.
func TestAnRMAPathIsServed(t *testing.T) {
	for name, o := range map[string]struct{ client, plain bool }{
		"node opens": {client: true}, "application opens": {}, "plaintext": {plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			fa, fb := sockets(t)
			s, counted := connOf(t, fb), connOf(t, fa)
			held, err := Use(counted)
			if err != nil {
				t.Fatal(err)
			}
			dup, err := held.Duplicate()
			if err != nil {
				t.Fatal(err)
			}
			w, err := CountWritten(held, 0)
			if err != nil {
				t.Fatal(err)
			}
			ka, kb := newKey(t), newKey(t)
			var taken atomic.Uint64
			var work sync.WaitGroup
			defer work.Wait()
			defer s.Close()
			work.Go(func() {
				e, err := NewRMAServed(s, RMAOptions{Client: o.client, Plaintext: o.plain, Key: kb, Peer: ka.Hash(), Binding: Binding{1}, Taken: taken.Store})
				if err != nil {
					t.Error(err)
					return
				}
				for {
					r, err := e.Next()
					if err != nil {
						return
					}
					data := make([]byte, r.Length)
					if err := e.Payload(data); err != nil {
						return
					}
					e.Answer(RMAAnswer{Kind: RMAData, Flags: RMALast, Number: r.Number, Value: r.Length}, data)
				}
			})
			c, err := New(t.Context(), dup, Options{Client: !o.client, Plaintext: o.plain, Key: ka, Peer: kb.Hash(), Binding: Binding{1}, Changed: func() {}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.Begin(0)
			if _, err := c.Write(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			<-c.Started()
			for i := range 100 {
				data := bytes.Repeat([]byte{byte(i)}, 1+i*1000)
				r := RMARequest{Kind: RMAWrite, Number: uint64(i + 1), Length: uint64(len(data))}
				c.Write(t.Context(), append(r.AppendTo(nil), data...))
				got := make([]byte, RMAAnswerLen+len(data))
				if _, err := io.ReadFull(reader{t, c}, got); err != nil || !bytes.Equal(got[RMAAnswerLen:], data) {
					t.Fatalf("answer %d: %v", i, err)
				}
			}
			n, err := w.Bytes()
			for end := time.Now().Add(10 * time.Second); err == nil && n != taken.Load() && time.Now().Before(end); { // behind its answer
				runtime.Gosched()
			}
			if err != nil || n != taken.Load() {
				t.Errorf("written are %d bytes, %v, taken %d", n, err, taken.Load())
			}
		})
	}
}

// TestANodeBeginsBehindItsInitiator: an initiator that has the start of a node is served by it.
// A node without the initiator's start gives the path up, and reports that no byte of it
// was used.
func TestANodeBeginsBehindItsInitiator(t *testing.T) {
	fa, fb := sockets(t)
	near, s := connOf(t, fa), connOf(t, fb)
	defer near.Close()
	defer s.Close()
	served := make(chan error, 1)
	go func() {
		e, err := NewRMAServed(s, RMAOptions{Plaintext: true, Binding: Binding{1}, Taken: func(uint64) {}})
		if err == nil {
			_, err = e.Next()
		}
		served <- err
	}()
	b := Binding{1}
	if _, err := near.Write(b[:]); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(b)+8)
	near.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := io.ReadFull(near, got); n != len(b) {
		t.Fatalf("before the initiator's start the node has said %x, %v", got[:n], err)
	}
	near.Write(make([]byte, 8))
	near.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(near, got[len(b):]); err != nil {
		t.Error(err)
	}
	near.Close()
	if err := <-served; !errors.Is(err, io.EOF) {
		t.Errorf("the node ends with %v", err)
	}
}

type reader struct {
	t *testing.T
	c *Conn
}

func (r reader) Read(p []byte) (int, error) { return r.c.Read(r.t.Context(), p) }
