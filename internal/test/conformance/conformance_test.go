package conformance

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// tallies are the results of TestConformance.
var tallies []Tally

// TestMain is the peer in a process that is one; else it prints the count below the tests' output.
func TestMain(m *testing.M) {
	if socket := os.Getenv(peerSocket); socket != "" {
		fmt.Fprintln(os.Stderr, bePeer(socket))
		os.Exit(1)
	}
	code := m.Run()
	if tallies != nil {
		PrintReasons(os.Stdout)
		fmt.Println()
		if !Print(os.Stdout, tallies) {
			code = max(code, 1)
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

// TestConformance runs the contract in every API mode.
func TestConformance(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.Name, func(t *testing.T) { tallies = append(tallies, Run(t, mode)...) })
	}
}

// TestTableIsWellFormed keeps the table readable and countable.
func TestTableIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	covered := map[string]bool{}
	for _, r := range table() {
		name := r.call + " " + r.name
		if seen[name] {
			t.Errorf("two rows are called %q", name)
		}
		seen[name], covered[r.call] = true, true
		if !slices.Contains(calls, r.call) {
			t.Errorf("row %q is about no call of SCIF", name)
		}
		if _, result, ok := strings.Cut(r.name, "="); !ok || result == "" {
			t.Errorf("row %q names no result", name)
		}
		if r.wait != 0 && !r.alone {
			t.Errorf("row %q wants another timeout in a shared cluster", name)
		}
	}
	for _, r := range rests {
		covered[r.call] = true
		if !slices.Contains(calls, r.call) || r.why == "" {
			t.Errorf("%s, %s: no such call, or no reason", r.call, r.name)
		}
	}
	for _, call := range calls {
		if !covered[call] {
			t.Errorf("%s has neither a row nor a reason", call)
		}
	}
}

// TestEveryErrorOfTheHeaderIsJudged wants a row or a reason for each pair of a call and
// an error in SCIF's header.
func TestEveryErrorOfTheHeaderIsJudged(t *testing.T) {
	for call, errnos := range header {
		if !slices.Contains(calls, call) {
			t.Errorf("%s is no call", call)
		}
		for _, errno := range strings.Fields(errnos) {
			if judge(call, errno, nil) == unjudged {
				t.Errorf("%s of %s has neither a row nor a reason", errno, call)
			}
		}
	}
}

// TestEveryStateIsJudged wants a row for each call on an endpoint in each of its states.
func TestEveryStateIsJudged(t *testing.T) {
	for _, call := range strings.Fields(`bind listen connect accept close send recv poll register unregister mmap
		writeto readfrom vwriteto vreadfrom fence_mark fence_wait fence_signal atomic post putsignal vputsignal`) {
		for _, state := range strings.Fields("UNBOUND BOUND LISTENING CONNECTING CONNECTED DISCONNECTED closed") {
			if !slices.ContainsFunc(table(), func(r row) bool { return r.call == call && begins(r.name, state) }) {
				t.Errorf("%s has no row in state %s", call, state)
			}
		}
	}
}

// begins reports whether a row's name begins with the state.
func begins(name, state string) bool {
	rest, ok := strings.CutPrefix(name, state)
	return ok && strings.ContainsAny(rest[:1], "/=,")
}

func TestPrintCounts(t *testing.T) {
	tally := Tally{Mode: "d", Pair: Across, Calls: map[string]count{}}
	open, connect := openRows[0], row{call: "connect", name: "any=ENODEV", instead: "nothing"}
	tally.add(open, true)
	tally.add(open, false)
	tally.add(connect, true)
	var b bytes.Buffer
	if Print(&b, []Tally{tally}) {
		t.Error("a row that is broken went unnoticed")
	}
	for _, want := range []string{"1 of 2 !", "1 of 3 hold, 1 are missing, 1 are broken"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("without %q: %s", want, b.String())
		}
	}
}

// TestAPairIsAsGoodAsItsRows checks which row decides about a pair.
func TestAPairIsAsGoodAsItsRows(t *testing.T) {
	var enodev []row
	for _, r := range table() {
		if r.call == "connect" && gives(r.name, "ENODEV") {
			enodev = append(enodev, r)
		}
	}
	if got := judge("connect", "ENODEV", nil); got != holds {
		t.Errorf("verdict %d without a row that fails", got)
	}
	if got := judge("connect", "ENODEV", map[string]bool{enodev[0].id(): true}); got != broken {
		t.Errorf("verdict %d, and a row fails", got)
	}
	if got := judge("send", "ENOTTY", nil); got != inapplicable {
		t.Errorf("verdict %d of a reason", got)
	}
	if got := judge("send", "EXDEV", nil); got != unjudged {
		t.Errorf("verdict %d of what the header does not have", got)
	}
}
