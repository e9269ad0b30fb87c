package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/test/hostile"
)

// TestSecretsAreInNoProcess looks for the secrets of a cluster in the visible state
// of a fabricd that runs with a token, in its answers, and in its output
// when it crashes: in every coding.
func TestSecretsAreInNoProcess(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	l.pair(nodes[0], nodes[1]).pace(t, 3)
	text, err := os.ReadFile(l.token)
	if err != nil {
		t.Fatal(err)
	}
	token := bytes.TrimSpace(text)
	raw, err := hostile.TokenSecret(string(token))
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string][]byte{"the token": token, "the token's secret": raw, "the token's end": token[len(token)-40:], "a PEM key": []byte("PRIVATE KEY")}
	for _, n := range nodes {
		key, err := os.ReadFile(filepath.Join(n.stateDir(), "keyring"))
		if err != nil {
			t.Fatal(err)
		}
		secrets["the keyring of "+n.name] = key[len(key)/2:]
	}
	for _, n := range nodes {
		shown := map[string][]byte{}
		for _, file := range []string{"cmdline", "environ"} {
			if shown[file], err = os.ReadFile(fmt.Sprintf("/proc/%d/%s", n.pid(), file)); err != nil {
				t.Fatal(err)
			}
		}
		for _, word := range []string{"status", "nodes", "health", "ports", "conns", "windows", "links"} {
			if shown["answer about "+word], err = n.admin.Get(within(t, stepLimit), word); err != nil {
				t.Fatal(err)
			}
		}
		n.signal(t, syscall.SIGQUIT)
		n.exit(t, stepLimit)
		shown["log"] = []byte(n.said())
		if !bytes.Contains(shown["cmdline"], []byte("--state-dir")) || !strings.Contains(n.said(), "goroutine ") {
			t.Errorf("%s shows %q, and its crash no goroutine: nothing was looked at", n.name, shown["cmdline"])
		}
		for where, text := range shown {
			for what, secret := range secrets {
				if how := hostile.Shows(text, secret); how != "" {
					t.Errorf("the %s of %s shows %s %s", where, n.name, what, how)
				}
			}
		}
	}
}
