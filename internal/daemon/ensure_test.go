package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// ensureFails expects Ensure to fail with one line that holds want.
func ensureFails(t *testing.T, c Config, tokenFile, want string) {
	t.Helper()
	lines := configError(t, Ensure(c, tokenFile))
	if len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("got %q, want one line with %q", lines, want)
	}
}

// ensured returns the token that is in file after Ensure.
func ensured(t *testing.T, c Config, file string) string {
	t.Helper()
	if err := Ensure(c, file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEnsureMakesWhatIsMissing(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("\n\n"), 0o600); err != nil { // of an init that was killed
		t.Fatal(err)
	}
	ensure := func() string { return ensured(t, c, file) }
	first := ensure()
	if again := ensure(); again != first {
		t.Error("a second Ensure changed the token")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	second := ensure()
	if second == first {
		t.Error("the token that was lost is back: it was stored somewhere")
	}
	host := startTest(t, c)
	if ensure() != second {
		t.Error("Ensure changed the token of a host that runs")
	}
	n := testConfig(t, RoleNode, "one")
	n.Join, n.TokenFile = []string{host.Status().Data[0]}, file
	if one := startTest(t, n); one.Status().Cluster != host.Status().Cluster {
		t.Error("the token that Ensure made leads to another cluster")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	ensureFails(t, c, file, "`fabricd token create` makes one")
}

// A token that has ended makes room for a new one, in the same file; one that was
// revoked stays, and nobody joins with it.
func TestEnsureReplacesATokenThatHasEnded(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.JoinToken = TokenLimits{Uses: 1}
	file := filepath.Join(t.TempDir(), "token")
	ensure := func() string { return ensured(t, c, file) }
	first := ensure()
	host := startTest(t, c)
	n := testConfig(t, RoleNode, "one")
	n.Join, n.TokenFile = []string{host.Status().Data[0]}, file
	startTest(t, n)
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	second := ensure()
	if second == first {
		t.Fatal("a token that is used up was left")
	}
	token, err := trust.ParseToken(second)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file: %v, %v, want mode 0600", info, err)
	}
	host = startTest(t, c)
	if was, err := host.RevokeToken(token.ID.String()); !was || err != nil {
		t.Fatalf("revoke: %v, %v", was, err)
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	if ensure() != second {
		t.Error("a token that was revoked has a successor")
	}
}

func TestEnsureRefusesWhatDoesNotBelongTogether(t *testing.T) {
	c, other := testConfig(t, RoleHost, "host"), testConfig(t, RoleHost, "other")
	dir := t.TempDir()
	token, foreign := filepath.Join(dir, "token"), filepath.Join(dir, "foreign")
	for file, c := range map[string]Config{token: c, foreign: other} {
		if _, err := Init(c, file); err != nil {
			t.Fatal(err)
		}
	}
	ensureFails(t, c, foreign, "is of cluster ")
	ensureFails(t, testConfig(t, RoleHost, "lost"), token, "want neither of them, or both")
	ensureFails(t, c, write(t, "half", "fab"), "token-file")
	ensureFails(t, c, filepath.Join(token, "below a file"), "token-file")

	node := testConfig(t, RoleNode, "node")
	s, err := state.Prepare(node.StateDir, "node", state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	ensureFails(t, node, filepath.Join(dir, "none"), "made for the role node")
}

func TestEnsureWithAnOperatorsCA(t *testing.T) {
	cluster := state.NewUUID()
	ca, err := trust.NewCA(cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, RoleHost, "host")
	c.TLS = operatorFiles(t, ca, true, time.Hour)
	file := filepath.Join(t.TempDir(), "keys")
	var texts [2]string
	for i := range texts {
		if err := Ensure(c, file); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[0], keyringPrefix) {
		t.Errorf("the gossip keys are not the same in both files, or none")
	}
	ensureFails(t, c, write(t, "wrong", "fabt1-x"), "want the gossip keys")
}
