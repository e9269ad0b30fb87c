package scenario

import (
	"fmt"
	"reflect"
	"slices"
)

// A plan is a file that has no cluster of its own: what is broken when, in the
// words of a [Scenario].
type plan struct {
	About    Text        `yaml:"about" doc:"what it shows, in a sentence"`
	Select   []Selection `yaml:"select" doc:"names for slots that are drawn from the seed, used as $name"`
	Timeline []Step      `yaml:"timeline" need:"true" doc:"what is broken when"`
}

// DecodePlan reads a plan for a cluster of so many slots, which somebody else has
// started and uses: the keys about, select and timeline of a scenario, and of the
// actions only link, by the fault plane. file names it in errors, which are of the
// type *[Error]. The result is a scenario of [MaxDuration] for the lab [Local].
func DecodePlan(file string, text []byte, nodes int) (*Scenario, error) {
	d := decoder{file: file, places: map[string]place{}}
	var p plan
	if root := d.parse(text); root != nil {
		d.struct_("", root, reflect.ValueOf(&p).Elem())
	}
	s := &Scenario{Version: Version, Name: "plan", About: p.About, On: []Lab{Local}, Cluster: Cluster{Nodes: nodes},
		Select: p.Select, Duration: MaxDuration, Timeline: p.Timeline}
	if err := d.check(s); err != nil {
		return nil, err
	}
	for i := range s.Timeline {
		if set := setFields(valueOf(&s.Timeline[i].Do)); !slices.Equal(set, []string{"link"}) {
			d.problems = append(d.problems, Problem{Field: fmt.Sprintf("timeline[%d].%s", i, set[0]), Value: set[0],
				Allowed: "cannot be done here: a plan breaks links only, by link"})
			d.locate(&d.problems[len(d.problems)-1])
		}
	}
	if err := d.failure(); err != nil {
		return nil, err
	}
	return s, nil
}
