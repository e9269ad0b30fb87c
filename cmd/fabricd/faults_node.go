package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

// nodeFlags are the flags of `faults add` that make a fault of the node itself.
// --for, --delay and --seed are those of a link's fault.
type nodeFlags struct {
	kind, step, within, offset, disk string
	nth, times, free                 int
	probability                      float64
	port                             uint16
}

// nodeFlagNames are those that go with --node.
var nodeFlagNames = []string{"step", "for", "within", "nth", "times", "probability", "seed", "offset", "disk", "delay", "free", "port"}

func (f *nodeFlags) addTo(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.kind, "node", "", "break the node itself: crash, freeze, delay, error, clock, disk, descriptors or slow-receiver")
	fl.StringVar(&f.step, "step", "", "with --node: the step of the protocol at which it happens; see fabricd faults steps")
	fl.StringVar(&f.within, "within", "", "with --step: how long it stays armed (default 10m)")
	fl.IntVar(&f.nth, "nth", 0, "with --step: the first hit that counts (default 1)")
	fl.IntVar(&f.times, "times", 0, "with --step: how often it happens, -1: always (default 1)")
	fl.Float64Var(&f.probability, "probability", 0, "with --step: of each hit that counts (default 1)")
	fl.StringVar(&f.offset, "offset", "", "of --node clock: how far it is ahead, or behind, as -1h")
	fl.StringVar(&f.disk, "disk", "", "of --node disk: full, read-only, sync (it fails) or slow (by --delay)")
	fl.IntVar(&f.free, "free", 0, "of --node descriptors: how many are left")
	fl.Uint16Var(&f.port, "port", 0, "of --node slow-receiver, which takes --delay between two receives (default: all ports)")
}

// fault returns the fault of the command line. It refuses flags that are for faults of
// links only.
func (f *nodeFlags) fault(cmd *cobra.Command) (daemon.NodeFault, error) {
	for _, name := range append(ruleFlags(), "partition", "direction", "file") {
		if cmd.Flags().Changed(name) && !slices.Contains(nodeFlagNames, name) {
			return daemon.NodeFault{}, fmt.Errorf("%s: --node does not take it", name)
		}
	}
	members := map[string]any{"kind": f.kind}
	for _, name := range nodeFlagNames {
		if cmd.Flags().Changed(name) {
			members[name] = jsonValue(cmd.Flags().Lookup(name).Value)
		}
	}
	text, err := json.Marshal(members)
	if err != nil { // no JSON number: NaN or an infinity
		return daemon.NodeFault{}, fmt.Errorf("probability: %v: want a number above 0 and up to 1", f.probability)
	}
	return daemon.ParseNodeFault(text)
}

// unused refuses flags of a node's fault without --node.
func (f *nodeFlags) unused(cmd *cobra.Command) error {
	for _, name := range nodeFlagNames {
		if name != "for" && name != "delay" && name != "seed" && cmd.Flags().Changed(name) {
			return fmt.Errorf("%s: only --node takes it", name)
		}
	}
	return nil
}

// addNodeFault asks for a fault of the node itself.
func (a *app) addNodeFault(cmd *cobra.Command, ask *askFlags, f daemon.NodeFault) error {
	return answer(a, cmd, ask, func(ctx context.Context, c *daemon.Client) (daemon.NodeFaultID, error) {
		id, err := c.AddNodeFault(ctx, f)
		return daemon.NodeFaultID{ID: id}, err
	}, func(w io.Writer, added daemon.NodeFaultID) error {
		_, err := fmt.Fprintf(w, "node fault %d: %v\n", added.ID, f)
		return err
	})
}

func (a *app) faultsStepsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "steps", Short: "List the steps of the protocol at which a node can be broken", Args: cobra.NoArgs,
		Long: `steps lists where --node crash, freeze, delay and error of ` + "`fabricd faults add`" + ` can
happen, and what an error there does; a step without one cannot fail.`,
		Example: `  fabricd faults steps
  fabricd faults steps --json | jq -r '.[].name'`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		all := daemon.NodeFaultSteps()
		if asJSON {
			return json.NewEncoder(a.stdout).Encode(all)
		}
		t := table{{"STEP", "WHEN", "AN ERROR THERE"}}
		for _, s := range all {
			t = append(t, []string{s.Name, s.Meaning, s.Fails})
		}
		return t.print(a.stdout)
	}
	return cmd
}
