package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// A deployedOptions is what the flags of `deployed` say.
type deployedOptions struct {
	fabricd   string
	providers string
	paths     string
	plaintext bool
	loopback  bool
	json      bool
	runs      int
	during    time.Duration
}

// A Deployed is the report: an application on each of two machines, attached to a
// fabricd on each, beside two bare programs and stunnel on the same way.
type Deployed struct {
	Machine   Machine       `json:"machine"`
	Revision  string        `json:"revision"`
	Way       string        `json:"way"`
	Providers string        `json:"providers"`
	Paths     string        `json:"paths"`
	TLS       bool          `json:"tls"`
	Runs      int           `json:"runs"`
	During    string        `json:"during"` // of each measurement
	Rows      []DeployedRow `json:"rows"`
	Notes     []string      `json:"notes,omitempty"`
}

// A DeployedRow is one test: each carrier's figures, one of each run.
type DeployedRow struct {
	Test     string              `json:"test"`
	Unit     string              `json:"unit"`
	Figures  map[string][]figure `json:"figures"`
	CPU      map[string][]figure `json:"cpu"` // processor seconds of all processes: for each GB, or each million operations
	CPUUnit  string              `json:"cpu_unit"`
	Baseline string              `json:"baseline"` // what the target compares with
	Target   figure              `json:"target,omitzero"`
	AtLeast  bool                `json:"at_least,omitempty"` // else at most
}

func (a *app) deployedCommand() *cobra.Command {
	o := &deployedOptions{}
	cmd := &cobra.Command{
		Use: "deployed", Short: "Measure what is deployed: an application and a fabricd on each of two machines", Args: cobra.NoArgs,
		Long: `deployed starts two fabricds in two network namespaces (on loopback without root),
an application process beside each, and measures messages, connects and remote
memory between the two. In the same run and in turns it measures bare programs
over TCP and crypto/tls, and TCP through stunnel if that is installed. Beside each
figure is the processor time of all processes that took part.`,
		Example: `  fabric-bench deployed
  fabric-bench deployed --paths off                over the link alone
  fabric-bench deployed --providers tcp --json
  fabric-bench deployed --providers tcp --plaintext --runs 9`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			report, err := measureDeployed(cmd.Context(), o, a.stderr)
			if err != nil {
				return err
			}
			if o.json {
				return writeJSON(a.stdout, report)
			}
			return report.write(a.stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.fabricd, "fabricd", "", "the program to run (default: beside this one, in ./bin or on $PATH)")
	f.StringVar(&o.providers, "providers", "", "what carries the data, as fabricd's setting (default: fabricd's own)")
	f.StringVar(&o.paths, "paths", "lazy", "when connections get a socket of their own, as fabricd's setting: lazy or off")
	f.BoolVar(&o.plaintext, "plaintext", false, "without TLS over tcp; the baseline is bare TCP then")
	f.BoolVar(&o.loopback, "loopback", !canMakeSpaces(), "both machines on loopback, as without root")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.IntVar(&o.runs, "runs", 5, "measurements of each test and carrier, 1 to 100")
	f.DurationVar(&o.during, "duration", 500*time.Millisecond, "of each measurement, 10ms to 1m")
	return cmd
}

func (o *deployedOptions) check() error {
	switch {
	case o.runs < 1 || o.runs > 100:
		return usagef("--runs %d: 1 to 100", o.runs)
	case o.during < 10*time.Millisecond || o.during > time.Minute:
		return usagef("--duration %v: 10ms to 1m", o.during)
	case o.paths != "lazy" && o.paths != "off":
		return usagef("--paths %s: lazy or off", o.paths)
	case o.plaintext && o.providers != "tcp":
		return usagef("--plaintext is for --providers tcp")
	case !o.loopback && !canMakeSpaces():
		return usagef("--loopback=false: network namespaces need root and `ip`")
	}
	return nil
}

func (o *deployedOptions) daemonFlags() (flags []string) {
	if o.providers != "" {
		flags = append(flags, "--providers", o.providers)
	}
	if o.plaintext {
		flags = append(flags, "--tcp-plaintext")
	}
	return append(flags, "--paths", o.paths)
}

// baseline is the carrier that targets compare with.
func (o *deployedOptions) baseline() string {
	if o.plaintext {
		return carryTCP
	}
	return carryTLS
}

// measureDeployed measures every test over every carrier, in turns.
func measureDeployed(ctx context.Context, o *deployedOptions, progress io.Writer) (_ *Deployed, err error) {
	runtime.LockOSThread() // the lab's children die with this thread
	defer runtime.UnlockOSThread()
	report := o.report()
	lab, err := newDeployedLab(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lab.close()) }()
	stop := context.AfterFunc(ctx, lab.interrupt)
	defer stop()
	carriers, err := lab.openAll(ctx, report)
	if err != nil {
		return nil, err
	}
	for run := range o.runs {
		for i := range deployedTests {
			// Each run begins with another carrier.
			for c := range carriers {
				carrier := carriers[(c+run)%len(carriers)]
				if err := report.Rows[i].add(lab, o, &deployedTests[i], carrier); err != nil {
					return nil, fmt.Errorf("%s over %s: %w\n%s", deployedTests[i].name, carrier, errors.Join(err, ctx.Err()), lab.tails())
				}
			}
		}
		fmt.Fprintf(progress, "fabric-bench: run %d of %d\n", run+1, o.runs)
	}
	return report, nil
}

func (o *deployedOptions) report() *Deployed {
	d := &Deployed{Machine: describeMachine(), Revision: revision(), Way: "two network namespaces, veth", Providers: o.providers, Paths: o.paths,
		TLS: !o.plaintext, Runs: o.runs, During: o.during.String()}
	if o.loopback {
		d.Way = "loopback"
	}
	if d.Providers == "" {
		d.Providers = "fabricd's own"
	}
	for _, t := range deployedTests {
		row := DeployedRow{Test: t.name, Unit: t.unit, Figures: map[string][]figure{}, CPU: map[string][]figure{},
			CPUUnit: "s/GB", Baseline: o.baseline(), Target: t.target, AtLeast: t.atLeast}
		if t.unit != "MB/s" {
			row.CPUUnit = "µs/op"
		}
		if t.kind == kindPut || t.kind == kindAdd {
			row.Baseline = carryTCP
		}
		d.Rows = append(d.Rows, row)
	}
	return d
}

// openAll starts the applications of every carrier that this machine has.
func (l *deployedLab) openAll(ctx context.Context, report *Deployed) (carriers []string, err error) {
	for _, carrier := range []string{carryFabric, carryTCP, carryTLS, carryStunnel} {
		err := l.open(ctx, carrier)
		if errors.Is(err, tools.ErrNotInstalled) {
			report.Notes = append(report.Notes, "no stunnel: "+err.Error())
			continue
		}
		if err != nil {
			return nil, err
		}
		carriers = append(carriers, carrier)
	}
	return carriers, nil
}

// add measures one test over one carrier.
func (r *DeployedRow) add(lab *deployedLab, o *deployedOptions, t *deployedTest, carrier string) error {
	kind := t.kind
	if carrier != carryFabric && t.as != 0 {
		kind = t.as
	}
	result, cpu, err := lab.measure(carrier, order{Kind: kind, Size: t.size, Warmup: o.during / 5, During: o.during})
	if err != nil {
		return err
	}
	r.Figures[carrier] = append(r.Figures[carrier], result.figure(kind))
	each := figure(cpu.Seconds()*1e6) / figure(max(result.Ops, 1))
	if r.CPUUnit == "s/GB" {
		each = figure(cpu.Seconds()*1e9) / figure(max(result.Bytes, 1))
	}
	r.CPU[carrier] = append(r.CPU[carrier], each)
	return nil
}

// ratio returns fabric's figures over those of another carrier, run by run, sorted.
func ratio(of map[string][]figure, carrier string) []figure {
	ours, theirs := of[carryFabric], of[carrier]
	var all []figure
	for i := range min(len(ours), len(theirs)) {
		all = append(all, ours[i]/theirs[i])
	}
	slices.Sort(all)
	return all
}

// met reports whether the row's target is reached; one without is.
func (r *DeployedRow) met() bool {
	mid := median(ratio(r.Figures, r.Baseline))
	switch {
	case r.Target == 0:
		return true
	case r.AtLeast:
		return mid >= r.Target
	}
	return mid <= r.Target
}

// write prints the report for people.
func (d *Deployed) write(w io.Writer) error {
	t := newTable(w)
	security := "TLS"
	if !d.TLS {
		security = "plaintext"
	}
	t.title("deployed: an application and a fabricd on each side · %s · providers: %s · paths: %s · %s · %d runs of %s", d.Way, d.Providers, d.Paths, security, d.Runs, d.During)
	t.title("%s · %v", d.Revision, d.Machine)
	t.row("test", "unit", carryFabric, carryTCP, carryTLS, carryStunnel, "ours/baseline min/median/max", "target", "cpu of "+carryFabric, "baseline's", carryStunnel+"'s", "unit")
	for _, r := range d.Rows {
		target := ""
		if r.Target != 0 {
			sign, reached := "≤", "not reached"
			if r.AtLeast {
				sign = "≥"
			}
			if r.met() {
				reached = "reached"
			}
			target = fmt.Sprintf("%s %v of %s: %s", sign, r.Target, r.Baseline, reached)
		}
		of := func(m map[string][]figure, carrier string) string { return short(median(m[carrier])) }
		x := ratio(r.Figures, r.Baseline)
		t.row(r.Test, r.Unit, of(r.Figures, carryFabric), of(r.Figures, carryTCP), of(r.Figures, carryTLS), of(r.Figures, carryStunnel),
			fmt.Sprintf("%s/%s/%s", short(x[0]), short(median(x)), short(x[len(x)-1])), target,
			of(r.CPU, carryFabric), of(r.CPU, r.Baseline), of(r.CPU, carryStunnel), r.CPUUnit)
	}
	t.flush()
	for _, note := range d.Notes {
		t.title("Note: %s", note)
	}
	return t.err
}
