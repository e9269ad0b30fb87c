package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// TestTheLongestRunsBeginFirst: and those that have to be alone are kept apart, in the
// order in which they were asked for.
func TestTheLongestRunsBeginFirst(t *testing.T) {
	job := func(name string, lasts time.Duration, steps ...scenario.Step) Job {
		return Job{Named: Named{Scenario: &scenario.Scenario{
			Name: scenario.Name(name), Duration: scenario.Duration(lasts), Timeline: steps,
		}}}
	}
	busy := scenario.Step{Do: scenario.Do{CPU: &scenario.CPU{}}}
	together, alone := apart([]Job{
		job("short", time.Second), job("busy", time.Second, busy), job("long", time.Minute),
		job("as short", time.Second), job("busy longer", time.Minute, busy),
	})
	names := func(jobs []Job) (all []string) {
		for _, j := range jobs {
			all = append(all, string(j.Scenario.Name))
		}
		return all
	}
	if got, want := names(together), []string{"long", "short", "as short"}; !slices.Equal(got, want) {
		t.Errorf("together: %q, want %q", got, want)
	}
	if got, want := names(alone), []string{"busy", "busy longer"}; !slices.Equal(got, want) {
		t.Errorf("alone: %q, want %q", got, want)
	}
}

// TestHeavyRunsCountTwice: those of large clusters, and those that judge short waits.
func TestHeavyRunsCountTwice(t *testing.T) {
	all, err := ReadScenarios([]string{"../../../deploy/scenarios"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]int{ // of four at a time; of one
		"churn": {1, 1}, "keys-rotated": {2, 1}, "app-killed": {2, 1},
		"slow-receiver": {2, 1}, "others-wait-no-longer": {2, 1},
	} {
		i := slices.IndexFunc(all, func(n Named) bool { return string(n.Scenario.Name) == name })
		if i < 0 {
			t.Fatalf("%s is not there", name)
		}
		j := Job{Named: all[i]}
		if got := [2]int{j.weight(4), j.weight(1)}; got != want {
			t.Errorf("%s counts as %d runs, want %d", name, got, want)
		}
	}
}

// TestALoadIsEasedInRealLabsOnly: and the scenario of others stays as it is.
func TestALoadIsEasedInRealLabsOnly(t *testing.T) {
	s := &scenario.Schedule{Seed: 3, Scenario: &scenario.Scenario{Name: "some", Workload: scenario.Workload{
		Messages: &scenario.Messages{Rate: 50}, RMA: &scenario.RMA{Rate: 1, Window: 4096}, Connects: 2,
	}}}
	half := &Options{File: "some.yaml", Load: 50}
	if half.eased(s, scenario.Sim) != s || (&Options{}).eased(s, scenario.Netns) != s {
		t.Error("a simulation, or a run with all of its load, is changed")
	}
	less := half.eased(s, scenario.Netns)
	if w := less.Scenario.Workload; w.Messages.Rate != 25 || w.RMA.Rate != 1 || w.Connects != 1 || less.Seed != 3 {
		t.Errorf("half of the load is %+v", w)
	}
	if w := s.Scenario.Workload; w.Messages.Rate != 50 {
		t.Errorf("the scenario has become %+v", w)
	}
	if got, want := half.command(less, scenario.Netns), "fabricd chaos run some.yaml --on netns --seed 3 --load 50"; got != want {
		t.Errorf("it is repeated by %q, want %q", got, want)
	}
}

// TestWhatAScenarioCanShow: the fault plane's mtu is one of packets, the kernel's is one
// for whatever there is.
func TestWhatAScenarioCanShow(t *testing.T) {
	for _, c := range []struct {
		streams bool
		lab     scenario.Lab
		link    scenario.Link
		able    bool
	}{
		{true, scenario.Local, scenario.Link{MTU: 1280}, false},
		{true, scenario.Compose, scenario.Link{MTU: 1280}, false},
		{true, scenario.Netns, scenario.Link{MTU: 1280}, true},
		{true, scenario.Netns, scenario.Link{MTU: 1280, Plane: "link"}, false},
		{true, scenario.Netns, scenario.Link{MTU: 1280, Delay: 1}, false}, // the plane's, as the kernel has no delay
		{true, scenario.Local, scenario.Link{MTU: 1000, Plane: "gossip"}, true},
		{true, scenario.Local, scenario.Link{Drop: 0.5}, true},
		{false, scenario.Local, scenario.Link{MTU: 1280}, true},
	} {
		o := &Options{Providers: "some", StreamsOnly: c.streams}
		s := &scenario.Scenario{Name: "x", Timeline: []scenario.Step{{}, {Do: scenario.Do{Link: &c.link}}}}
		if err := o.Able(s, c.lab); (err == nil) != c.able || err != nil && !Refused(err) {
			t.Errorf("%+v on %s, streams alone %v: %v", c.link, c.lab, c.streams, err)
		}
	}
}
