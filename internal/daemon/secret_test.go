package daemon

import (
	"io/fs"
	"os"
	"strings"
	"testing"
)

func TestFilesWithSecretsAreForOneUser(t *testing.T) {
	for _, tt := range []struct {
		mode        fs.FileMode
		readOnly    bool
		note, wrong string
	}{
		{0o600, false, "", ""},
		{0o400, false, "", ""},
		{0o640, false, "", "other users may read it"},
		{0o604, false, "", "other users may read it"},
		{0o644, false, "", "other users may read it"},
		{0o620, false, "", "other users may change it"},
		{0o666, false, "", "other users may change it"},
		{0o440, true, "", ""}, // a Secret of Kubernetes with the pod's group
		{0o444, true, "all users of this container", ""},
		{0o600, true, "", ""},
	} {
		note, wrong := judgeSecret(tt.mode, tt.readOnly)
		if !strings.Contains(note, tt.note) || !strings.Contains(wrong, tt.wrong) || (note == "") != (tt.note == "") || (wrong == "") != (tt.wrong == "") {
			t.Errorf("mode %04o, read-only %v: note %q, wrong %q", tt.mode, tt.readOnly, note, wrong)
		}
	}
}

// A node does not start with a token, and a host not with an operator's key, that
// other users can read.
func TestReadableSecretsAreRefused(t *testing.T) {
	_, node := testHost(t)
	c := node("one")
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	c.TokenFile = write(t, "token", string(text))
	if err := os.Chmod(c.TokenFile, 0o644); err != nil {
		t.Fatal(err)
	}
	startFails(t, c, "`chmod 600 "+c.TokenFile+"`")

	key := write(t, "key", "x")
	if err := os.Chmod(key, 0o640); err != nil {
		t.Fatal(err)
	}
	h := testConfig(t, RoleHost, "host")
	h.TLS = TLSConfig{CA: "ca", Cert: "cert", Key: key}
	if lines := configError(t, func() error { _, err := Init(h, ""); return err }()); len(lines) != 1 || !strings.Contains(lines[0], "key: ") || !strings.Contains(lines[0], "chmod 600") {
		t.Errorf("init with a key that others can read: %q", lines)
	}
	startFails(t, h, "chmod 600")
	if note, err := checkSecret("token-file", "/nonexistent"); note != "" || err != nil {
		t.Errorf("no file: %q, %v; want the error of the reader", note, err)
	}
}
