package gossip

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestQueueKeepsTheNewestReport(t *testing.T) {
	for _, c := range []struct {
		put  []Kind
		want Kind
	}{
		{[]Kind{Seen}, Seen},
		{[]Kind{Seen, Updated}, Seen},
		{[]Kind{Seen, Gone}, Gone},
		{[]Kind{Gone, Seen}, Seen},
		{[]Kind{Updated, Updated}, Updated},
		{[]Kind{Seen, Gone, Seen, Updated}, Seen},
	} {
		q := newQueue()
		for i, k := range c.put {
			q.put(Change{k, Member{UUID: uuid(1), Epoch: 1, Meta: Meta{Term: uint64(i)}}}, true)
		}
		got := q.take()
		if len(got) != 1 || got[0].Kind != c.want || got[0].Member.Meta.Term != uint64(len(c.put)-1) {
			t.Errorf("%v became %+v, want one %v with the last metadata", c.put, got, c.want)
		}
		if again := q.take(); len(again) != 0 {
			t.Errorf("%v: taken twice: %v", c.put, again)
		}
	}
}

func TestQueueIsBoundedByMembersAndWakesOnce(t *testing.T) {
	q := newQueue()
	for i := range 100_000 {
		q.put(Change{Updated, Member{UUID: uuid(i % 10), Epoch: 1}}, true)
	}
	select {
	case <-q.wake:
	default:
		t.Error("the reader was not woken")
	}
	got := q.take()
	if len(got) != 10 {
		t.Errorf("%d reports about 10 members", len(got))
	}
	for i, r := range got {
		if r.Member.UUID != uuid(i) {
			t.Errorf("report %d is about %v: not in order", i, r.Member.UUID)
		}
	}
}

// A lockedBuffer keeps the log.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func TestLogLevelsAndFlood(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out lockedBuffer
		w := newLogWriter(zerolog.New(&out).Level(zerolog.DebugLevel))
		defer w.close()
		fmt.Fprintln(w, "[ERR] memberlist: one")
		fmt.Fprintln(w, "[WARN] memberlist: two")
		fmt.Fprintln(w, "[INFO] memberlist: three")
		fmt.Fprintln(w, "[DEBUG] memberlist: four")
		want := `{"level":"warn","from":"memberlist","message":"one"}
{"level":"info","from":"memberlist","message":"two"}
{"level":"debug","from":"memberlist","message":"three"}
`
		if out.String() != want {
			t.Errorf("log\n%swant\n%s", out.String(), want)
		}
		out.Reset()
		for range 1000 {
			fmt.Fprintln(w, "[ERR] memberlist: Decrypt packet failed")
			fmt.Fprintln(w, "[INFO] memberlist: Suspect has failed")
		}
		if n := strings.Count(out.String(), "\n"); n > 2*maxLines {
			t.Errorf("%d lines in one second, want at most %d", n, 2*maxLines)
		}
		time.Sleep(time.Second)
		fmt.Fprintln(w, "[INFO] memberlist: later")
		if !strings.Contains(out.String(), `"suppressed":981`) {
			t.Errorf("log %q, want the number of suppressed lines", out.String())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := "982 more lines came from memberlist in the last minute"; !strings.Contains(out.String(), want) {
			t.Errorf("log %q, want that %s", out.String(), want)
		}
	})
}

// Reports about members that are not proven wake the reader ten times a second at
// most, and are not lost.
func TestUnprovenMembersWakeSeldom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := newQueue()
		defer q.close()
		wakes, taken := 0, 0
		for i := range 1000 {
			q.put(Change{Seen, Member{UUID: uuid(i % 250), Epoch: uint64(i)}}, false)
			time.Sleep(time.Millisecond)
			select {
			case <-q.wake:
				wakes++
				taken += len(q.take())
			default:
			}
		}
		time.Sleep(quietWake)
		taken += len(q.take())
		if wakes > 12 || wakes < 9 || taken != 1000 {
			t.Errorf("%d wakes in a second, %d of 1,000 reports taken", wakes, taken)
		}
		q.put(Change{Seen, Member{UUID: uuid(1), Epoch: 1}}, true)
		select {
		case <-q.wake:
		default:
			t.Error("a report about a proven member does not wake at once")
		}
	})
}
