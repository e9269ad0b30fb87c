package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

func incarnation(node int) addr.Incarnation {
	return addr.Incarnation{Node: addr.NodeID(node), Generation: 1}
}

// serving returns n services.
func serving(n int) (list []Service) {
	for i := range n {
		list = append(list, Service{Name: fmt.Sprintf("s%02d", i), Port: addr.Port(i + 1)})
	}
	return list
}

func TestListsAreChecked(t *testing.T) {
	for name, list := range map[string][]Service{
		"too many":     serving(MaxPerNode + 1),
		"no name":      {{Name: "", Port: 1}},
		"an ID":        {{Name: "7", Port: 1}},
		"not sorted":   {{Name: "b", Port: 1}, {Name: "a", Port: 1}},
		"one twice":    {{Name: "a", Port: 1}, {Name: "a", Port: 2}},
		"on no port":   {{Name: "a"}},
		"too long":     {{Name: strings.Repeat("x", addr.MaxService+1), Port: 1}},
		"not one word": {{Name: "a\n", Port: 1}},
	} {
		if (List{Services: list}).Check() == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := (List{Services: serving(MaxPerNode)}).Check(); err != nil {
		t.Error(err)
	}
}

// An incarnation that changes its list all the time is reported eight times, then twice a second,
// and the last list is reported in the end.
func TestReportsArePaced(t *testing.T) {
	var h Host
	now := time.Unix(1000, 0)
	var sent []uint64
	seq := uint64(0)
	for range 1000 { // 10 s
		seq++
		h.Take(List{Incarnation: incarnation(1), Seq: seq, Services: serving(int(seq % 5))}, nil)
		lists, _ := h.Due(now)
		for _, l := range lists {
			sent = append(sent, l.Seq)
		}
		now = now.Add(10 * time.Millisecond)
	}
	if len(sent) < 8+18 || len(sent) > 8+21 {
		t.Errorf("reported %d times in 10 s, want 8 and then one in each half second", len(sent))
	}
	_, next := h.Due(now.Add(-time.Millisecond))
	if next.IsZero() {
		t.Fatal("the last list is forgotten")
	}
	if lists, after := h.Due(next); len(lists) != 1 || lists[0].Seq != seq || !after.IsZero() {
		t.Errorf("at %v: %v, then %v; want the list %d, and nothing more", next, lists, after, seq)
	}
}

func TestOwnIsPaced(t *testing.T) {
	var o Own
	now := time.Unix(1000, 0)
	if _, due, _ := o.Due(now); due {
		t.Error("a node that never served anything sends a list")
	}
	o.Again()
	if _, due, _ := o.Due(now); due {
		t.Error("a node that never served anything sends a new session a list")
	}
	for i := range burst {
		o.Set(serving(i + 1))
		if l, due, _ := o.Due(now); !due || len(l.Services) != i+1 || l.Seq != uint64(i+1) {
			t.Errorf("change %d: %v, %v", i, l, due)
		}
	}
	o.Set(serving(3))
	o.Set(serving(2))
	_, due, next := o.Due(now)
	if due || next.Sub(now) != every {
		t.Errorf("one more at once: %v, the next in %v", due, next.Sub(now))
	}
	if l, due, _ := o.Due(next); !due || len(l.Services) != 2 {
		t.Errorf("then %v, %v; want the newest", l, due)
	}
	o.Set(serving(2))
	if _, due, _ := o.Due(next.Add(time.Hour)); due {
		t.Error("sent although nothing has changed")
	}
	o.Again()
	if l, due, _ := o.Due(next.Add(time.Hour)); !due || len(l.Services) != 2 {
		t.Errorf("a new session is sent %v, %v", l, due)
	}
}

// The bound of the cluster cuts the last ones, and cut services get the room that
// others leave.
func TestClusterIsBounded(t *testing.T) {
	var h Host
	now := time.Unix(1000, 0)
	last := MaxCluster/MaxPerNode + 1
	for i := range last {
		h.Take(List{Incarnation: incarnation(i + 1), Seq: 1, Services: serving(MaxPerNode)}, nil)
	}
	h.Due(now)
	if n := len(h.Of(incarnation(last)).Services); h.total != MaxCluster || n != 0 {
		t.Errorf("%d in all, %d of the last incarnation; want %d and none", h.total, n, MaxCluster)
	}
	h.Remove(incarnation(1))
	lists, _ := h.Due(now)
	if len(lists) != 1 || lists[0].Incarnation != incarnation(last) || len(lists[0].Services) != MaxPerNode {
		t.Errorf("with room for the last incarnation %d lists are sent", len(lists))
	}
}

// Whatever members send, and whenever they end: the book never holds more than it
// may, and once all is sent every member that receives the host's lists in their
// order has the last lists of all members, if there is room for them.
func TestMembersLearnWhatIsServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Host
		var member Book
		now := time.Unix(1000, 0)
		want := map[addr.Incarnation]List{}
		send := func() {
			lists, _ := h.Due(now)
			for _, l := range lists {
				if len(l.Services) > 0 && l.Check() != nil {
					t.Fatalf("sent %v: %v", l, l.Check())
				}
				member.Put(l)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"list": func(t *rapid.T) {
				l := List{Incarnation: incarnation(rapid.IntRange(1, 5).Draw(t, "life")), Seq: rapid.Uint64Range(1, 20).Draw(t, "seq"),
					Services: serving(rapid.IntRange(0, 4).Draw(t, "n"))}
				if h.Take(l, nil); l.Seq > want[l.Incarnation].Seq {
					want[l.Incarnation] = l
				}
			},
			"end": func(t *rapid.T) {
				l := incarnation(rapid.IntRange(1, 5).Draw(t, "life"))
				h.Remove(l)
				member.Remove(l)
				delete(want, l)
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond)
			},
			"send": func(*rapid.T) { send() },
			"": func(t *rapid.T) {
				if h.total > MaxCluster || h.total < 0 {
					t.Fatalf("%d services", h.total)
				}
			},
		})
		now = now.Add(time.Minute)
		send()
		for l, list := range want {
			if got := member.Of(l); !slices.Equal(got.Services, list.Services) {
				t.Fatalf("incarnation %v serves %v, a member knows %v", l, list.Services, got.Services)
			}
		}
		if len(member.Lists()) > len(want) {
			t.Fatalf("a member holds %d lists of %d incarnations", len(member.Lists()), len(want))
		}
	})
}

// TestRoomThatAnIncarnationGivesUpIsGivenToOthers: a list that was cut off is sent again when
// another one becomes shorter.
func TestRoomThatAnIncarnationGivesUpIsGivenToOthers(t *testing.T) {
	var h Host
	incarnations := MaxCluster / MaxPerNode
	for i := range incarnations {
		h.Take(List{Incarnation: incarnation(i + 1), Seq: 1, Services: serving(MaxPerNode)}, nil)
	}
	late := incarnation(500)
	h.Take(List{Incarnation: late, Seq: 1, Services: serving(3)}, nil)
	_, next := h.Due(time.Unix(1000, 0))
	if got := len(h.Of(late).Services); got != 0 || !next.IsZero() {
		t.Fatalf("%d services of an incarnation for which there is no room; more at %v", got, next)
	}
	h.Take(List{Incarnation: incarnation(incarnations), Seq: 2, Services: serving(MaxPerNode - 2)}, nil)
	for next = time.Unix(1001, 0); !next.IsZero(); {
		_, next = h.Due(next)
	}
	if got := len(h.Of(late).Services); got != 2 {
		t.Errorf("%d services of the incarnation that was cut off, want the 2 for which there is room", got)
	}
}

// Whatever incarnations send, whatever rules bar, and however these change: members receive exactly
// the last list of an incarnation that it may serve, and each incarnation learns which names it may not.
func TestBarredNamesAreSentToNoMember(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Host
		now := time.Unix(1000, 0)
		barred := map[string]bool{}
		bars := func(l addr.Incarnation, name string) bool { return l.Node%2 == 1 && barred[name] }
		announced := map[addr.Incarnation]List{}
		received := map[addr.Incarnation]List{} // by a member
		var own Own                             // of incarnation 1
		own.Set(nil)
		send := func() {
			lists, _ := h.Due(now)
			for _, l := range lists {
				received[l.Incarnation] = l
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				barred = map[string]bool{fmt.Sprintf("s%02d", rapid.IntRange(0, 3).Draw(t, "name")): true}
				h.RecheckAll(bars)
			case 1:
				now = now.Add(time.Minute)
				send()
			default:
				l := List{Incarnation: incarnation(rapid.IntRange(1, 3).Draw(t, "life")), Services: serving(rapid.IntRange(0, 4).Draw(t, "n"))}
				l.Seq = announced[l.Incarnation].Seq + 1
				announced[l.Incarnation] = l
				h.Take(l, bars)
			}
		}
		now = now.Add(time.Minute)
		send()
		for incarnation, l := range announced {
			if want := l.without(bars); !slices.Equal(received[incarnation].Services, want.Services) {
				t.Fatalf("incarnation %v serves %v with %v barred, a member knows %v", incarnation, l, barred, received[incarnation])
			}
			if got, want := h.Barred(incarnation), l.missing(received[incarnation]); !slices.Equal(got, want) {
				t.Fatalf("%v are barred of incarnation %v, want %v", got, incarnation, want)
			}
		}
		own.list, own.seq = announced[incarnation(1)].Services, announced[incarnation(1)].Seq
		if got, ok := own.Answered(received[incarnation(1)]); len(h.Barred(incarnation(1))) > 0 && (!ok || !slices.Equal(got, h.Barred(incarnation(1)))) {
			t.Fatalf("the incarnation learns %v, %v of its list, want that %v are barred", got, ok, h.Barred(incarnation(1)))
		}
	})
}
