package driver

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/transport"
)

// of returns the attributes of a provider with a latency and a bandwidth.
func of(latency time.Duration, bandwidth int64) transport.Attributes {
	return transport.Attributes{Latency: latency, Bandwidth: bandwidth}
}

func names(all []standing) (out []string) {
	for _, s := range all {
		out = append(out, s.name)
	}
	return out
}

func TestRank(t *testing.T) {
	slow, fast := of(20*time.Microsecond, 1<<28), of(5*time.Microsecond, 1<<30)
	near, wide := of(time.Microsecond, 1<<24), of(9*time.Microsecond, 1<<32)
	for _, c := range []struct {
		what   string
		rivals []rival
		named  bool
		want   string // names
		first  string // the first one's reason
	}{
		{"nothing", nil, false, "", ""},
		{"the user's order", []rival{{"slow", slow}, {"fast", fast}}, true, "slow fast", "number 1 of the setting providers"},
		{"the cheapest in all", []rival{{"slow", slow}, {"fast", fast}}, false, "fast slow", "cheapest for messages, operations, transfers"},
		{"each at something", []rival{{"near", near}, {"wide", wide}}, false, "wide near", "cheapest for operations, transfers; messages 1.9 times the least"},
		{"the same cost", []rival{{"b", fast}, {"a", fast}}, false, "b a", "cheapest for messages, operations, transfers"},
		{"no figures", []rival{{"new", transport.Attributes{Encrypted: true}}, {"slow", slow}}, false, "slow new", "cheapest for messages, operations, transfers"},
		{"no figures at all", []rival{{"b", transport.Attributes{}}, {"a", transport.Attributes{}}}, false, "b a", "no figures"},
		{"no figures, named", []rival{{"new", transport.Attributes{}}, {"slow", slow}}, true, "new slow", "number 1 of the setting providers"},
	} {
		got := rank(c.rivals, c.named)
		if strings.Join(names(got), " ") != c.want {
			t.Errorf("%s: %v, want %s", c.what, names(got), c.want)
		}
		if len(got) > 0 && got[0].why != c.first {
			t.Errorf("%s: because %q, want %q", c.what, got[0].why, c.first)
		}
		for _, s := range got {
			if s.why == "" || c.rivals[s.at].name != s.name {
				t.Errorf("%s: %+v has no reason, or another place", c.what, s)
			}
		}
	}
}

// The order of costs depends on nothing else: neither on the order of the list,
// but between equals, nor on what is slower in all respects and added.
func TestRankIsOfTheAttributesOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "n")
		var rivals []rival
		for i := range n {
			rivals = append(rivals, rival{string(rune('a' + i)), of(time.Duration(rapid.IntRange(1, 1<<20).Draw(t, "latency"))*time.Nanosecond,
				int64(rapid.IntRange(1<<10, 1<<33).Draw(t, "bandwidth")))})
		}
		least := cheapest(rank(rivals, false))
		score := func(all []standing) (out []float64) {
			for _, s := range all {
				out = append(out, s.score(least))
			}
			return out
		}
		want := score(rank(rivals, false))
		if !slices.IsSorted(want) || want[0] < 1 {
			t.Fatalf("scores %v", want)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		rand.New(rand.NewPCG(seed, 0)).Shuffle(n, func(i, j int) { rivals[i], rivals[j] = rivals[j], rivals[i] })
		if got := score(rank(rivals, false)); !slices.Equal(got, want) {
			t.Fatalf("shuffled: %v, want %v", got, want)
		}
		worse := append(slices.Clone(rivals), rival{"worst", of(time.Second, 1)})
		got := names(rank(worse, false))
		if !slices.Equal(got[:n], names(rank(rivals, false))) || got[n] != "worst" {
			t.Fatalf("with a worse one: %v", got)
		}
		if named := rank(rivals, true); !slices.EqualFunc(named, rivals, func(s standing, r rival) bool { return s.name == r.name }) {
			t.Fatalf("named: %v", names(named))
		}
	})
}

func TestLanesAreRankedOneByOne(t *testing.T) {
	near, wide := rival{"near", of(time.Microsecond, 1<<20)}, rival{"wide", of(9*time.Microsecond, 1<<32)}
	got := rankLanes(rank([]rival{near, wide, {"new", transport.Attributes{}}}, true), "near")
	const one = "a link has one session, and all its lanes the same provider"
	want := []LaneRank{
		{"messages", []string{"wide", "near"}, "near", one}, // 64 bytes at 1 MiB/s are 61 µs
		{"operations", []string{"wide", "near"}, "near", one},
		{"transfers", []string{"wide", "near"}, "near", one},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	near.Bandwidth = 1 << 24
	got = rankLanes(rank([]rival{near, wide}, true), "near")
	if got[0].Ranking[0] != "near" || got[0].Reason != "it costs least" || got[2].Ranking[0] != "wide" {
		t.Errorf("got %+v, want near for messages and wide for transfers", got)
	}
	if got := rankLanes(rank([]rival{{"new", transport.Attributes{}}}, true), "new"); len(got[0].Ranking) != 0 || got[0].Ranking == nil {
		t.Errorf("without figures: %+v", got)
	}
}
