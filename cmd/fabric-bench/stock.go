package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/stock"
)

// rawMemberlist is the anchor of losses: members of memberlist alone.
const rawMemberlist = "raw-memberlist"

// memberlistAlone is its name in the design's table.
const memberlistAlone = "memberlist alone"

// memberCommand is one member, a process that an anchor starts.
func (a *app) memberCommand() *cobra.Command {
	return &cobra.Command{
		Use: stock.Command + " NAME JOIN", Hidden: true, Args: cobra.ExactArgs(2),
		Short: "Be one member of memberlist alone: fabric-bench starts it",
		RunE: func(cmd *cobra.Command, args []string) error {
			return stock.Run(cmd.Context(), args[0], args[1], a.stdout)
		},
	}
}

// startStock starts members of memberlist alone, processes of this program, on a
// goroutine that keeps its thread.
func startStock(ctx context.Context, nodes int) (*stock.Cluster, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return stock.Start(ctx, self, nodes)
}

// A stockRun is what was measured of memberlist alone.
type stockRun struct {
	how    string
	losses []Loss
	others int // how often somebody went who was well
}

// strikeStock strikes members of memberlist alone as the series does daemons, on
// a goroutine that keeps its thread. What was measured before a failure counts.
func strikeStock(ctx context.Context, nodes, count int, s series, progress func(string, ...any)) (run stockRun, err error) {
	run.how = s.how
	c, err := startStock(ctx, nodes)
	if err != nil {
		return run, err
	}
	defer c.Close()
	for i := range count {
		victim := 1 + i%(nodes-1)
		l, err := c.Strike(ctx, victim, s.strike)
		if err != nil {
			return run, fmt.Errorf("loss %d of %d: %w", i+1, count, err)
		}
		one := Loss{How: s.how, Node: uint16(victim), Back: absent}
		for _, d := range l.Seen {
			one.Removed = append(one.Removed, microseconds(d))
		}
		run.losses, run.others = append(run.losses, one), run.others+l.Others
		progress("memberlist alone, %s: %d of %d", s.how, i+1, count)
	}
	return run, nil
}

// addStock adds the row of a run of memberlist alone.
func (d *Document) addStock(row Row, run stockRun) {
	if len(run.losses) == 0 {
		return
	}
	row.Provider, row.Security, row.Test, row.Dir = rawMemberlist, "none", eventTest, run.how+", its settings for a LAN"
	d.addLossRow(row, run.losses, removed)
	if run.others > 0 {
		d.note("memberlist alone, %s: %d times somebody went who was well", run.how, run.others)
	}
}

// removed returns when the survivors knew of a loss, in microseconds.
func removed(l Loss) []figure { return l.Removed }

// milliseconds returns a figure of all losses in milliseconds.
func milliseconds(losses []Loss, of func(Loss) []figure) (all []figure) {
	for _, l := range losses {
		for _, us := range of(l) {
			all = append(all, us/1e3)
		}
	}
	return all
}

// overall is the spread of v without its parts, which are too many to store.
func overall(v []figure) Spread {
	s := spreadOf(v)
	s.PerRep = nil
	return s
}
