package verdict

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

// The lease table against a model that only remembers which incarnations were ever
// granted, and to which node.
func TestLeaseTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		floor := addr.Generation(rapid.Uint32Range(0, 1000).Draw(t, "floor"))
		table, err := newLeaseTable(nil, 0, floor)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(0, 0)
		granted := make(map[addr.Incarnation]addr.UUID)
		highest := make(map[addr.NodeID]addr.Generation)
		active := make(map[addr.UUID]*Lease)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			u := uuid(rapid.Byte().Draw(t, "uuid")%8 + 1)
			switch l := active[u]; {
			case l != nil:
				l.end(now, ReasonLeft)
				if rapid.Bool().Draw(t, "free") {
					l.State = LeaseFree
				}
				delete(active, u)
			default:
				before := table.lookup(u)
				want := addr.NodeID(rapid.IntRange(0, 70_000).Draw(t, "want"))
				previous := addr.Incarnation{Node: want, Generation: addr.Generation(rapid.Uint32Range(0, 2000).Draw(t, "generation"))}
				free := table.free(want)
				l, err := table.grant(now, u, 1, "", previous, 0)
				if err != nil {
					t.Fatal(err)
				}
				last, known := highest[l.ID]
				if !known {
					last = floor
				}
				if l.ID == want {
					last = max(last, previous.Generation)
				}
				switch incarnation := l.Incarnation(); {
				case granted[incarnation] != addr.UUID{}:
					t.Fatalf("%v granted twice", incarnation)
				case incarnation.Generation != last+1:
					t.Fatalf("%v granted after generation %d", incarnation, last)
				case incarnation.Node == addr.Host || incarnation.Node >= addr.FirstReserved:
					t.Fatalf("reserved %v granted", incarnation)
				case before != nil && before.ID != incarnation.Node:
					t.Fatalf("%v granted to the holder of node %d", incarnation, before.ID)
				case before == nil && free && incarnation.Node != want:
					t.Fatalf("%v granted though node %d was free", incarnation, want)
				default:
					granted[incarnation], highest[incarnation.Node] = u, incarnation.Generation
				}
				active[u] = l
			}
		}
		var records []Lease
		for _, l := range table.sorted() {
			records = append(records, *l)
		}
		again, err := newLeaseTable(records, table.cursor, floor)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		for u, l := range active {
			if got := again.lookup(u); got == nil || got.Incarnation() != l.Incarnation() {
				t.Fatalf("after a restart %v holds %+v, want %v", u, got, l.Incarnation())
			}
		}
	})
}

func TestNextFitGoesOnAfterTheLastAndWraps(t *testing.T) {
	table, err := newLeaseTable(nil, addr.FirstReserved-2, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []addr.NodeID
	for n := range byte(3) {
		l, err := table.grant(time.Unix(0, 0), uuid(n+1), 1, "", addr.Incarnation{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, l.ID)
	}
	if got[0] != addr.FirstReserved-1 || got[1] != 1 || got[2] != 2 {
		t.Errorf("granted %v, want the last ID, 1, 2", got)
	}
}

func TestGenerationsEndBelowTheLast(t *testing.T) {
	if _, err := newLeaseTable(nil, 0, maxGeneration-1); err == nil {
		t.Error("a floor above every generation is accepted")
	}
	table, err := newLeaseTable(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := table.grant(time.Unix(0, 0), uuid(1), 1, "", addr.Incarnation{Node: 7, Generation: maxGeneration - 1}, 0)
	if err != nil || l.ID == 7 {
		t.Errorf("granted %+v, %v, want another ID: node 7 has no generation left", l, err)
	}
}
