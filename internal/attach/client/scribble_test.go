package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/ring"
)

// scribbler attaches to path and accepts connections. It follows the protocol until one goes
// through a shared-memory path; then it changes the rings as long as the peer exists, faster than
// the peer can read a word twice.
func scribbler(path string) error {
	ctx := context.Background()
	sess, err := Dial(ctx, path)
	if err != nil {
		return err
	}
	l, err := sess.Open()
	if err != nil {
		return err
	}
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(8)
	}
	if err != nil {
		return err
	}
	fmt.Println("port", port)
	rng := rand.New(rand.NewPCG(uint64(port), 1))
	for {
		ep, _, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		for p := make([]byte, 1); err == nil && !through(ep); { // as talk does
			if _, err = ep.Recv(ctx, p); err == nil {
				_, err = ep.Send(ctx, p)
			}
		}
		if err == nil {
			fmt.Println("scribbles", scribble(ep, rng))
		}
		ep.Close()
	}
}

// scribble writes to the ring that it may write to, and stores into both until
// the peer is gone. It returns how often.
func scribble(ep attach.Endpoint, rng *rand.Rand) (stores int) {
	sp := ep.(*endpoint).shmPath.Load()
	mem, order := sp.region.Bytes(), binary.NativeEndian
	const head, slot = 512, 64 // SPEC.md
	values := []uint64{0, 1, 57, 1 << 31, 1<<32 - 1}
	for ; stores%1024 != 0 || ep.Ready()&attach.PollHup == 0; stores++ {
		half := mem[len(mem)/2*rng.IntN(2):]
		v := values[rng.IntN(len(values))]
		switch rng.IntN(8) {
		case 0: // any byte of the head
			half[rng.IntN(head)] ^= 1 << rng.IntN(8)
		case 1: // a place, by a little
			word := half[8*rng.IntN(head/8):]
			order.PutUint64(word, order.Uint64(word)+v)
		case 2, 3, 4: // a piece, so that there is something to be read
			sp.out.Write(make([]byte, 1+rng.IntN(200))) // which fails once it is broken
		default: // the length of a piece, there and back
			word := half[head+slot*rng.IntN(64):]
			for right, n := order.Uint64(word), 0; n < 64; n++ {
				order.PutUint64(word, right>>32<<32|v)
				order.PutUint64(word, right)
			}
		}
	}
	return stores
}

// TestRingsChangeWhileTheyAreRead has another process change the memory of a shared-memory path
// between any two reads. A call's result stays within its buffer, no call outlasts the other
// process, and a concurrent connection is not affected. The test continues until a ring was found
// corrupt; otherwise it would have tested nothing.
func TestRingsChangeWhileTheyAreRead(t *testing.T) {
	s := serve(t, nil)
	bad := start(t, s, "ATTACH_TEST_SCRIBBLER="+s.path)
	port := addr.Port(bad.number(t, "port"))
	good, peer := overShmPath(t, s)
	sess := s.dial(t)
	// The bound counts connections and not the time: a call may wait for all of its limit for bytes
	// that the other process has spoiled.
	const least, most = 20, 200
	rounds, broken, corrupt := 0, 0, 0 // connections
	for ; rounds < least || corrupt == 0 && rounds < most; rounds++ {
		ep := must(sess.Open())(t)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		if _, err := ep.Connect(ctx, addr.Addr{Node: 3, Port: port}); err != nil {
			t.Fatal(err)
		}
		for p := []byte("x"); !through(ep); runtime.Gosched() {
			if _, err := ep.Send(ctx, p); err != nil {
				break // it has begun
			}
			if n, err := ep.Recv(ctx, p); err != nil || n != 1 {
				break
			}
		}
		cancel()
		if err := endure(t, ep); err != nil {
			broken++
			if errors.Is(err, ring.ErrCorrupt) {
				corrupt++
			}
		}
		talk(t, good, peer)
		ep.Close()
		if n := bad.number(t, "scribbles"); n == 0 {
			t.Error("nothing was scribbled")
		}
	}
	if t.Logf("%d of %d connections were found broken, %d for what a ring said", broken, rounds, corrupt); corrupt == 0 {
		t.Error("no call found its ring corrupt")
	}
	send(t, good, peer)
}

// endure sends and receives for a moment, or until a call fails, and returns why
// calls did before their time.
func endure(t *testing.T, ep attach.Endpoint) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, 2)
	wg.Go(func() {
		for i, p := 0, make([]byte, 3000); errs[0] == nil; i++ {
			size := []int{30, 3000}[i%2] // in a slot, and in the data area
			var n int
			if n, errs[0] = ep.Send(ctx, p[:size]); n < 0 || n > size {
				t.Errorf("%d of %d bytes were sent", n, size)
			}
		}
	})
	wg.Go(func() {
		for p := make([]byte, 5000); errs[1] == nil; {
			var n int
			if n, errs[1] = ep.Recv(ctx, p[:4096]); n < 0 || n > 4096 {
				t.Errorf("%d bytes were received into 4096", n)
			}
			if slices.Max(p[4096:]) != 0 {
				t.Error("memory behind the buffer was written")
			}
		}
	})
	wg.Wait()
	early := slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) })
	return errors.Join(early...)
}

// send moves some bytes from a to b, and compares.
func send(t *testing.T, a, b attach.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	want := make([]byte, 300<<10)
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := a.Send(ctx, want); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, len(want))
	if _, err := io.ReadFull(reader{ctx, b}, got); err != nil || string(got) != string(want) {
		t.Errorf("a connection beside it has lost bytes: %v", err)
	}
	wg.Wait()
}
