package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A link has one session, whose provider carries everything. What goes over it is
// of three kinds, and for each of them providers cost differently.
var lanes = []struct {
	name  string
	bytes int
}{
	{"messages", 64},       // a short one
	{"operations", 4096},   // RMA of a page
	{"transfers", 1 << 20}, // RMA of a large range
}

// A LaneCost is what one use of a kind of lane is estimated to cost.
type LaneCost struct {
	Lane string        `json:"lane"`
	Cost time.Duration `json:"cost_ns"`
}

// A rival is a provider of this node, to be ranked.
type rival struct {
	name string
	transport.Attributes
}

// A standing is the place of a provider among those of its node.
type standing struct {
	rival
	at    int        // among the rivals
	costs []LaneCost // of all lanes; none without figures
	why   string     // it has this place
}

// rank orders the providers of a node, the preferred one first. named says that
// their order is the user's, which then decides; otherwise the sum of their
// costs for all lanes does, each as a multiple of the cheapest's: no lane counts
// more because it takes longer. Providers without figures come last; those that
// cost the same keep their order.
func rank(rivals []rival, named bool) []standing {
	all := make([]standing, len(rivals))
	for i, r := range rivals {
		all[i] = standing{rival: r, at: i, costs: r.costs()}
	}
	if named {
		for i := range all {
			all[i].why = fmt.Sprintf("number %d of the setting providers", i+1)
		}
		return all
	}
	least := cheapest(all)
	slices.SortStableFunc(all, func(a, b standing) int { return cmp.Compare(a.score(least), b.score(least)) })
	for i := range all {
		all[i].why = all[i].reason(least)
	}
	return all
}

// costs returns the cost of every lane over r.
func (r rival) costs() []LaneCost {
	if r.Cost(0) <= 0 {
		return nil
	}
	var all []LaneCost
	for _, l := range lanes {
		all = append(all, LaneCost{l.name, r.Cost(l.bytes)})
	}
	return all
}

// cheapest returns the least cost of each lane; 0 where nobody has figures.
func cheapest(all []standing) []time.Duration {
	least := make([]time.Duration, len(lanes))
	for _, s := range all {
		for i, c := range s.costs {
			if least[i] == 0 || c.Cost < least[i] {
				least[i] = c.Cost
			}
		}
	}
	return least
}

// unknown is the score of a provider without figures, worse than any other.
const unknown = 1e18

// score is how much s costs, the cheapest of each lane being 1.
func (s standing) score(least []time.Duration) float64 {
	if len(s.costs) == 0 {
		return unknown
	}
	sum := 0.0
	for i, c := range s.costs {
		sum += float64(c.Cost) / float64(least[i])
	}
	return sum / float64(len(lanes))
}

// reason says where s is the cheapest, and what it costs elsewhere.
func (s standing) reason(least []time.Duration) string {
	if len(s.costs) == 0 {
		return "no figures"
	}
	var best, worse []string
	for i, c := range s.costs {
		if c.Cost == least[i] {
			best = append(best, c.Lane)
		} else {
			worse = append(worse, fmt.Sprintf("%s %.1f times the least", c.Lane, float64(c.Cost)/float64(least[i])))
		}
	}
	if len(best) > 0 {
		worse = append([]string{"cheapest for " + strings.Join(best, ", ")}, worse...)
	}
	return strings.Join(worse, "; ")
}

// A LaneRank says which providers of this node cost least for one kind of lane,
// and which one carries it.
type LaneRank struct {
	Lane     string   `json:"lane"`
	Ranking  []string `json:"ranking"` // the cheapest first; those without figures are left out
	Provider string   `json:"provider"`
	Reason   string   `json:"reason"`
}

// rankLanes ranks the providers for each kind of lane of a link that one of them
// carries.
func rankLanes(all []standing, carries string) []LaneRank {
	var out []LaneRank
	for i, l := range lanes {
		known := slices.DeleteFunc(slices.Clone(all), func(s standing) bool { return len(s.costs) == 0 })
		slices.SortStableFunc(known, func(a, b standing) int { return cmp.Compare(a.costs[i].Cost, b.costs[i].Cost) })
		r := LaneRank{Lane: l.name, Provider: carries, Ranking: []string{}, Reason: "it costs least"}
		for _, s := range known {
			r.Ranking = append(r.Ranking, s.name)
		}
		if len(known) == 0 || known[0].name != carries {
			r.Reason = "a link has one session, and all its lanes the same provider"
		}
		out = append(out, r)
	}
	return out
}
