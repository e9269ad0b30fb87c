package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/wait"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// asCommand makes the test binary behave as fabricd, for tests that need
// processes: the test that starts it sets this variable.
const asCommand = "FABRICD_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// run executes a command line and returns its output and exit code.
func run(t *testing.T, environ []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), args, environ, &out, &errs)
	return out.String(), errs.String(), code
}

// commands calls fn for every command that users see, by its full name.
func commands(c *cobra.Command, fn func(path []string, c *cobra.Command)) {
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			fn(strings.Fields(sub.CommandPath())[1:], sub)
			commands(sub, fn)
		}
	}
}

// TestHelpIsAsReviewed compares every command's help with testdata, so that a
// change of the commands is seen as one.
func TestHelpIsAsReviewed(t *testing.T) {
	root := (&app{}).root()
	paths := [][]string{nil}
	commands(root, func(path []string, _ *cobra.Command) { paths = append(paths, path) })
	for _, path := range paths {
		name := strings.Join(append([]string{"fabricd"}, path...), "-")
		t.Run(name, func(t *testing.T) {
			got, stderr, code := run(t, nil, append(path, "--help")...)
			if code != exitOK || stderr != "" {
				t.Fatalf("exit code %d, stderr %q", code, stderr)
			}
			got = strings.ReplaceAll(got, hostName(), "HOSTNAME")
			file := filepath.Join("testdata", "help", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("help changed (go test ./cmd/fabricd -update writes it anew):\n%s", got)
			}
		})
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	commands((&app{}).root(), func(path []string, c *cobra.Command) {
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s: want a short description and an example", strings.Join(path, " "))
		}
		if !strings.Contains(c.Example, "fabricd "+strings.Join(path, " ")) {
			t.Errorf("%s: the example does not use it: %q", strings.Join(path, " "), c.Example)
		}
	})
}

// TestTheCommandsAreThoseFixed keeps the list of the design.
func TestTheCommandsAreThoseFixed(t *testing.T) {
	want := "backup chaos ca completion conns debug demo doctor events faults health init keys links log-level nodes ping ports restore run status token top up version why windows"
	out, _, _ := run(t, nil, "--help")
	for _, name := range strings.Fields(want) {
		if !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("`fabricd --help` does not list %s", name)
		}
	}
	if strings.Contains(out, "demo-app") {
		t.Errorf("`fabricd --help` lists demo-app, which is not for users")
	}
	commands((&app{}).root(), func(path []string, c *cobra.Command) {
		reading := "top debug status nodes ports conns windows links ping why doctor events health version demo up"
		if len(path) == 1 && strings.Contains(" "+reading+" ", " "+path[0]+" ") && c.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", path[0])
		}
	})
}

func TestWrongCommandLines(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("name: x\nrolle: host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty.token")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noise := filepath.Join(dir, "noise.token")
	if err := os.WriteFile(noise, []byte("fab1-nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	node := []string{"run", "--state-dir", filepath.Join(dir, "state"), "--bind", "127.0.0.1", "--data-port", "0", "--gossip-port", "0",
		"--socket", filepath.Join(dir, "s"), "--admin", filepath.Join(dir, "a"), "--join", "127.0.0.1:9"}
	with := func(more ...string) []string { return append(append([]string{}, node...), more...) }
	tests := []struct {
		name string
		args []string
		env  []string
		want string // in the first line of standard error
	}{
		{"unknown command", []string{"runn"}, nil, `unknown command "runn"; did you mean run?`},
		{"unknown below a command", []string{"token", "creat", "--ttl", "1s"}, nil, `fabricd token has no command "creat"; did you mean create?`},
		{"help for an unknown one", []string{"help", "nope"}, nil, `unknown command "nope"`},
		{"a flag without its value", []string{"status", "--admin"}, nil, "--admin: want a value behind it"},
		{"a flag that is no number", []string{"ping", "1", "-c", "x"}, nil, `--count: "x": want a whole number`},
		{"help for an unknown one below", []string{"help", "nodes", "frob"}, nil, `fabricd nodes has no command "frob"`},
		{"an empty directory's name", []string{"init", "--state-dir", ""}, nil, `state-dir: "": want a directory`},
		{"a user that is no number", []string{"why", "web-1", "2050", "--uid", "x"}, nil, `--uid: "x": want a number from 0`},
		{"a plan that is no number", []string{"doctor", "--plan", "x"}, nil, `--plan: "x": want a whole number`},
		{"a seed below 0", []string{"chaos", "run", "f", "--seed", "-1"}, nil, `--seed: "-1": want a whole number from 0`},
		{"no scenario", []string{"chaos", "validate"}, nil, "want files or directories of scenarios, got 0 arguments"},
		{"a flag that is no duration", []string{"ping", "1", "--timeout", "5"}, nil, `--timeout: "5": want a duration`},
		{"an unknown letter", []string{"status", "-x"}, nil, "unknown flag -x"},
		{"unknown flag", []string{"run", "--rolle", "host"}, nil, "unknown flag --rolle; did you mean --role?"},
		{"an argument too many", []string{"status", "x"}, nil, `fabricd status takes no arguments, got "x"`},
		{"a mistyped command of nodes", []string{"nodes", "bna", "web-1"}, nil, `fabricd nodes has no command "bna"; did you mean ban?`},
		{"nobody to ban", []string{"nodes", "ban"}, nil, "want the name, ID or UUID of one node, got 0 arguments"},
		{"a ban in no time", []string{"nodes", "ban", "web-1", "--timeout", "0"}, nil, "want a duration from 1s to 10m"},
		{"no token to revoke", []string{"token", "revoke"}, nil, "want the ID of a token, got 0 arguments"},
		{"a token for nobody", []string{"token", "create", "--uses", "0"}, nil, `--uses: "0": want a number of nodes from 1, or unlimited`},
		{"a label of two words", []string{"token", "create", "--label", "a b"}, nil, `label "a b": want 1 to 64 letters`},
		{"init's token of a wrong age", []string{"init", "--token-ttl", "0"}, nil, `--token-ttl: "0": want a duration from 1s to 365d, or never`},
		{"an argument too few", []string{"ping"}, nil, "want the name or ID of one node, got 0 arguments"},
		{"no node", []string{"ping", "x:1"}, nil, `node: "x:1": want a node's name or ID`},
		{"no count", []string{"ping", "1", "--count", "0"}, nil, "count: 0: want 1 to 10000"},
		{"bad flag", with("--data-port", "70000"), nil, `data-port: "70000" (flag): want a number from 0 to 65535`},
		{"bad variable", node, []string{"FABRIC_LOG_LEVEL=loud"}, `log-level: "loud" (FABRIC_LOG_LEVEL): want trace`},
		{"unknown key", with("--config", bad), nil, `rolle: "host" (` + bad + `:2): unknown setting; did you mean role?`},
		{"unknown key by variable", node, []string{"FABRIC_CONFIG=" + bad}, "unknown setting"},
		{"no file", with("--config", filepath.Join(dir, "no.yaml")), nil, "no such file"},
		{"no token", node, nil, `token-file: "": a node that has not joined yet needs`},
		{"a missing token", with("--token-file", filepath.Join(dir, "no")), nil, "cannot be read: no such file"},
		{"a directory as token", with("--token-file", dir), nil, "cannot be read: is a directory"},
		{"an empty token", with("--token-file", empty), nil, "is empty; want a join token"},
		{"a malformed token", with("--token-file", noise), nil, "token-file: "},
		{"no cluster", with("--role", "host", "--state-dir", filepath.Join(dir, "none")), nil, "holds no cluster; make one with `fabricd init`"},
		{"a missing certificate", with("--ca", filepath.Join(dir, "ca"), "--cert", filepath.Join(dir, "c"), "--key", filepath.Join(dir, "k")), nil, "ca, cert, key: "},
		{"a cluster of nothing", []string{"up", "--nodes", "0"}, nil, "nodes: 0: want 1 to 16"},
		{"a cluster too large", []string{"up", "-n", "17"}, nil, "nodes: 17: want 1 to 16"},
		{"a plan for nothing", []string{"doctor", "--plan", "0"}, nil, "plan: 0: want 1 to 65536"},
		{"a diagnosis with a wrong setting", []string{"doctor", "--data-port", "70000"}, nil, `data-port: "70000" (flag): want a number`},
		{"init over a file", []string{"init", "--state-dir", filepath.Join(dir, "new"), "--token-file", empty}, nil, "exists already; want a new file"},
		{"a sender that takes files", []string{"cp", "x", "inbox:", "--into", "y"}, nil, "into: is for --listen alone"},
		{"a negative size", []string{"cp", "--listen", "inbox", "--into", dir, "--max-size", "-1"}, nil, "max-size: -1: want a number of bytes, or 0"},
		{"a log level for no time", []string{"log-level", "debug", "--for", "0s"}, nil, "for: 0s: want 1s to 24h"},
		{"an interval of nothing", []string{"nodes", "--interval", "5s"}, nil, "interval: is for --watch alone"},
		{"a rotation in no time", []string{"keys", "rotate", "--timeout", "0"}, nil, "want a duration from 1s to 10m"},
		{"token of a negative age", []string{"token", "create", "--ttl", "-1s"}, nil, "want a duration from 1s to 365d, or never"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, code := run(t, test.env, test.args...)
			first, _, _ := strings.Cut(stderr, "\n")
			if code != exitUsage || stdout != "" {
				t.Errorf("exit code %d, want %d; printed %q", code, exitUsage, stdout)
			}
			if !strings.HasPrefix(first, "fabricd: ") || !strings.Contains(first, test.want) {
				t.Errorf("said %q, want one line with %q", stderr, test.want)
			}
		})
	}
}

func TestInitMakesAClusterOnce(t *testing.T) {
	dir := t.TempDir()
	stateDir, token := filepath.Join(dir, "host"), filepath.Join(dir, "token")
	if _, stderr, code := run(t, nil, "init", "--state-dir", stateDir, "--token-file", filepath.Join(dir, "no", "token")); code == exitOK || !strings.Contains(stderr, "cannot be made") {
		t.Errorf("init without a place for the token: exit code %d, %q", code, stderr)
	}
	if _, err := os.Stat(stateDir); err == nil {
		t.Errorf("init without a place for the token leaves %s", stateDir)
	}
	stdout, stderr, code := run(t, nil, "init", "--state-dir", stateDir, "--name", "rack-1", "--token-file", token)
	if code != exitOK || stdout != "" || stderr != "" {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}
	text, err := os.ReadFile(token)
	if err != nil || !strings.HasPrefix(string(text), "fab1-") {
		t.Errorf("token file: %.5q…, %v", text, err)
	}
	if info, err := os.Stat(token); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file: %v, %v, want mode 0600", info, err)
	}
	before := tree(t, stateDir)
	_, stderr, code = run(t, nil, "init", "--state-dir", stateDir)
	if code != exitUsage || !strings.Contains(stderr, "holds a node already and was left as it is") {
		t.Errorf("a second init: exit code %d, %q", code, stderr)
	}
	if after := tree(t, stateDir); after != before {
		t.Errorf("a second init changed the directory:\n%s\n%s", before, after)
	}
	stdout, _, code = run(t, []string{"FABRIC_STATE_DIR=" + filepath.Join(dir, "other")}, "init")
	if code != exitOK || !strings.HasPrefix(stdout, "fab1-") {
		t.Errorf("init to standard output: exit code %d, %.5q…", code, stdout)
	}
}

// TestDamagedStateIsNeverUsed damages one file of a host's state at a time.
// TestFewDescriptorsAreAWarning: the log names the limit before a node serves nobody.
func TestFewDescriptorsAreAWarning(t *testing.T) {
	cmd, _ := self(t, "run", "--role", "host", "--state-dir", filepath.Join(t.TempDir(), "none"))
	cmd.Args = append([]string{"sh", "-c", `ulimit -n 64; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	out, err := cmd.CombinedOutput()
	if want := "this process may have 64 descriptors"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, and no %q in\n%s", err, want, out)
	}
}

func TestDamagedStateIsNeverUsed(t *testing.T) {
	dir := t.TempDir()
	stateDir := filepath.Join(dir, "host")
	if _, stderr, code := run(t, nil, "init", "--state-dir", stateDir, "--token-file", filepath.Join(dir, "token")); code != exitOK {
		t.Fatal(stderr)
	}
	for _, name := range []string{"identity", "authority", "credentials", "keyring", "tokens", "leases.seal"} {
		file := filepath.Join(stateDir, name)
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := run(t, nil, "run", "--role", "host", "--state-dir", stateDir, "--bind", "127.0.0.1",
			"--data-port", "0", "--gossip-port", "0", "--socket", filepath.Join(dir, "s"), "--admin", filepath.Join(dir, "a"))
		if code != exitUsage || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, file+": damaged") {
			t.Errorf("%s damaged: exit code %d, %q, want one line that names it", name, code, stderr)
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestARunLeavesWhenItIsAsked runs a host whose lease table is lost, until it is
// healthy, and ends it as SIGTERM does.
func TestARunLeavesWhenItIsAsked(t *testing.T) {
	_, dir := self(t)
	stateDir, admin := filepath.Join(dir, "host"), filepath.Join(dir, "a")
	if _, stderr, code := run(t, nil, "init", "--state-dir", stateDir, "--token-file", filepath.Join(dir, "token")); code != exitOK {
		t.Fatal(stderr)
	}
	if err := os.Remove(filepath.Join(stateDir, "leases.db")); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--role", "host", "--state-dir", stateDir, "--bind", "127.0.0.1",
		"--data-port", "0", "--gossip-port", "0", "--socket", filepath.Join(dir, "s"), "--admin", admin}
	if _, stderr, code := run(t, nil, args...); code != exitUsage || !strings.Contains(stderr, "--rebuild-leases") {
		t.Errorf("without a lease table: exit code %d, %q, want the way out", code, stderr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, append(args, "--rebuild-leases"), []string{"FABRIC_TYPO=1"}, &out, &errs)
	}()
	err := until(t.Context(), func() error {
		if _, stderr, code := run(t, nil, "health", "--admin", admin); code != exitOK {
			return errors.New(stderr)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"status"}, {"nodes"}, {"ports"}, {"conns"}, {"windows"}, {"links"}, {"health"}, {"ping", "0", "--count", "1"},
		{"keys", "show"}, {"keys", "rotate"}, {"ca", "show"}, {"token", "list"}, {"nodes", "list"}, {"nodes", "enrolled"}} {
		if out, stderr, code := run(t, []string{"FABRIC_ADMIN=" + admin}, args...); code != exitOK || out == "" {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out, stderr)
		}
		out, _, code := run(t, nil, append(args, "--json", "--admin", admin)...)
		if code != exitOK || !json.Valid([]byte(out)) {
			t.Errorf("%v --json: exit code %d, %q", args, code, out)
		}
	}
	for _, line := range []string{"add --cut", "add --partition 0/1 --for 1s", "add --node crash", "list", "clear", "clear --node-id 1"} {
		out, stderr, code := run(t, nil, append(strings.Fields("faults "+line), "--admin", admin)...)
		want := "fabricd: faults are off at this node: start it with --enable-faults to test with them\n"
		if code != exitFail || out != "" || stderr != want {
			t.Errorf("faults %s at a node without them: exit code %d, %q, %q; want %d and %q", line, code, out, stderr, exitFail, want)
		}
	}
	token := filepath.Join(dir, "more.token")
	if _, stderr, code := run(t, nil, "token", "create", "--admin", admin, "--ttl", "1m", "--uses", "1", "--token-file", token); code != exitOK {
		t.Errorf("token create: exit code %d, %q", code, stderr)
	}
	if text, err := os.ReadFile(token); err != nil || !strings.HasPrefix(string(text), "fab1-") {
		t.Errorf("token file: %v", err)
	}
	before, _, _ := run(t, nil, "token", "list", "--admin", admin, "--json")
	for _, file := range []string{token, filepath.Join(dir, "no", "token")} {
		if _, stderr, code := run(t, nil, "token", "create", "--admin", admin, "--token-file", file); code == exitOK || !strings.Contains(stderr, "token-file: ") {
			t.Errorf("token create over %s: exit code %d, %q", file, code, stderr)
		}
	}
	if after, _, _ := run(t, nil, "token", "list", "--admin", admin, "--json"); after != before {
		t.Errorf("tokens that nobody has were made:\n%s\nthere were\n%s", after, before)
	}
	cancel()
	if code := <-ended; code != exitOK || out.Len() != 0 {
		t.Errorf("exit code %d after being asked to end, printed %q, logged\n%s", code, out.String(), errs.String())
	}
	if !strings.Contains(errs.String(), "FABRIC_TYPO") {
		t.Errorf("an unknown variable is not mentioned:\n%s", errs.String())
	}
}

// tree returns the files below dir and their content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		out.WriteString(path + " " + string(text) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestCommandsWithoutAFabricd(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "admin.sock")
	for _, args := range [][]string{{"status"}, {"nodes"}, {"ports"}, {"conns"}, {"windows"}, {"links"}, {"health"}, {"events"},
		{"ping", "0", "--count", "1"}, {"token", "create"}, {"token", "list"}, {"token", "revoke", "2f9c01d5a7b3e486"},
		{"keys", "show"}, {"keys", "rotate"}, {"ca", "show"}, {"ca", "rotate"},
		{"nodes", "list"}, {"nodes", "enrolled"}, {"nodes", "remove", "x"}, {"nodes", "ban", "x"}, {"nodes", "allow", "x"}} {
		_, stderr, code := run(t, []string{"FABRIC_ADMIN=" + missing}, args...)
		if code != exitFail || !strings.Contains(stderr, "no fabricd answers at "+missing) {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}

// TestExplainNamesTheSourceOfEachSetting: each setting with its value and its source, nothing is
// run, and a wrong one is refused as run does.
func TestExplainNamesTheSourceOfEachSetting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte("name: rack-1\ndata-port: 9000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"FABRIC_CONFIG=" + file, "FABRIC_DETECTION=fast"}
	out, stderr, code := run(t, environ, "run", "--explain=json", "--data-port", "9100", "--enable-faults")
	var list []struct{ Key, Variable, Value, Source, Default, Allowed, Usage string }
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
	}
	got := map[string]string{}
	for _, e := range list {
		got[e.Key] = e.Value + " " + e.Source
		if e.Allowed == "" || e.Usage == "" || !strings.HasPrefix(e.Variable, "FABRIC_") {
			t.Errorf("%+v leaves something out", e)
		}
	}
	for key, want := range map[string]string{"name": "rack-1 " + file + ":1", "data-port": "9100 flag", "detection": "fast FABRIC_DETECTION",
		"enable-faults": "true flag", "gossip-port": "7701 default"} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
	out, _, code = run(t, environ, "run", "--explain")
	if code != exitOK || strings.Count(out, "\n") != len(list)+1 || !strings.Contains(out, "detection") {
		t.Errorf("exit code %d, table:\n%s", code, out)
	}
	for _, wrong := range [][]string{{"run", "--explain=xml"}, {"run", "--explain", "--data-port", "x"}} {
		if out, stderr, code := run(t, environ, wrong...); code != exitUsage || out != "" || !strings.Contains(stderr, "want ") {
			t.Errorf("%v: exit code %d, %q, %q", wrong, code, out, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	out, _, code := run(t, nil, "version", "--json")
	var v struct{ Version, Go, Platform string }
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != exitOK || v.Version == "" || v.Go == "" || v.Platform == "" {
		t.Errorf("exit code %d, %q, %v", code, out, err)
	}
	if out, _, _ := run(t, nil, "version"); !strings.HasPrefix(out, "fabricd ") {
		t.Errorf("got %q", out)
	}
}

func TestCompletionIsThere(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out, _, code := run(t, nil, "completion", shell); code != exitOK || !strings.Contains(out, "fabricd") {
			t.Errorf("%s: exit code %d, %d bytes", shell, code, len(out))
		}
	}
}

// TestCompletionOfBashNeedsNoPackage: the script completes in a bash that has loaded nothing.
func TestCompletionOfBashNeedsNoPackage(t *testing.T) {
	script, _, _ := run(t, nil, "completion", "bash")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/state", 0o700), os.WriteFile(dir+"/statement", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		exe + " tok": "token\n", exe + " token ": "create\nlist\nrevoke\n", exe + " run --role=h": "host\n", exe + " run --state-dir " + dir + "/sta": dir + "/state\n",
	} {
		cmd := exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile")
		cmd.Env = append(os.Environ(), asCommand+"=1")
		cmd.Stdin = strings.NewReader(script + fmt.Sprintf(`
compopt() { :; } # there is no line to complete
COMP_LINE=%q COMP_POINT=${#COMP_LINE} COMP_TYPE=9
__start_fabricd
printf '%%s\n' "${COMPREPLY[@]%%%% *}"
`, line))
		out, err := cmd.CombinedOutput()
		if got := string(out); err != nil || got != want {
			t.Errorf("%q: %v, %q; want %q", line, err, got, want)
		}
	}
}

func TestTables(t *testing.T) {
	var out bytes.Buffer
	text := `{"conns":[{"id":1,"local":"0:2050","tags":["a","b"],"peer":{"node":2,"ok":true},"none":null,"silent_ms":12345,"sent":1536},` +
		`{"id":12,"local":"0:1","tags":[],"peer":{},"none":null,"silent_ms":8,"sent":0}]}`
	if err := showRows(&out, "conns", json.RawMessage(text)); err != nil {
		t.Fatal(err)
	}
	want := "ID  LOCAL   TAGS  PEER           NONE  SILENT  SENT\n1   0:2050  a b   node=2 ok=yes  -     12s     1.5 KiB\n12  0:1     -     -              -     8ms     0 B\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := showRows(&out, "conns", json.RawMessage(`{"conns":[]}`)); err != nil || out.String() != "no connections\n" {
		t.Errorf("an empty table: %q, %v", out.String(), err)
	}
	for _, bad := range []string{"", "[]", `{"conns":[1]}`, `{"conns":[{"a":}]}`} {
		if err := showRows(&out, "conns", json.RawMessage(bad)); err == nil && bad != "" {
			t.Errorf("%q was shown", bad)
		}
	}
}

func TestInterruptEndsAWait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if wait.For(ctx.Done(), 1<<62) {
		t.Error("waited for ever")
	}
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "node"
	}
	return name
}
