package flight

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

// TestTheLastEventsOfEachKindAreKept, against a list of all of them.
func TestTheLastEventsOfEachKindAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		r := New(func() time.Time { return now })
		var model [kinds][]Event
		seq := uint64(0)
		for range rapid.IntRange(1, 40).Draw(t, "bursts") {
			k := rapid.SampledFrom([]Kind{Cluster, Conn}).Draw(t, "kind")
			now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second)
			for range rapid.IntRange(1, 400).Draw(t, "events") {
				seq++
				r.Note(k, "e", addr.Incarnation{Node: 1}, "", "")
				model[k] = append(model[k], Event{Seq: seq, Time: now})
			}
		}
		after := rapid.Uint64Range(0, seq).Draw(t, "after")
		from := time.Unix(1000+rapid.Int64Range(0, 60).Draw(t, "from"), 0)
		want := map[uint64]bool{}
		for _, list := range model {
			for _, e := range list[max(0, len(list)-Kept):] {
				if e.Seq > after && !e.Time.Before(from) {
					want[e.Seq] = true
				}
			}
		}
		got := r.Since(after, from)
		for i, e := range got {
			if !want[e.Seq] || i > 0 && got[i-1].Seq >= e.Seq {
				t.Fatalf("event %d of %d is %+v", i, len(got), e)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d events, want %d", len(got), len(want))
		}
	})
}

func TestLongTextsAreCut(t *testing.T) {
	r := New(time.Now)
	r.Note(Conn, "e", addr.Incarnation{}, "", strings.Repeat("ü", maxDetail))
	r.Note(Conn, "e", addr.Incarnation{}, "", "as it is")
	got := r.Since(0, time.Time{})
	if len(got[0].Detail) > maxDetail || !utf8.ValidString(got[0].Detail) || got[1].Detail != "as it is" {
		t.Errorf("%+v", got)
	}
	var none *Recorder
	none.Note(Conn, "e", addr.Incarnation{}, "", "")
	if none.Since(0, time.Time{}) != nil {
		t.Error("a recorder that is none has events")
	}
}

// TestOnePeerPushesNothingOut that fails all the time, for one cause or for another each time.
func TestOnePeerPushesNothingOut(t *testing.T) {
	now := time.Unix(1000, 0)
	r := New(func() time.Time { return now })
	good, bad := addr.Incarnation{Node: 1, Generation: 4}, addr.Incarnation{Node: 2, Generation: 5}
	r.Note(Link, "link-down", good, "", "over quic: link silent")
	for i := range 20 * Kept {
		now = now.Add(time.Millisecond)
		r.Note(Link, "link-failed", bad, "", "connection refused")
		r.Note(Link, "link-refused", addr.Incarnation{Node: 2, Generation: addr.Generation(i)}, "", fmt.Sprint("cause ", i))
		r.Note(Failed, "join-refused", addr.Incarnation{}, fmt.Sprint("name ", i%3), "token expired")
	}
	got := r.Since(0, time.Time{})
	times := map[string]uint64{}
	for i, e := range got {
		if times[e.Event] += e.Count; i > 0 && e.Seq <= got[i-1].Seq {
			t.Errorf("%+v is not in order", e)
		}
	}
	want := map[string]uint64{"link-down": 1, "link-failed": 20 * Kept, "link-refused": 20 * Kept, "join-refused": 20 * Kept}
	if got[0].Peer != good || !maps.Equal(times, want) || len(got) != 1+1+different+3 {
		t.Errorf("%d events, %v times; the first is %+v; want %v", len(got), times, got[0], want)
	}
	if last := got[len(got)-1]; r.Count("join-refused") != 20*Kept || last.Count < 6*Kept || !last.Time.Equal(now) {
		t.Errorf("join-refused counts %d; the last is %+v", r.Count("join-refused"), last)
	}
	now = now.Add(alike + 1)
	r.Note(Link, "link-failed", bad, "", "connection refused")
	if again := r.Last(1); again[len(again)-1].Count != 1 {
		t.Errorf("a while later: %+v", again)
	}
}

func TestManyWriteAndRead(t *testing.T) {
	r := New(time.Now)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				r.Note(Conn, "e", addr.Incarnation{}, "", "x")
			}
		})
	}
	for range 20 {
		r.Since(0, time.Time{})
	}
	wg.Wait()
	if all := r.Since(0, time.Time{}); len(all) != Kept || all[len(all)-1].Seq != 8000 {
		t.Errorf("%d events", len(all))
	}
}

func BenchmarkNote(b *testing.B) {
	r := New(time.Now)
	for b.Loop() {
		r.Note(Conn, "conn-closed", addr.Incarnation{Node: 1, Generation: 2}, "", fmt.Sprintf("%v to %d:%d", addr.Port(2050), 3, 2050))
	}
}
