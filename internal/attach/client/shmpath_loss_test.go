package client

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/status"
)

// Whenever one side's session is lost or closed, before, while and after the two
// get a shared-memory path, the other side's calls end, and no descriptor and nothing that
// is counted is left.
func TestSessionsThatEndWhileTheyGetAShmPath(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := serve(t, func(o *server.Options) { o.User.ShmPaths = 4 }) // a leak would soon be in the way
	sb := s.dial(t)
	before := openFiles(t)
	for range 60 {
		sa := s.dial(t)
		a, b := connect(t, sa, sb)
		endInTheMiddle(t, rng, sa.(*session), a, b)
	}
	eventually(t, "descriptors are closed", func() bool { return openFiles(t) <= before })
	x, y := connect(t, s.dial(t), sb)
	talk(t, x, y)
}

func endInTheMiddle(t *testing.T, rng *rand.Rand, sa *session, a, b attach.Endpoint) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	yields, abrupt := rng.IntN(1+rng.IntN(400)), rng.IntN(2) == 0
	var wg sync.WaitGroup
	for _, ep := range []attach.Endpoint{a, b} {
		wg.Go(func() { untilTheEnd(t, "Send", func() (int, error) { return ep.Send(ctx, make([]byte, 100)) }) })
		wg.Go(func() { untilTheEnd(t, "Recv", func() (int, error) { return ep.Recv(ctx, make([]byte, 1000)) }) })
	}
	for range yields {
		runtime.Gosched()
	}
	if abrupt {
		sa.conn.Close() // as if the application had died
		<-sa.Done()
		a.Close()
	}
	sa.Close()
	wg.Wait()
	check(t, "Close", b.Close(), status.OK)
}

func untilTheEnd(t *testing.T, what string, call func() (int, error)) {
	for {
		if _, err := call(); err != nil {
			if c := status.Of(err); c != status.Reset && c != status.BadFD {
				t.Errorf("%s = %v", what, err)
			}
			return
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
