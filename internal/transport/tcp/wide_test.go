package tcp

import (
	"io"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// What does not fit a frame of the first connection does not hold up what is small,
// once there is a connection for it.
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
	for write(bulkMin) >= bulkMin { // until there is a bulk connection
		time.Sleep(time.Millisecond)
	}
	if n := write(piece); n >= piece {
		t.Errorf("the first connection has carried %d bytes of a large write", n)
	}
	if n := write(1000); n < 1000 {
		t.Errorf("the first connection has carried %d bytes of 1000", n)
	}
	out.Close()
	if n := <-read; n != int64(written) {
		t.Errorf("%d bytes came of %d", n, written)
	}
}
