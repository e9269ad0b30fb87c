package main

import (
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// A stalling connection waits once, before it passes on a message.
type stalling struct {
	net.Conn
	reads, at int
	pause     time.Duration
}

func (s *stalling) Read(p []byte) (int, error) {
	if s.reads++; s.reads == s.at {
		<-time.After(s.pause)
	}
	return s.Conn.Read(p)
}

// One stall of a responder counts for every message that was due meanwhile, not
// for the one that met it.
func TestFixedRateDoesNotOmitWhatAStallDelays(t *testing.T) {
	near, far := net.Pipe()
	const pause, messages, perSecond = 100 * time.Millisecond, 100, 1000
	served := make(chan error, 1)
	go func() { served <- (&responder{rw: &stalling{Conn: far, at: 20, pause: pause}}).run() }()
	l, err := newPaced(t.Context(), nil, &channel{ReadWriter: near}, job{size: 8, seed: 1, check: true, rate: perSecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.begin(messages); err != nil {
		t.Fatal(err)
	}
	var s sample
	if err := l.(runner).run(messages, &s); err != nil || s.errors != 0 {
		t.Fatalf("%d wrong, %v", s.errors, err)
	}
	late := int64(0)
	for _, b := range s.lat.Distribution() {
		if b.From >= int64(pause/4) {
			late += b.Count
		}
	}
	// 75 of them were due in the first three quarters of the stall.
	if late < 50 || s.lat.TotalCount() != messages {
		t.Errorf("%d of %d messages are late; a stall of %v delays 75", late, s.lat.TotalCount(), pause)
	}
	near.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestAnchorsOfSocketsCheckTheirBytes(t *testing.T) {
	temporaries(t)
	for _, provider := range []string{rawTCP, rawTLS} {
		d := document(t, "local", "msg_lat", "msg_bw", "msg_bibw", "msg_fixed_rate", "rma_write_lat", "conn_setup", "reg", "--provider", provider, "--size", "3000", "--iters", "20", "--reps", "1", "--validate", "--rate", "20000", "--pairs", "2")
		for _, r := range d.Results {
			if r.Provider != provider || r.Errors != 0 {
				t.Errorf("%s over %s: %d errors", r.Test, r.Provider, r.Errors)
			}
		}
		if !slices.ContainsFunc(d.Notes, func(n string) bool { return strings.Contains(n, "nothing like it") }) || len(d.Results) != 6 {
			t.Errorf("%s: %d results, notes %q", provider, len(d.Results), d.Notes)
		}
	}
}

func TestAWindowBoundsWhatIsUnderWay(t *testing.T) {
	temporaries(t)
	d := document(t, "local", "msg_bw", "msg_rate", "rma_write_bw", "atomic_rate", "msg_lat", "--provider", "mem", "--size", "64",
		"--iters", "66", "--window", "4", "--reps", "1", "--validate")
	for _, r := range d.Results {
		want := int64(4)
		if r.Test == "msg_lat" {
			want = 1
		}
		if r.Window != want || r.Errors != 0 {
			t.Errorf("%s: window %d, errors %d; want %d and 0", r.Test, r.Window, r.Errors, want)
		}
	}
}

func TestFairnessIsJains(t *testing.T) {
	for _, tt := range []struct {
		shares []figure
		want   figure
	}{{[]figure{1, 1, 1, 1}, 1}, {[]figure{1, 0, 0, 0}, .25}, {[]figure{3}, 1}, {[]figure{2, 1}, .9}} {
		if got := jain(tt.shares); got < tt.want-1e-9 || got > tt.want+1e-9 {
			t.Errorf("jain(%v) = %v, want %v", tt.shares, got, tt.want)
		}
	}
	if got := jain(nil); got.measured() {
		t.Errorf("of nobody: %v", got)
	}
}

func TestFlowsOfPatterns(t *testing.T) {
	for pattern, want := range map[string]int{"incast": 3, "fanout": 3, "alltoall": 12, "ring": 4} {
		flows := flowsOf(pattern, 4)
		if len(flows) != want || slices.ContainsFunc(flows, func(f flow) bool { return f.from == f.to }) {
			t.Errorf("%s: %v, want %d flows", pattern, flows, want)
		}
	}
}

func TestAKeeperKeepsItsThread(t *testing.T) {
	k := newKeeper()
	var seen []int
	for range 3 {
		k.do(func() { seen = append(seen, runtime.NumGoroutine()) })
	}
	k.close()
	if len(seen) != 3 {
		t.Errorf("%d of 3 functions have run", len(seen))
	}
}

func TestVariablesAreRestored(t *testing.T) {
	t.Setenv(latencyVariable, "before")
	restore, err := setVariable(latencyVariable, "low")
	if err != nil || os.Getenv(latencyVariable) != "low" {
		t.Fatalf("%q, %v", os.Getenv(latencyVariable), err)
	}
	if err := restore(); err != nil || os.Getenv(latencyVariable) != "before" {
		t.Errorf("%q, %v", os.Getenv(latencyVariable), err)
	}
	os.Unsetenv(latencyVariable)
	if restore, err = setVariable(latencyVariable, "low"); err != nil {
		t.Fatal(err)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if v, ok := os.LookupEnv(latencyVariable); ok {
		t.Errorf("it is %q, want unset", v)
	}
}

func TestWaitingForAWordEnds(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	if err := await(stop, func() bool { return false }); err == nil {
		t.Error("a word that nobody writes has come")
	}
	n := 0
	if err := await(nil, func() bool { n++; return n > 3000 }); err != nil {
		t.Error(err)
	}
}

func TestRunTimeOfAProcess(t *testing.T) {
	before, err := runTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // a thread that ends is still counted
		defer close(ended)
		runtime.LockOSThread()
		for range 1_000_000 {
			io.Discard.Write(nil)
		}
	}()
	<-ended
	if after, err := runTime(os.Getpid()); err != nil || after <= before {
		t.Errorf("%v and then %v, %v", before, after, err)
	}
	if _, err := runTime(1 << 30); err == nil {
		t.Error("of a process that does not exist")
	}
}

// Pairs are as many as there are processors, too, and no more than a run may have.
func TestPairsAreAsManyAsProcessors(t *testing.T) {
	for processors, want := range map[int][]int64{1: {1, 2, 4, 8}, 2: {1, 2, 4, 8}, 6: {1, 2, 4, 6, 8}, 96: {1, 2, 4, 8, 96}, 4096: {1, 2, 4, 8, mostPairs}} {
		if got := pairCounts(processors); !slices.Equal(got, want) {
			t.Errorf("%d processors: %v, want %v", processors, got, want)
		}
	}
}

// Copies within this process are checked as those out of mapped windows are.
func TestCopiesAreChecked(t *testing.T) {
	l, err := newCopying(t.Context(), ownMemory{}, nil, job{size: 3000, seed: 1, check: true})
	if err != nil {
		t.Fatal(err)
	}
	c := l.(*copying)
	if err := first(c.begin(0), repeat(c.slots, c.op)); err != nil {
		t.Fatal(err)
	}
	if wrong, err := c.verify(c.slots); wrong != 0 || err != nil {
		t.Errorf("%d slots are wrong, %v", wrong, err)
	}
	c.to[len(c.to)-1]++
	if wrong, err := c.verify(c.slots); wrong != 1 || err != nil {
		t.Errorf("a byte that is another: %d slots are wrong, %v", wrong, err)
	}
}
