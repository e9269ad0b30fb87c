package transporttest

import (
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

func testDatagrams(e *env) {
	p := []byte("to b")
	if err := e.a.SendDatagram(p); err != nil {
		e.Fatalf("send: %v", err)
	}
	clear(p) // the session has its own copy
	got, err := e.b.ReceiveDatagram(e.ctx)
	if err != nil || string(got) != "to b" {
		e.Fatalf("received %q, %v", got, err)
	}
	e.b.SendDatagram([]byte("to a"))
	if got, err = e.a.ReceiveDatagram(e.ctx); err != nil || string(got) != "to a" {
		e.Fatalf("received %q, %v", got, err)
	}
}

func testDatagramSize(e *env) {
	if err := e.a.SendDatagram(payload(transport.MaxDatagram + 1)); err == nil {
		e.Error("a datagram above MaxDatagram was taken")
	}
	largest := payload(transport.MaxDatagram)
	if err := e.a.SendDatagram(largest); err != nil {
		e.Fatalf("largest datagram: %v", err)
	}
	got, err := e.b.ReceiveDatagram(e.ctx)
	if err != nil || string(got) != string(largest) {
		e.Errorf("received %d bytes, %v; want the largest datagram", len(got), err)
	}
}

func testDatagramFlood(e *env) {
	const count, bound = 10000, 1000
	for range count {
		if err := e.a.SendDatagram(make([]byte, 64)); err != nil {
			e.Fatalf("send: %v", err)
		}
	}
	// Streams are not queued behind the rest of the flood.
	e.stream()
	arrived := 0
	for {
		if err := e.a.SendDatagram([]byte("last")); err != nil {
			e.Fatal(err)
		}
		p, err := e.b.ReceiveDatagram(e.ctx)
		if err != nil {
			e.Fatalf("after %d datagrams: %v", arrived, err)
		}
		if string(p) == "last" {
			break
		}
		arrived++
	}
	if arrived > bound {
		e.Errorf("%d datagrams were kept for nobody, want at most %d", arrived, bound)
	}
}

func testCloseReason(e *env) {
	if err := e.a.Close(transport.CodeFenced, "removed by the host"); err != nil {
		e.Errorf("close: %v", err)
	}
	soon(e, "end at the closer", e.a.Done())
	soon(e, "end at the peer", e.b.Done())
	here := transport.CloseError{Code: transport.CodeFenced, Reason: "removed by the host"}
	there := here
	there.Remote = true
	e.wantClose("closer", e.a.Err(), here)
	e.wantClose("peer", e.b.Err(), there)
	e.wantClose("datagram", e.b.SendDatagram([]byte("x")), there)
	_, err := e.b.OpenStream(e.ctx)
	e.wantClose("open stream", err, there)
	_, err = e.a.AcceptStream(e.ctx)
	e.wantClose("accept stream", err, here)
}

func testFirstCloseDecides(e *env) {
	e.a.Close(transport.CodeLeaving, "first")
	if err := e.a.Close(transport.CodeProtocol, "second"); err != nil {
		e.Errorf("second close: %v", err)
	}
	soon(e, "end at the peer", e.b.Done())
	e.b.Close(transport.CodeProtocol, "third")
	e.wantClose("closer", e.a.Err(), transport.CloseError{Code: transport.CodeLeaving, Reason: "first"})
	e.wantClose("peer", e.b.Err(), transport.CloseError{Remote: true, Code: transport.CodeLeaving, Reason: "first"})
}

func testLongReason(e *env) {
	e.a.Close(transport.CodeProtocol, strings.Repeat("é", 500))
	soon(e, "end at the peer", e.b.Done())
	want := transport.CloseError{Remote: true, Code: transport.CodeProtocol, Reason: strings.Repeat("é", 128)}
	e.wantClose("peer", e.b.Err(), want)
}

func testCloseWakes(e *env) {
	full, unread := e.stream()
	e.fill(full)
	_, empty := e.stream()
	blocked := map[string]<-chan error{
		"write":    async(func() error { _, err := full.Write(make([]byte, 1<<20)); return err }),
		"read":     async(func() error { _, err := empty.Read(make([]byte, 1)); return err }),
		"accept":   async(func() error { _, err := e.b.AcceptStream(e.ctx); return err }),
		"accept A": async(func() error { _, err := e.a.AcceptStream(e.ctx); return err }),
		"datagram": async(func() error { _, err := e.b.ReceiveDatagram(e.ctx); return err }),
	}
	time.Sleep(time.Millisecond) // most of them wait by now
	e.a.Close(transport.CodeLeaving, "bye")
	for what, done := range blocked {
		remote := what != "write" && what != "accept A"
		e.wantClose(what, soon(e, what, done), transport.CloseError{
			Remote: remote, Code: transport.CodeLeaving, Reason: "bye",
		})
	}
	soon(e, "end at the peer", e.b.Done())
	deadline := time.Now().Add(patience)
	for buf := make([]byte, 64<<10); ; {
		// Bytes that had arrived may be read; then comes the end.
		if _, err := unread.Read(buf); err != nil {
			e.wantClose("later read", err, transport.CloseError{
				Remote: true, Code: transport.CodeLeaving, Reason: "bye",
			})
			break
		}
		if time.Now().After(deadline) {
			e.Fatal("a stream of a closed session never ends")
		}
	}
}
