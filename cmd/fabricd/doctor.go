package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/doctor"
)

// A diagnosis is the output of `fabricd doctor --json`.
type diagnosis struct {
	Healthy  bool             `json:"healthy"` // nothing is bad
	Findings []doctor.Finding `json:"findings"`
	Plan     *doctor.Plan     `json:"plan,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	var file string
	var asJSON bool
	var plan int64
	cmd := &cobra.Command{
		Use: "doctor", Short: "Report what this machine lacks for a node, and what to do about it", Args: noArguments,
		Long: `doctor looks at the machine for a node with these settings, which are those of
run, from flags, variables and the file: shared memory, descriptors, processors,
UDP buffers, whether the sockets of paths can be locked to their peers, ports,
directories, the members to join, and the node that runs here, if one does. It
changes nothing. A finding is ok, a note (it works, and could be
better) or bad (it does not work); a bad one makes the exit code 1.

--plan N adds what N connections take, of the memory and the descriptors that
there are.`,
		Example: `  fabricd doctor
  fabricd doctor --join 10.0.0.1:7700 --token-file join.token
  fabricd doctor --plan 1000
  fabricd doctor --json | jq '.findings[] | select(.state != "ok")'`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().Int64Var(&plan, "plan", 0, fmt.Sprintf("how many connections to plan for, 1 to %d", doctor.MaxPlan))
	addSettings(cmd, &file)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if planned := cmd.Flags().Changed("plan"); planned && (plan < 1 || plan > doctor.MaxPlan) {
			return usagef("plan: %d: want 1 to %d", plan, doctor.MaxPlan)
		}
		c, err := a.settings(cmd, file)
		if err != nil {
			return err
		}
		client := daemon.NewClient(c.Local.AdminSocket)
		defer client.Close()
		facts := doctor.Look(cmd.Context(), c, a.environ, client)
		d := diagnosis{Findings: doctor.Judge(c, facts)}
		d.Healthy = doctor.Healthy(d.Findings)
		if plan > 0 {
			d.Plan = new(doctor.PlanFor(plan, daemon.CostsOf(c), facts))
		}
		if err := d.print(a.stdout, asJSON); err != nil {
			return err
		}
		return d.err()
	}
	return cmd
}

// err returns an error with the number of bad findings, or if the plan does not fit.
func (d diagnosis) err() error {
	bad := 0
	for _, f := range d.Findings {
		if f.State == doctor.Bad {
			bad++
		}
	}
	switch {
	case bad == 1:
		return errors.New("1 finding is bad")
	case bad > 1:
		return fmt.Errorf("%d findings are bad", bad)
	case d.Plan != nil && len(d.Plan.Lacks) > 0:
		return errors.New("the plan does not fit")
	}
	return nil
}

func (d diagnosis) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(d)
	}
	for _, f := range d.Findings {
		if err := printLine(w, "%-5s %-14s %s", f.State, f.Check, f.Found); err != nil {
			return err
		}
		if f.Remedy == "" {
			continue
		}
		if err := printLine(w, "%21s%s", "", f.Remedy); err != nil {
			return err
		}
	}
	if d.Plan == nil {
		return nil
	}
	return printPlan(w, *d.Plan)
}

func printPlan(w io.Writer, p doctor.Plan) error {
	_, err := fmt.Fprintf(w, `
%[1]s within this node, of attached applications
      shared memory  %[2]s for the shared-memory paths, %[3]s each
      applications   %[4]d at least, of %[5]d ends of shared-memory paths each, and %[10]s, of %[11]d ends each;
                     what is more goes through fabricd
      descriptors    %[6]d of fabricd
%[1]s to other nodes
      messages       %[8]s at most of each that no application has read;
                     one application has memory for %[7]s
      descriptors    %[9]d of fabricd
`, plural(int(p.Connections), "connection"), size(uint64(p.ShmPaths)), size(uint64(p.ShmPath)), p.Applications,
		p.Ends, p.Inside, plural(int(p.Fit), "connection"), size(uint64(p.Unread)), p.Outside,
		plural(int(p.Users), "user"), p.UserEnds)
	for _, lack := range p.Lacks {
		if err == nil {
			_, err = fmt.Fprintf(w, "%-5s %s\n", doctor.Bad, lack)
		}
	}
	return err
}
