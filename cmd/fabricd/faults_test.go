package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/faults"
)

// rulesOf returns the rules that a command line of faults add asks for.
func rulesOf(t *testing.T, stdin string, args ...string) ([]faults.Rule, error) {
	t.Helper()
	var f faultFlags
	cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	f.addTo(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	f.stdin = strings.NewReader(stdin)
	return f.rules()
}

const msec = faults.Duration(time.Millisecond)

func TestFlagsMakeRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.json")
	if err := os.WriteFile(file, []byte(`[{"plane":"rma","cut":true},{"plane":"link","drop":"5%"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args, stdin string
		want        []faults.Rule
	}{
		{"--from 1 --to 2,3 --plane link --drop 20% --delay 20ms --jitter 10ms --for 10s --name x", "", []faults.Rule{
			{From: faults.Nodes{1}, To: faults.Nodes{2, 3}, On: faults.Link, Drop: .2, Delay: 20 * msec, Jitter: 10 * msec, For: 10000 * msec, Name: "x"}}},
		{"--cut --at from", "", []faults.Rule{{On: faults.All, Cut: true, At: faults.AtFrom}}},
		{"--plane rma --rate 8Mbit/s --buffer 64KiB --seed 7", "", []faults.Rule{{On: faults.RMA, Rate: 1e6, Buffer: 64 << 10, Seed: 7}}},
		{"--duplicate 1% --reorder 2% --corrupt 3% --mtu 1200 --shape normal --jitter 1ms", "", []faults.Rule{
			{On: faults.All, Duplicate: .01, Reorder: .02, Corrupt: .03, MTU: 1200, Shape: faults.Normal, Jitter: msec}}},
		{"--half-open --udp-blocked --reset --up 1s --down 2s --after 3s", "", []faults.Rule{
			{On: faults.All, HalfOpen: true, BlockUDP: true, Reset: true, Up: 1000 * msec, Down: 2000 * msec, After: 3000 * msec}}},
		{"--hold --for 1s --from any", "", []faults.Rule{{On: faults.All, Hold: true, For: 1000 * msec}}},
		{"--partition 0,1/2 --for 1s", "", []faults.Rule{
			{From: faults.Nodes{0, 1}, To: faults.Nodes{2}, On: faults.All, Cut: true, For: 1000 * msec},
			{From: faults.Nodes{2}, To: faults.Nodes{0, 1}, On: faults.All, Cut: true, For: 1000 * msec}}},
		{"--partition 0/1 --direction asymmetric --plane gossip --drop 50%", "", []faults.Rule{
			{From: faults.Nodes{0}, To: faults.Nodes{1}, On: faults.Gossip, Drop: .5}}},
		{"--file " + file, "", []faults.Rule{{On: faults.RMA, Cut: true}, {On: faults.Link, Drop: .05}}},
		{"--file -", `{"plane":"all","cut":true}`, []faults.Rule{{On: faults.All, Cut: true}}},
	} {
		got, err := rulesOf(t, tt.stdin, strings.Fields(tt.args)...)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", tt.args, got, err, tt.want)
		}
	}
}

// TestWrongFaultsGetOneLine holds commands that cannot be to exit code 2 and one
// line that names the field, before any fabricd is asked.
func TestWrongFaultsGetOneLine(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"add", "does nothing"},
		{"add --drop 120%", `drop: "120%": want a probability`},
		{"add --from ! --cut", "from:"},
		{"add --from 70000 --cut", "0 to 65519"},
		{"add --from 1 --to 1 --cut", "no link with itself"},
		{"add --plane data --cut", "want gossip, control, messages, rma, link"},
		{"add --plane messages --drop 5%", "use the plane link"},
		{"add --plane control --mtu 1000", "TCP"},
		{"add --at middle --cut", "want from, to"},
		{"add --delay soon", "want a duration"},
		{"add --delay 2h", "up to 1m0s"},
		{"add --cut --for 48h", "up to 24h"},
		{"add --hold", "must be let go"},
		{"add --rate 1", "1000 to"},
		{"add --mtu 10", "64 to 65535"},
		{"add --partition 0", "two groups"},
		{"add --partition 0/1 --from 0", "leave out --from"},
		{"add --partition 0/1 --direction up", "symmetric, asymmetric or partial"},
		{"add --file /nonexistent --cut", "leave out --cut"},
		{"add --file /nonexistent", "no such file"},
		{"clear --id 1 --name x", "one of --id, --name and --node-id"},
		{"clear --id 0", "one of --id"},
		{"add --node explode", "want crash, freeze"},
		{"add --node crash --step nowhere", "step"},
		{"add --node freeze", "for"},
		{"add --node crash --drop 5%", "--node does not take it"},
		{"add --cut --step rma.write_copied", "only --node takes it"},
	} {
		_, stderr, code := run(t, []string{"FABRIC_ADMIN=/nonexistent"}, append([]string{"faults"}, strings.Fields(tt.args)...)...)
		first, _, _ := strings.Cut(stderr, "\n")
		if code != exitUsage || !strings.Contains(first, tt.want) || strings.Count(stderr, "\n") > 2 {
			t.Errorf("faults %s: exit code %d, %q; want %d and a line with %q", tt.args, code, stderr, exitUsage, tt.want)
		}
	}
	_, stderr, code := run(t, []string{"FABRIC_ADMIN=/nonexistent"}, "faults", "list")
	if code != exitFail || !strings.Contains(stderr, "no fabricd answers") {
		t.Errorf("faults list without a fabricd: exit code %d, %q", code, stderr)
	}
}

func TestFaultsAreShown(t *testing.T) {
	var out strings.Builder
	all := allFaults{
		Links: []faults.Status{{Rule: faults.Rule{ID: 3, On: faults.Link, Drop: .2, Name: "x", For: 1000 * msec}, State: faults.Active, Left: 500 * msec,
			Counts: faults.Counters{Seen: 10, Dropped: 2}},
			{Rule: faults.Rule{ID: 4, On: faults.Link, Cut: true, Name: "y"}, State: faults.Ended, Left: 28952069507},
			{Rule: faults.Rule{ID: 5, On: faults.Link, HalfOpen: true, Name: "z"}, State: faults.Active, Left: 28952069507}},
		Nodes: []daemon.NodeFaultReport{{ID: 1, Fault: daemon.NodeFault{Kind: "crash", Step: "rma.write_copied"}, State: "armed"}},
	}
	if err := showFaults(&out, all); err != nil {
		t.Fatal(err)
	}
	want := `FAULT  NAME  STATE   LEFT   SEEN  FIRED  WHAT
3      x     active  500ms  10    2      link any→any drop 20% for 1s
4      y     ended   -      0     0      link any→any cut
5      z     active  28s    0     0      link any→any half-open
NODE FAULT  STATE  HITS  FIRED  WHAT
1           armed  0     0      crash step=rma.write_copied
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := showFaults(&out, allFaults{}); err != nil || out.String() != "no faults\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
