package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/faults"
)

func (a *app) faultsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "faults", Short: "Break this node or its links on purpose, for tests",
		Long: `faults breaks links of the node that is asked, or the node itself, and undoes
it again. The node must run with --enable-faults.

A fault of a link is for one direction (--from, --to) and for a plane of traffic:
gossip, control (control sessions and lifelines), messages, rma, link (messages,
rma and heartbeats: the packets of QUIC) or all. The node enforces it on what it
sends itself, if it is in --from, and on what it receives, if it is in --to: so
one command at either end is enough. Given to both ends it acts twice, unless --at
says which end acts. Two other nodes' link is broken by asking one of them.

A fault ends after --for, with clear, or with the node.`,
		Example: `  fabricd faults add --from 1 --to 2 --plane link --drop 20% --delay 20ms --jitter 10ms --for 10s
  fabricd faults add --partition 0,1/2,3,4 --for 30s --name split
  fabricd faults add --node crash --step host.grant_persisted
  fabricd faults list
  fabricd faults clear`,
	}
	cmd.AddCommand(a.faultsAddCommand(), a.faultsListCommand(), a.faultsClearCommand(), a.faultsStepsCommand())
	return cmd
}

// faultFlags are the flags that make a rule. Their values are parsed as those of a rule in JSON, when
// the command runs, so that their errors are ours.
type faultFlags struct {
	flags                      *pflag.FlagSet
	partition, direction, file string
	stdin                      io.Reader
}

// faultTexts are the flags of a rule whose values have units, and their usages.
var faultTexts = [][2]string{
	{"from", "nodes that send: names or IDs separated by commas, or any"},
	{"to", "nodes that receive: names or IDs separated by commas, or any"},
	{"drop", "probability that a packet is lost: 0% to 100%"},
	{"duplicate", "probability that a packet arrives twice"},
	{"reorder", "probability that a packet is held back by up to 5ms"},
	{"corrupt", "probability that a byte of a packet is changed"},
	{"delay", "time added to the time in flight, up to 1m"},
	{"jitter", "random time added to that, up to 1m"},
	{"shape", "how jitter is distributed: uniform, normal or exponential"},
	{"rate", "bandwidth, as 1MB/s or 8Mbit/s"},
	{"buffer", "what waits for the bandwidth before packets are dropped, as 64KiB (default 256KiB)"},
	{"for", "how long it lasts, up to 24h (default: until it is cleared)"},
	{"after", "how long until it begins"},
	{"up", "with --down: acts for this long, rests for --down, and so on"},
	{"down", "see --up"},
}

// ruleFlags are all flags of a rule: its members, with a dash for each underscore.
func ruleFlags() []string {
	names := []string{"plane", "at", "name", "cut", "half-open", "hold", "udp-blocked", "reset", "mtu", "seed"}
	for _, t := range faultTexts {
		names = append(names, t[0])
	}
	return names
}

func (f *faultFlags) addTo(cmd *cobra.Command) {
	fl := cmd.Flags()
	f.flags = fl
	for _, t := range faultTexts {
		fl.String(t[0], "", t[1])
	}
	fl.String("plane", "all", "traffic to break: gossip, control, messages, rma, link or all")
	completeWords(cmd, "plane", "gossip", "control", "messages", "rma", "link", "all")
	fl.String("at", "", "the end that acts: from or to (default: each that is asked)")
	fl.String("name", "", "name for tables, and to clear it by; up to 64 bytes")
	fl.Bool("cut", false, "let nothing pass")
	fl.Bool("half-open", false, "stop what is established, refuse new connections")
	fl.Bool("hold", false, "keep everything until --for has passed, then let it pass")
	fl.Bool("udp-blocked", false, "let no packets pass, but TCP")
	fl.Bool("reset", false, "end established connections")
	fl.Int("mtu", 0, "drop packets of more than so many bytes, 64 to 65535")
	fl.Uint64("seed", 0, "number that decides what is random (default: the node's)")
	fl.StringVar(&f.partition, "partition", "", "cut groups of nodes from each other, as 0,1/2,3,4; instead of --from and --to")
	fl.StringVar(&f.direction, "direction", "symmetric", "of --partition: symmetric, asymmetric (each group to those after it) or partial (neighbours)")
	fl.StringVar(&f.file, "file", "", "read the rules from this JSON file, - for standard input; instead of all others")
}

// findNodes puts the IDs of nodes where flags have their names.
func (f *faultFlags) findNodes(ctx context.Context, c *daemon.Client) error {
	for _, flag := range []string{"from", "to", "partition"} {
		var failed error
		value := f.flags.Lookup(flag).Value
		text := nodeName.ReplaceAllStringFunc(value.String(), func(name string) string {
			if _, byID := addr.ParseNode(name); byID || name == "any" || failed != nil {
				return name
			}
			id, err := c.FindNode(ctx, name)
			if err != nil {
				failed = fmt.Errorf("%s: %w", flag, err)
			}
			return strconv.Itoa(int(id))
		})
		if err := errors.Join(failed, value.Set(text)); err != nil {
			return err
		}
	}
	return nil
}

// nodeName is a name in a list of nodes, or in one of groups.
var nodeName = regexp.MustCompile(`[A-Za-z0-9._-]*[A-Za-z._-][A-Za-z0-9._-]*`)

// rules returns the rules of the flags, or of the file that they name.
func (f *faultFlags) rules() ([]faults.Rule, error) {
	if f.file != "" {
		return f.fromFile()
	}
	r := faults.Rule{On: faults.All}
	for _, name := range ruleFlags() {
		flag := f.flags.Lookup(name)
		if !flag.Changed {
			continue
		}
		member := fmt.Sprintf("{%q: %s}", strings.ReplaceAll(name, "-", "_"), jsonValue(flag.Value))
		if err := json.Unmarshal([]byte(member), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if f.partition == "" {
		return []faults.Rule{r}, r.Check()
	}
	if f.flags.Changed("from") || f.flags.Changed("to") {
		return nil, errors.New("partition: its groups are cut from each other; leave out --from and --to")
	}
	groups, err := faults.ParseGroups(f.partition)
	if err != nil {
		return nil, err
	}
	return faults.Partition(groups, faults.Direction(f.direction), r)
}

// jsonValue returns the value of a flag in JSON.
func jsonValue(v pflag.Value) json.RawMessage {
	if v.Type() != "string" {
		return json.RawMessage(v.String()) // a number or a bool
	}
	text, _ := json.Marshal(v.String()) // every string has JSON
	return text
}

// fromFile reads rules from a file, and refuses flags that it would override.
func (f *faultFlags) fromFile() ([]faults.Rule, error) {
	for _, name := range append(ruleFlags(), "partition", "direction") {
		if f.flags.Changed(name) {
			return nil, fmt.Errorf("file: the rules are all in it; leave out --%s", name)
		}
	}
	in := f.stdin
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, fmt.Errorf("file: %w", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, faults.MaxEncoded+1))
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	return faults.Decode(text)
}

func (a *app) faultsAddCommand() *cobra.Command {
	var ask askFlags
	var f faultFlags
	var node nodeFlags
	cmd := &cobra.Command{
		Use: "add", Short: "Break links of this node, or with --node the node itself",
		Long: `add breaks links of the node that is asked; see ` + "`fabricd faults --help`" + ` for which.
Several faults of one command act together. It prints the fault's number.

With --node it breaks the node itself:

  crash                    at once, or at --step
  freeze --for D           stands still for D, at once or at --step
  delay --for D --step S   the caller at the step waits for D
  error --step S           the step fails
  clock --offset D         the wall clock is D ahead, --for some time
  disk --disk MODE         the state directory is full, read-only, ..., --for some time
  descriptors --free N     only N more can be opened, --for some time
  slow-receiver --delay D  applications let D pass between two receives, --for some time`,
		Example: `  fabricd faults add --from 1 --to 2 --plane link --drop 20% --delay 20ms --jitter 10ms --for 10s
  fabricd faults add --from web-1 --to db-1 --cut --name one-way
  fabricd faults add --to 3 --plane rma --rate 8Mbit/s
  fabricd faults add --plane gossip --drop 5% --up 200ms --down 1s
  fabricd faults add --partition 0,1/2,3,4 --for 30s --name split
  fabricd faults add --file rules.json
  fabricd faults add --node freeze --for 1.5s
  fabricd faults add --node crash --step rma.write_copied --nth 3
  fabricd faults add --node disk --disk full --for 30s`,
	}
	ask.addTo(cmd)
	f.addTo(cmd)
	node.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.stdin = cmd.InOrStdin()
		if cmd.Flags().Changed("node") {
			fault, err := node.fault(cmd)
			if err != nil {
				return usageError{err}
			}
			return a.addNodeFault(cmd, &ask, fault)
		}
		if err := node.unused(cmd); err != nil {
			return usageError{err}
		}
		if err := a.ask(cmd, &ask, f.findNodes); err != nil {
			return err
		}
		rules, err := f.rules()
		if err != nil {
			return usageError{err}
		}
		return a.addLinkFaults(cmd, &ask, rules)
	}
	return cmd
}

// addLinkFaults adds rules, and prints their numbers.
func (a *app) addLinkFaults(cmd *cobra.Command, ask *askFlags, rules []faults.Rule) error {
	return answer(a, cmd, ask, func(ctx context.Context, c *daemon.Client) (daemon.LinkFaultIDs, error) {
		ids, err := c.AddLinkFaults(ctx, rules)
		return daemon.LinkFaultIDs{IDs: ids}, err
	}, func(w io.Writer, added daemon.LinkFaultIDs) error {
		for i, id := range added.IDs {
			if _, err := fmt.Fprintf(w, "fault %d: %v\n", id, rules[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// allFaults is the output of `fabricd faults list --json`.
type allFaults struct {
	Links []faults.Status          `json:"faults"`
	Nodes []daemon.NodeFaultReport `json:"node_faults"`
}

func (a *app) faultsListCommand() *cobra.Command {
	var ask askFlags
	var ended bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the faults of this node and its links, and what they did",
		Long: `list shows the faults that are there, and how often each has done something:
a test that broke nothing proves nothing.`,
		Example: `  fabricd faults list
  fabricd faults list --ended
  fabricd faults list --json | jq '.faults[] | {id: .rule.id, dropped: .counts.dropped}'`,
	}
	cmd.Flags().BoolVar(&ended, "ended", false, "show those too that are over, the last 256 of them")
	return asking(a, cmd, &ask, func(ctx context.Context, c *daemon.Client, _ []string) (all allFaults, err error) {
		if all.Links, err = c.LinkFaults(ctx, ended); err != nil {
			return all, err
		}
		nodes, err := c.NodeFaults(ctx)
		all.Nodes = slices.DeleteFunc(nodes, func(r daemon.NodeFaultReport) bool { return !ended && r.State == "ended" })
		return all, err
	}, showFaults)
}

// showFaults prints the faults of links, and then those of the node.
func showFaults(w io.Writer, all allFaults) error {
	if len(all.Links)+len(all.Nodes) == 0 {
		_, err := fmt.Fprintln(w, "no faults")
		return err
	}
	if len(all.Links) > 0 {
		t := table{{"FAULT", "NAME", "STATE", "LEFT", "SEEN", "FIRED", "WHAT"}}
		for _, st := range all.Links {
			left := "-"
			if st.State != faults.Ended && st.Left > 0 {
				left = duration(time.Duration(st.Left))
			}
			t = append(t, []string{fmt.Sprint(st.Rule.ID), st.Rule.Name, string(st.State), left,
				fmt.Sprint(st.Counts.Seen), fmt.Sprint(st.Counts.Fired()), st.Rule.String()})
		}
		if err := t.print(w); err != nil {
			return err
		}
	}
	if len(all.Nodes) == 0 {
		return nil
	}
	t := table{{"NODE FAULT", "STATE", "HITS", "FIRED", "WHAT"}}
	for _, r := range all.Nodes {
		what := r.Fault.String()
		if r.Problem != "" {
			what += " (" + r.Problem + ")"
		}
		t = append(t, []string{fmt.Sprint(r.ID), string(r.State), fmt.Sprint(r.Hits), fmt.Sprint(r.Fired), what})
	}
	return t.print(w)
}

func (a *app) faultsClearCommand() *cobra.Command {
	var ask askFlags
	var id, nodeID uint64
	var name string
	cmd := &cobra.Command{
		Use: "clear", Short: "End faults of this node and its links: all of them, or those that are named",
		Example: `  fabricd faults clear
  fabricd faults clear --name split
  fabricd faults clear --id 3
  fabricd faults clear --node-id 1`,
	}
	ask.addTo(cmd)
	cmd.Flags().Uint64Var(&id, "id", 0, "number of one fault of links")
	cmd.Flags().StringVar(&name, "name", "", "name of faults of links")
	cmd.Flags().Uint64Var(&nodeID, "node-id", 0, "number of one fault of the node itself")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		given := 0
		for _, name := range []string{"id", "name", "node-id"} {
			if cmd.Flags().Changed(name) {
				given++
			}
		}
		if given > 1 || cmd.Flags().Changed("id") && id == 0 || cmd.Flags().Changed("node-id") && nodeID == 0 ||
			cmd.Flags().Changed("name") && name == "" {
			return usagef("clear: want one of --id, --name and --node-id with what `fabricd faults list` shows, or none of them")
		}
		return a.ask(cmd, &ask, func(ctx context.Context, c *daemon.Client) error {
			return a.clearFaults(ctx, c, id, nodeID, name, ask.json)
		})
	}
	return cmd
}

// clearFaults ends one fault, or all if nothing is named.
func (a *app) clearFaults(ctx context.Context, c *daemon.Client, id, nodeID uint64, name string, asJSON bool) (err error) {
	links, nodes := 0, 0
	if nodeID == 0 {
		if links, err = c.ClearLinkFaults(ctx, id, name); err != nil {
			return err
		}
	}
	if id == 0 && name == "" {
		if nodes, err = c.ClearNodeFaults(ctx, nodeID); err != nil {
			return err
		}
	}
	switch {
	case asJSON:
		return json.NewEncoder(a.stdout).Encode(map[string]int{"cleared": links, "node_cleared": nodes})
	case id != 0 && links == 0:
		return fmt.Errorf("there is no fault %d; `fabricd faults list` shows those there are", id)
	case name != "" && links == 0:
		return fmt.Errorf("there is no fault called %q; `fabricd faults list` shows those there are", name)
	}
	_, err = fmt.Fprintf(a.stdout, "cleared %s\n", plural(links+nodes, "fault"))
	return err
}
