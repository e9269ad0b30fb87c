package engine

import (
	"context"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A slowStream takes nothing at once: all bytes written to it go through flush.
type slowStream struct {
	transport.SendStream
	got    []byte
	during func() // is called in the middle of a Write
}

func (l *slowStream) TryWrite([]byte) (bool, error) { return false, nil }

func (l *slowStream) Write(p []byte) (int, error) {
	if l.during != nil {
		l.during()
	}
	l.got = append(l.got, p...)
	return len(p), nil
}

func (l *slowStream) SetWriteDeadline(time.Time) error { return nil }

// TestTrySendBesideAFlush: while the rest of an earlier one is written, and at the
// very end of that, a non-blocking send is accepted if there is room, and comes
// behind it. Behind a blocking send it is not.
func TestTrySendBesideAFlush(t *testing.T) {
	stream := &slowStream{}
	var o *outbox
	try := func(what, p string, want int) {
		t.Helper()
		if n, err := o.trySend([]byte(p)); n != want || err != nil {
			t.Errorf("%s: %d of %d bytes, %v; want %d", what, n, len(p), err, want)
		}
	}
	notified := 0
	o = newOutbox(1<<20, 1<<20, func(context.Context) (transport.SendStream, error) { return stream, nil }, func() {
		if notified++; notified == 1 {
			try("when the flush reports that it has ended", "c", 1)
		}
	})
	o.begin = o.flushRest
	stream.during = func() {
		stream.during = nil
		try("while the flush writes", "b", 1)
	}
	try("alone", "a", 1)
	if string(stream.got) != "abc" {
		t.Errorf("written %q, want abc", stream.got)
	}
	stream.during = func() {
		stream.during = nil
		try("beside a blocking send", "x", 0)
	}
	if n, err := o.send(t.Context(), []byte("d")); n != 1 || err != nil {
		t.Errorf("send: %d, %v", n, err)
	}
	if string(stream.got) != "abcd" || o.total() != 4 {
		t.Errorf("written %q, counted %d", stream.got, o.total())
	}
}

// TestTrySendNeverMissesTheEndOfAFlush: a send that finds a flush at work and, a
// moment later, at its end is accepted all the same.
func TestTrySendNeverMissesTheEndOfAFlush(t *testing.T) {
	stream := &slowStream{}
	o := newOutbox(1<<30, 1<<20, func(context.Context) (transport.SendStream, error) { return stream, nil }, func() {})
	const sends = 20000
	ended := make(chan struct{}, sends)
	o.begin = func() {
		go func() {
			o.flushRest()
			ended <- struct{}{}
		}()
	}
	for i := range sends {
		n, err := o.trySend([]byte{byte(i)})
		if n != 1 || err != nil {
			t.Fatalf("send %d: %d bytes, %v", i, n, err)
		}
	}
	for o.token <- struct{}{}; len(ended) > 0; {
		<-ended
	}
	for i, b := range stream.got {
		if b != byte(i) {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	if len(stream.got) != sends {
		t.Errorf("%d bytes of %d", len(stream.got), sends)
	}
}
