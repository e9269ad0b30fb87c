package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/status"
)

// stopper is added to the files of package ring: it reports the n-th passing of a step, and kills
// the process there. The first process of a PID namespace cannot kill itself: the test that has
// started it does.
const stopper = `package ring

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	deadly string
	nth    int64
	passed atomic.Int64
)

func init() { fmt.Sscanf(os.Getenv("ATTACH_TEST_RING_STEP"), "%d %s", &nth, &deadly) }

func step(name string) {
	if name == deadly && passed.Add(1) == nth {
		fmt.Println("dies", time.Now().UnixNano())
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
`

// ringSteps are the places after each access of a side of a ring to the memory, or before it acts
// on one.
var ringSteps = []struct{ name, file, old, new string }{
	{"start-said", "writer.go", "	w.word64(offStart).Store(sent)\n", "%s	STEP\n"},
	{"switched", "writer.go", "	w.word32(offSwitched).Store(1)\n", "%s	STEP\n"},
	{"slot-written", "writer.go", "	copy(w.slot(w.tail)[8:], p)\n", "%s	STEP\n"},
	{"data-written", "writer.go", "	w.put(w.dtail, p[:n])\n", "%s	STEP\n"},
	{"published", "writer.go", "	w.at64(w.tail).Store(published(w.tail, n))\n", "%s	STEP\n"},
	{"reader-disarmed", "writer.go", "	return want.Load() != 0 && want.Swap(0) != 0\n",
		"	if want.Load() != 0 && want.Swap(0) != 0 {\n		STEP\n		return true\n	}\n	return false\n"},
	{"armed-for-room", "writer.go", "{ w.word32(offWantSpace).Store(1) }", "{ w.word32(offWantSpace).Store(1); STEP }"},
	{"closed", "writer.go", "{ w.word32(offClosed).Store(1) }", "{ w.word32(offClosed).Store(1); STEP }"},
	{"ready", "reader.go", "{ r.word32(offReady).Store(1) }", "{ r.word32(offReady).Store(1); STEP }"},
	{"piece-found", "reader.go", "	n := min(len(p), r.size-r.taken)\n", "%s	STEP\n"},
	{"piece-taken", "reader.go", "	r.head++\n", "%s	STEP\n"},
	{"data-room-said", "reader.go", "	r.word64(offDataHead).Store(r.dhead)\n", "%s	STEP\n"},
	{"room-said", "reader.go", "	r.word64(offHead).Store(r.head)\n", "%s	STEP\n"},
	{"writer-disarmed", "reader.go", "	return want.Load() != 0 && want.Swap(0) != 0\n",
		"	if want.Load() != 0 && want.Swap(0) != 0 {\n		STEP\n		return true\n	}\n	return false\n"},
	{"armed-for-data", "reader.go", "{ r.word32(offWantData).Store(1) }", "{ r.word32(offWantData).Store(1); STEP }"},
	{"gone", "reader.go", "{ r.word32(offGone).Store(1) }", "{ r.word32(offGone).Store(1); STEP }"},
}

// mortal builds this test's program with a ring that can die at its steps.
func mortal(t *testing.T) string {
	files := map[string]string{"../../ring/step.go": stopper}
	for _, s := range ringSteps {
		file := "../../ring/" + s.file
		if files[file] == "" {
			files[file] = contents(t, file)
		}
		with := strings.ReplaceAll(strings.ReplaceAll(s.new, "%s", s.old), "STEP", fmt.Sprintf("step(%q)", s.name))
		files[file] = replaced(t, s.name, files[file], s.old, with)
	}
	return overlaid(t, files)
}

// TestPeerDiesAtEveryStepOfARing kills the other application after each of its steps in the rings
// of a shared-memory path, the first time and a later one, as connector and as acceptor, in the
// namespaces of this process and in others: the calls here end with a reset, promptly, after a part
// of the sent bytes, and no resource is left.
func TestPeerDiesAtEveryStepOfARing(t *testing.T) {
	program := mortal(t)
	s := serve(t, func(o *server.Options) { o.Rings = ring.Params{Slots: 8, Data: ring.MinData, Release: 25} }) // often full, often empty
	sess := s.dial(t)
	must(sess.Open())(t).Close()
	fds, goroutines, memory := usage(t)
	var took []time.Duration
	for i, step := range ringSteps {
		dies := func(nth int, role string, attr *syscall.SysProcAttr, where string) {
			t.Run(fmt.Sprintf("%s/%d/%s%s", step.name, nth, role, where), func(t *testing.T) {
				took = append(took, diesInARing(t, sess, role, startProgram(t, program, attr, "ATTACH_TEST_ECHO="+s.path, "ATTACH_TEST_ROLE="+role,
					"ATTACH_TEST_ENDS="+ends[step.name], fmt.Sprintf("ATTACH_TEST_RING_STEP=%d %s", nth, step.name))))
			})
		}
		for _, role := range roles {
			dies(1, role, nil, "")
			if again[step.name] {
				dies(40, role, nil, "")
			}
		}
		dies(1, roles[i%len(roles)], apart(), "/in other namespaces")
	}
	prompt(t, took)
	eventually(t, "everything is as before", func() bool {
		f, g, m := usage(t)
		return f <= fds && g <= goroutines && m <= memory
	})
}

// roles are the roles of the application that dies.
var roles = []string{"accepts", "connects"}

// promptLimit bounds how long after a death within the node the calls to it end. Half
// of them have to: a process of a busy machine may not run for longer than that.
const promptLimit = 100 * time.Millisecond

// prompt fails t unless the calls ended soon after deaths.
func prompt(t *testing.T, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	half, most := took[len(took)/2], took[len(took)-1]
	t.Logf("%d deaths: calls ended after %v in half of them, %v at most", len(took), half, most)
	if half > promptLimit {
		t.Errorf("calls ended %v after a death in half of them, want %v", half, promptLimit)
	}
}

// again are the steps that a connection comes by often.
var again = map[string]bool{"slot-written": true, "data-written": true, "published": true, "reader-disarmed": true, "armed-for-room": true,
	"piece-found": true, "piece-taken": true, "data-room-said": true, "room-said": true, "writer-disarmed": true, "armed-for-data": true}

// ends are the steps that a connection comes by when it is closed.
var ends = map[string]string{"closed": "yes", "gone": "yes"}

// diesInARing talks to the child until it dies, and returns how long after that the
// calls to it have ended.
func diesInARing(t *testing.T, sess attach.Session, role string, k *child) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer time.AfterFunc(limit, func() { k.cmd.Process.Kill() }).Stop()
	ep := meet(t, ctx, sess, role, k)
	var wg sync.WaitGroup
	wg.Go(func() { flood(t, ctx, ep) })
	wg.Go(func() { drain(t, ctx, ep, make(chan struct{}, 1)) })
	ended := endOf(&wg)
	died := time.Unix(0, k.number(t, "dies"))
	k.kill()
	if how := k.cmd.ProcessState.Sys().(syscall.WaitStatus); ctx.Err() != nil || !how.Signaled() {
		t.Errorf("it has not come by the step: %v", k.cmd.ProcessState)
	}
	took := (<-ended).Sub(died)
	check(t, "Close", ep.Close(), status.OK)
	return took
}

// endOf returns a channel on which comes when all of wg has ended.
func endOf(wg *sync.WaitGroup) <-chan time.Time {
	ended := make(chan time.Time, 1)
	go func() {
		wg.Wait()
		ended <- time.Now()
	}()
	return ended
}

// meet connects to the child, or waits until it has connected.
func meet(t *testing.T, ctx context.Context, sess attach.Session, role string, k *child) attach.Endpoint {
	t.Helper()
	ep := must(sess.Open())(t)
	if role == "accepts" {
		if _, err := ep.Connect(ctx, addr.Addr{Node: 3, Port: addr.Port(k.number(t, "port"))}); err != nil {
			t.Fatal(err)
		}
		return ep
	}
	defer ep.Close()
	port := must(ep.Bind(0))(t)
	if err := ep.Listen(1); err != nil {
		t.Fatal(err)
	}
	k.say(t, port)
	got, _, err := ep.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
