package tcp

import (
	"io"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// What does not fit a frame of the first connection does not hold up what is small,
// once there is a connection for it; but who has waited for something before each of
// several large writes does not wait for the reader of another connection.
func TestWhatIsLargeKeepsOffTheFirstConnection(t *testing.T) {
	pa, pb := onSockets(t, func(c *Config) { c.Plaintext = true })
	from, to := transporttest.Connect(t, pa, pb)
	sa := from.(*session)
	out, err := sa.OpenLane(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const piece = 40 << 10
	written := 0
	write := func(n int) (onFirst uint64) {
		t.Helper()
		before := sa.rec.sent.Load()
		if _, err := out.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		written += n
		return sa.rec.sent.Load() - before
	}
	write(1)
	in, err := to.AcceptLane(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan int64, 1)
	go func() { // ends with the lane
		n, _ := io.Copy(io.Discard, in)
		read <- n
	}()
	pace := &out.(*sendLane).pace
	hurried := func(n int) uint64 {
		pace.last = time.Now().Add(time.Hour)
		return write(n)
	}
	waited := func(n int) uint64 {
		pace.last = time.Time{}
		return write(n)
	}
	for hurried(bulkMin) >= bulkMin { // until there is a bulk connection
		time.Sleep(time.Millisecond)
	}
	for i, c := range []struct {
		write   func(int) uint64
		n       int
		onFirst bool
	}{
		{hurried, piece, false},
		{waited, piece, false}, // it may be one of a stream that was held up
		{waited, piece, true},
		{waited, loneMax, true},
		{waited, loneMax + 1, false},
		{waited, piece, true},
		{hurried, piece, false},
		{waited, piece, false},
	} {
		if n := c.write(c.n); n >= uint64(c.n) != c.onFirst {
			t.Errorf("write %d, of %d bytes: the first connection has carried %d", i, c.n, n)
		}
	}
	if n := write(1000); n < 1000 {
		t.Errorf("the first connection has carried %d bytes of 1000", n)
	}
	out.Close()
	if n := <-read; n != int64(written) {
		t.Errorf("%d bytes came of %d", n, written)
	}
}

// What follows others is the next write, large or small, and no later one.
func TestFollowsIsSaidOfTheNextWrite(t *testing.T) {
	pa, pb := onSockets(t, func(*Config) {})
	from, to := transporttest.Connect(t, pa, pb)
	s, r := transporttest.Lane(t, from, to)
	defer r.Cancel()
	l := s.(*sendLane)
	for _, small := range []func() (int, error){
		func() (int, error) { return l.Write([]byte("x")) },
		func() (int, error) { return l.WriteVec([]transport.Part{{Head: []byte("x")}}, nil) },
	} {
		l.Follows()
		if _, err := small(); err != nil {
			t.Fatal(err)
		}
		if l.pace = (pace{waits: calm, follows: l.pace.follows}); !l.pace.begins() {
			t.Error("a large write after a small one that followed others follows them too")
		}
	}
}
