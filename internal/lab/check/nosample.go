package check

import (
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// why says why a figure of the run has no sample, for people.
func (f *figureMaker) why(name scenario.FigureName) string {
	switch name {
	case scenario.TimeToError:
		return f.whyOfFaults(history.HarmReset, "no call to what a fault touched was under way and failed")
	case scenario.TimeToRemoved:
		return f.whyOfFaults(history.HarmRemove, "no application was told that a node is lost because of a fault")
	case scenario.TimeToAdded:
		return "no daemon was started again while others were there to be told"
	case scenario.TimeToMesh, scenario.TimeToConnect:
		return f.whyNoRecovery(name)
	case scenario.ConnectTime:
		return "no connect succeeded"
	case scenario.FenceTime:
		return "no fence wait succeeded"
	case scenario.Stalls:
		if len(f.seconds) > 0 {
			return "a fault touched every connection that received bytes"
		}
	case scenario.Throughput:
		if len(f.seconds) > 0 {
			return "bytes were received for less than one whole second"
		}
	case scenario.CPUTime:
		if f.w.begin.Lab == string(scenario.Sim) {
			return "a simulation takes no processor time of its own"
		}
		return "no daemon lived from the beginning of the run to its end"
	case scenario.Latency:
		if len(f.w.waits()) > 0 {
			return "a fault touched every pair of nodes that talked"
		}
		return "no fence wait succeeded, and no connection was made"
	}
	return "no application received a byte"
}

// whyOfFaults gives the reason why faults have no sample: none may do as much, or otherwise.
func (f *figureMaker) whyOfFaults(least history.Harm, otherwise string) string {
	may := func(x *fault) bool {
		return x.Harm == history.HarmRemove || x.Harm == least
	}
	if slices.ContainsFunc(f.w.faults, may) {
		return otherwise
	}
	if least == history.HarmRemove {
		return "no fault of the run may remove a node"
	}
	return "no fault of the run may end a connection"
}

// whyNoRecovery says why there is no time from the last fault on.
func (f *figureMaker) whyNoRecovery(name scenario.FigureName) string {
	switch {
	case len(f.w.faults) == 0:
		return "the run has no fault to recover from"
	case f.w.lastEnd() == never:
		return "a fault lasted until the end of the run"
	case name == scenario.TimeToMesh:
		return "behind the last fault the nodes did not all know each other"
	}
	return "no connection was made behind the last fault"
}
