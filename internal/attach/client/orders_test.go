package client

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// mistakes are ways to get the order of things wrong where a ring's sides sleep and
// wake each other. WRONG is whether this one is made. Each shows in a story of
// testdata/orders.
var mistakes = []struct{ name, old, new, story, shows string }{
	{"reader-looks-then-arms", "	sp.in.Arm()\n	if sp.in.Pending() || sp.ended() {\n",
		"	looked := WRONG && (sp.in.Pending() || sp.ended())\n	sp.in.Arm()\n	if looked || !WRONG && (sp.in.Pending() || sp.ended()) {\n",
		"pieces", "reader waits at its doorbell for ever"},
	{"writer-asks-then-publishes", "	n, err := sp.out.Write(p)\n	if n > 0 && sp.out.WakeReader() {\n",
		"	asked := WRONG && sp.out.WakeReader()\n	n, err := sp.out.Write(p)\n	if n > 0 && (asked || !WRONG && sp.out.WakeReader()) {\n",
		"pieces", "reader waits at its doorbell for ever"},
	{"writer-looks-then-arms", "	sp.out.Arm()\n	if sp.out.Room() || sp.cut.Load() || sp.out.Gone() {\n",
		"	looked := WRONG && sp.out.Room()\n	sp.out.Arm()\n	if looked || !WRONG && sp.out.Room() || sp.cut.Load() || sp.out.Gone() {\n",
		"room-reported-at-once", "writer waits at its doorbell for ever"},
	{"end-is-looked-at-behind-the-pieces", "	over = sp.ended() // before reading: what was written by then counts\n	n, err = sp.in.Read(p)\n",
		"	over = !WRONG && sp.ended()\n	n, err = sp.in.Read(p)\n	over = over || WRONG && sp.ended()\n",
		"end-behind-pieces", "the end comes after"},
	{"poll-arms-and-does-not-look", "			in = sp.in.Pending()\n", "			in = !WRONG && sp.in.Pending()\n",
		"poll-for-pieces", "poller waits for its notification for ever"},
	{"poll-arms-and-then-says-so", "			sp.dataWatched.Store(true)\n			sp.in.Arm()\n",
		"			if WRONG {\n				sp.in.Arm()\n				sp.dataWatched.Store(true)\n			} else {\n				sp.dataWatched.Store(true)\n				sp.in.Arm()\n			}\n",
		"poll-for-pieces", "poller waits for its notification for ever"},
	{"rings-are-kept-from-the-poller", "		sp.changed()\n", "		if !WRONG {\n			sp.changed()\n		}\n",
		"poll-for-room", "poller waits for its notification for ever"},
}

// stepped builds this test's program with a search through the possible interleavings of the sides
// of a shared-memory path. Every access to a word of a ring is a step of it, and so is every
// operation on a doorbell: Go's atomics are sequentially consistent, so interleavings of steps are
// the only possible executions.
func stepped(t *testing.T) string {
	doorbell, shmPath := contents(t, "../../shm/doorbell.go"), contents(t, "shmpath.go")
	reader := replaced(t, "reader", contents(t, "../../ring/reader.go"), "shown atomic.Uint64", "shown readerPlace")
	writer := replaced(t, "writer", contents(t, "../../ring/writer.go"), "dshown atomic.Uint64", "dshown writerPlace")
	for old, with := range map[string]string{
		"{ b.raw.Control(b.send) }":               `{ Step("rings", b); b.raw.Control(b.send) }`,
		"Wait(ctx context.Context) error {\n":     "Wait(ctx context.Context) error {\n	Step(\"waits at\", b)\n",
		"Drain() {\n":                             "Drain() {\n	Step(\"drains\", b)\n",
		"Close() error { return b.conn.Close() }": `Close() error { Step("closes", b); return b.conn.Close() }`,
	} {
		doorbell = replaced(t, "doorbell", doorbell, old, with)
	}
	for old, with := range map[string]string{
		"roomWatched, dataWatched atomic.Bool": "roomWatched, dataWatched steppedBool",
		"watched *atomic.Bool":                 "watched *steppedBool",
	} {
		shmPath = replaced(t, "shmPath", shmPath, old, with)
	}
	for _, m := range mistakes {
		shmPath = replaced(t, m.name, shmPath, m.old, strings.ReplaceAll(m.new, "WRONG", `(mistake == "`+m.name+`")`))
	}
	return overlaid(t, map[string]string{
		"../../ring/reader.go": replaced(t, "reader", reader, `import "sync/atomic"`, ""),
		"../../ring/writer.go": replaced(t, "writer", writer, `import "sync/atomic"`, ""),
		"shmpath.go":           shmPath, "../../shm/doorbell.go": doorbell,
		"../../ring/word_unsafe.go":  contents(t, "testdata/orders/word_unsafe.go"),
		"../../shm/doorbell_step.go": contents(t, "testdata/orders/doorbell_step.go"),
		"search_test.go":             contents(t, "testdata/orders/search_test.go"),
		"stories_test.go":            contents(t, "testdata/orders/stories_test.go"),
	})
}

// TestNoOrderLosesAWakeUp runs the two sides of a shared-memory path, and a concurrent poller, in
// every interleaving: no goroutine sleeps for ever, and no byte is lost. It finds each of the
// mistakes.
func TestNoOrderLosesAWakeUp(t *testing.T) {
	program := stepped(t)
	t.Run("as it is", func(t *testing.T) {
		if out, err := orders(program, "", ""); err != nil {
			t.Errorf("%v\n%s", err, out)
		} else {
			t.Logf("%s", out)
		}
	})
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			out, err := orders(program, "/^"+m.story+"$", m.name)
			if err == nil || !strings.Contains(string(out), m.shows) {
				t.Errorf("%v, want it to be found that %s\n%s", err, m.shows, out)
			}
		})
	}
}

// orders runs stories with a mistake.
func orders(program, stories, mistake string) ([]byte, error) {
	cmd := exec.Command(program, "-test.run", "^TestOrders$"+stories, "-test.v", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), "ATTACH_TEST_MISTAKE="+mistake, "GOMAXPROCS=1") // one step at a time
	return cmd.CombinedOutput()
}
