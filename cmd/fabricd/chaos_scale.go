package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/lab/chaos"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// Bounds of a scale run: the largest takes minutes.
const (
	maxScaleNodes = 1000
	maxScaleRuns  = 1000
)

func (a *app) chaosScaleCommand() *cobra.Command {
	var nodes []int
	var runs int
	var seed uint64
	var detection, report string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "scale", Short: "Measure how a cluster grows, in the simulation", Args: cobra.NoArgs,
		Long: `scale starts clusters of several sizes on virtual time, all nodes at once, and
measures how long they take to know each other, to learn of a killed and of a
silent node, and how much they say.`,
		Example: `  fabricd chaos scale
  fabricd chaos scale --nodes 8,32,100,200 --runs 5 --report out/scale`,
	}
	cmd.Flags().IntSliceVar(&nodes, "nodes", []int{8, 32, 100, 200}, "sizes of the clusters, ascending")
	cmd.Flags().IntVar(&runs, "runs", 3, "how many seeds for each size")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "the first seed")
	cmd.Flags().StringVar(&detection, "detection", string(scenario.Normal), "detection profile: fast, normal or calm")
	cmd.Flags().StringVar(&report, "report", "", "directory for the figures, which page draws; none if empty")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per size")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := scenario.Detection(detection)
		switch {
		case d != scenario.Fast && d != scenario.Normal && d != scenario.Calm:
			return usagef("detection: %q: want fast, normal or calm", detection)
		case runs < 1 || runs > maxScaleRuns:
			return usagef("runs: %d: want 1 to %d", runs, maxScaleRuns)
		case len(nodes) == 0:
			return usagef("nodes: want at least one size")
		}
		for i, n := range nodes {
			if n < 2 || n > maxScaleNodes || i > 0 && n <= nodes[i-1] {
				return usagef("nodes: %d: want 2 to %d, ascending", n, maxScaleNodes)
			}
		}
		var points []sim.ScalePoint
		for _, n := range nodes {
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			p, err := sim.Scale(n, d, seed, runs)
			if err != nil {
				return err
			}
			points = append(points, p)
			if asJSON {
				if err := json.NewEncoder(a.stdout).Encode(p); err != nil {
					return err
				}
			}
		}
		if !asJSON {
			a.printScale(points)
		}
		return saveScale(report, points)
	}
	return cmd
}

func (a *app) printScale(points []sim.ScalePoint) {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODES\tJOIN p50/max\tCRASH p50/max\tSILENCE p50/max\tRETURN p50/max\tIDLE\tHOST\tSTORM\tFALSE")
	show := func(s sim.Spread) string {
		return s.P50.Round(time.Millisecond).String() + "/" + s.Max.Round(time.Millisecond).String()
	}
	for _, p := range points {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%.0f\t%d\n", p.Nodes, show(p.Join), show(p.Crash), show(p.Silence),
			show(p.Return), p.Idle, p.IdleHost, p.Storm, p.False)
	}
	w.Flush() // to a.stdout, whose errors are ignored
	fmt.Fprintln(a.stdout, "IDLE and HOST: control messages per second, of a node and of the host; STORM: per node in the join of all.")
}

// saveScale writes the figures.
func saveScale(dir string, points []sim.ScalePoint) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(points, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, chaos.ScaleName), append(text, '\n'), 0o644)
	}
	return err
}
