package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/scenario"
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
