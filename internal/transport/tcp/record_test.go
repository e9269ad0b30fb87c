package tcp

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// TestRecordsOfTwoGoroutines: TLS answers the peer from the goroutine that reads, while
// another one writes, flushes, and is interrupted: no record is lost or torn.
func TestRecordsOfTwoGoroutines(t *testing.T) {
	near, far := net.Pipe()
	c := newRecordConn(near, 1)
	c.gathers, c.glance = true, func() {}
	got := make(chan []byte, 1)
	go func() { // ends with near
		p, _ := io.ReadAll(far)
		got <- p
	}()
	const rounds, size = 200, 1000
	var tls sync.Mutex // as TLS holds one over Write
	write := func(b byte) {
		tls.Lock()
		defer tls.Unlock()
		if _, err := c.Write(bytes.Repeat([]byte{b}, size)); err != nil {
			t.Error(err)
		}
	}
	var answers sync.WaitGroup
	answers.Go(func() {
		for range rounds {
			write('a')
		}
	})
	for i := range rounds {
		write('w')
		if i%3 == 0 {
			_ = near.SetWriteDeadline(longAgo)
		}
		rest, err := c.flush()
		_ = near.SetWriteDeadline(time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if len(rest) > 0 {
			n, err := near.Write(rest)
			if c.proceed(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	answers.Wait()
	if rest, err := c.flush(); len(rest) > 0 || err != nil {
		t.Fatalf("%d bytes left, %v", len(rest), err)
	}
	near.Close()
	p := <-got
	count := map[byte]int{}
	for ; len(p) >= size; p = p[size:] {
		if !bytes.Equal(p[:size], bytes.Repeat(p[:1], size)) {
			t.Fatal("a torn record")
		}
		count[p[0]]++
	}
	if count['a'] != rounds || count['w'] != rounds || len(p) > 0 || c.sent.Load() != 2*rounds*size {
		t.Errorf("%d answers and %d records of %d each, %d bytes more, %d counted", count['a'], count['w'], rounds, len(p), c.sent.Load())
	}
}
