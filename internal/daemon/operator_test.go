package daemon

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// operatorFiles has ca issue a certificate and writes an operator's files.
func operatorFiles(t *testing.T, ca *trust.CA, host bool, validity time.Duration) TLSConfig {
	t.Helper()
	node := state.NewUUID()
	id := trust.Identity{Cluster: ca.Cluster(), Node: node, Host: host}
	creds, err := trust.IssueCredentials(ca, id, time.Now(), validity)
	if err != nil {
		t.Fatal(err)
	}
	text, err := creds.Encode() // key, certificate, CA
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := TLSConfig{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for _, path := range []string{files.Key, files.Cert, files.CA} {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			t.Fatal("credentials have too few PEM blocks")
		}
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestAnOperatorsOwnCA makes a cluster whose certificates come from elsewhere.
func TestAnOperatorsOwnCA(t *testing.T) {
	cluster := state.NewUUID()
	ca, err := trust.NewCA(cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, RoleHost, "host")
	c.TLS = operatorFiles(t, ca, true, time.Hour)
	keys := filepath.Join(filepath.Dir(c.StateDir), "gossip.keys")
	if _, err := Init(c, keys); err != nil {
		t.Fatal(err)
	}
	host := startTest(t, c)
	if st := host.Status(); st.Cluster != cluster.String() || st.Trust != "operator" {
		t.Errorf("status %+v, want the certificate's cluster", st)
	}
	if _, err := host.CreateToken(0, 0); err == nil {
		t.Error("the host made a token that no node could use")
	}
	member := func(name string, files TLSConfig) Config {
		n := testConfig(t, RoleNode, name)
		n.TLS, n.TokenFile, n.Join = files, keys, []string{host.Status().Data[0]}
		return n
	}
	one := startTest(t, member("one", operatorFiles(t, ca, false, time.Hour)))
	sees(t, one, 0)
	sees(t, host, 1)
	talk(t, one, host)

	n := member("no keys", operatorFiles(t, ca, false, time.Hour))
	n.TokenFile = ""
	startFails(t, n, "needs the file of the gossip keys")
	n.TokenFile = n.TLS.CA
	startFails(t, n, "want the gossip keys")
	n.TokenFile, n.Join = keys, nil
	startFails(t, n, "needs the host's address")

	n = member("mixed files", operatorFiles(t, ca, false, time.Hour))
	n.TLS.Key = one.cfg.TLS.Key
	startFails(t, n, "ca, cert, key: ")
	n = member("another node's certificate", operatorFiles(t, ca, false, time.Hour))
	n.StateDir = one.cfg.StateDir
	one.Close()
	startFails(t, n, "is of node "+one.Status().Node)

	h := testConfig(t, RoleHost, "no host")
	h.TLS = operatorFiles(t, ca, false, time.Hour)
	_, err = Init(h, "")
	if lines := configError(t, err); !strings.Contains(lines[0], "is not a host's certificate") {
		t.Errorf("got %q", lines)
	}
}

func TestKeyringsInFiles(t *testing.T) {
	keys := trust.NewKeyring()
	got, err := readKeyring(write(t, "keys", keyringText(keys)+"\n"))
	if err != nil || string(got.Encode()) != string(keys.Encode()) {
		t.Errorf("the keys do not survive their text: %v", err)
	}
	for _, bad := range []string{"", "fab1-x", "fabk1-", "fabk1-0", keyringText(keys)[:20]} {
		if _, err := readKeyring(write(t, "keys", bad)); err == nil {
			t.Errorf("%q was read as keys", bad)
		} else if lines := configError(t, err); len(lines) != 1 || strings.Contains(lines[0], "AAAA") {
			t.Errorf("%q: %q", bad, lines)
		}
	}
}
