package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// write puts text into a file of the test and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultsAreAllowedByTheirOwnSettings(t *testing.T) {
	c := Default()
	for _, s := range Settings() {
		again := Default()
		text := s.Value(c)
		if !s.set(&again, text) && text != "" {
			t.Errorf("%s: the default %q is not one of %s", s.Key, text, s.Allowed)
		}
		if got := s.Value(again); got != text {
			t.Errorf("%s: setting %q gives %q", s.Key, text, got)
		}
		if s.Usage == "" || s.Allowed == "" {
			t.Errorf("%s: usage %q, allowed %q: both are shown to users", s.Key, s.Usage, s.Allowed)
		}
	}
}

func TestFlagsOverrideEnvironmentOverridesFile(t *testing.T) {
	file := write(t, "fabricd.yaml", "name: from-file\ndata-port: 1000\ngossip-port: 1001\nlog-level: warn\n")
	environ := []string{"FABRIC_NAME=stale", "FABRIC_NAME=from-env", "FABRIC_DATA_PORT=2000", "OTHER=1"}
	c, err := Load(file, environ, map[string]string{"name": "from-flag"})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(c.Name, " ", c.Network.DataPort, " ", c.Network.GossipPort, " ", c.Log.Level, " ", c.Detection)
	if want := "from-flag 2000 1001 warn normal"; got != want {
		t.Errorf("got %q, want %q: flag over environment over file over default", got, want)
	}
}

func TestFileHoldsEverySetting(t *testing.T) {
	file := write(t, "all.yaml", `
# a comment
role: host
name: rack-1
join: [10.0.0.1:7701, "db.example:7701"]
token-file: /run/secrets/token
state-dir: /data
bind: "::"
advertise: 10.0.0.7
data-port: 9000
gossip-port: 9001
socket: /run/f/app.sock
socket-group: fabric
socket-mode: 0666
admin: /run/f/admin.sock
admin-uids:
  - 0
  - 1000
admin-gids:
ca: ca.pem
cert: cert.pem
key: key.pem
detection: fast
providers: [tcp, quic]
tcp-plaintext: true
connect-timeout: 250ms
certificate-validity: 90d
max-nodes: 200
allowed-networks: [10.0.0.0/8, "fd00::/8"]
audit-log: stderr
enable-faults: true
conn-memory: 3GiB
app-endpoints: 100
app-windows: 64
app-window-memory: 16MiB
access:
  - 2050-2059 from web-1 label:db host bind 1000 group:27
  - 2060  bind  none
default-access: closed
ring-slots: 1024
ring-data: 1MiB
ring-release: 50
ring-huge-pages: try
lost-pair: evict
log-level: debug
log-format: json
`)
	c, err := Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"role": "host", "name": "rack-1", "join": "10.0.0.1:7701,db.example:7701", "token-file": "/run/secrets/token",
		"state-dir": "/data", "bind": "::", "advertise": "10.0.0.7", "data-port": "9000", "gossip-port": "9001",
		"socket": "/run/f/app.sock", "socket-group": "fabric", "socket-mode": "0666", "admin": "/run/f/admin.sock",
		"admin-uids": "0,1000", "admin-gids": "", "ca": "ca.pem", "cert": "cert.pem", "key": "key.pem",
		"detection": "fast", "lost-pair": "evict", "providers": "tcp,quic", "tcp-plaintext": "true", "connect-timeout": "250ms", "certificate-validity": "90d", "max-nodes": "200", "allowed-networks": "10.0.0.0/8,fd00::/8", "audit-log": "stderr", "enable-faults": "true", "log-level": "debug", "log-format": "json",
		"conn-memory": "3GiB", "app-endpoints": "100", "app-windows": "64", "app-window-memory": "16MiB",
		"access": "2050-2059 from web-1 label:db host bind 1000 group:27,2060 bind none", "default-access": "closed",
		"ring-slots": "1024", "ring-data": "1MiB", "ring-release": "50", "ring-huge-pages": "try",
	} {
		i := -1
		for j, s := range settings {
			if s.Key == key {
				i = j
			}
		}
		if i < 0 {
			t.Fatalf("no setting %s", key)
		}
		if got := settings[i].Value(c); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if c.ConnectTimeout != 250*time.Millisecond {
		t.Errorf("connect-timeout is %v, want 250ms", c.ConnectTimeout)
	}
}

func TestEmptyFilesSetNothing(t *testing.T) {
	for _, text := range []string{"", "\n", "# only a comment\n", "---\n"} {
		if _, err := Load(write(t, "empty.yaml", text), nil, nil); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestEveryMistakeGetsOneLine sets one wrong thing at a time and expects one
// line that names the setting, the value, where it was set and what is allowed.
func TestEveryMistakeGetsOneLine(t *testing.T) {
	long := strings.Repeat("x", 108)
	tests := []struct {
		key, value, allowed string
	}{
		{"role", "master", "host or node"},
		{"role", "", "host or node"},
		{"name", "", "1 to 63"},
		{"name", "two words", "1 to 63"},
		{"name", "6", "not digits alone"},
		{"name", long, "1 to 63"},
		{"join", "10.0.0.1", "host:port"},
		{"join", "10.0.0.1:0", "host:port"},
		{"join", "10.0.0.1:99999", "host:port"},
		{"join", ":7701", "host:port"},
		{"join", "a:1,a:1", "host:port"},
		{"join", "a:1,,b:2", "host:port"},
		{"join", "a b:1", "host:port"},
		{"state-dir", "", "directory"},
		{"bind", "localhost", "IP address"},
		{"bind", "10.0.0.300", "IP address"},
		{"advertise", "0.0.0.0", "IP address or a host name"},
		{"advertise", "http://x", "IP address or a host name"},
		{"data-port", "70000", "0 to 65535"},
		{"data-port", "-1", "0 to 65535"},
		{"data-port", "http", "0 to 65535"},
		{"http", "0.0.0.0:7780", "without a token"},
		{"data-port", "7701", "another one"}, // the gossip port's default
		{"gossip-port", "65536", "0 to 65535"},
		{"socket", "", "107 bytes"},
		{"socket", long, "107 bytes"},
		{"admin", long, "107 bytes"},
		{"admin", "/run/fabricd/fabric.sock", "another one"},
		{"socket-mode", "0999", "octal"},
		{"socket-mode", "0060", "octal"}, // fabricd itself could not open it
		{"socket-mode", "01777", "octal"},
		{"admin-uids", "root", "numbers"},
		{"admin-uids", "-1", "numbers"},
		{"admin-gids", "4294967296", "numbers"},
		{"ca", "ca.pem", "all of ca, cert and key"},
		{"access", "2050", `rule "2050": want "from" with callers`},
		{"access", "2050 from web-1,2050 bind 7", `rule "2050 bind 7" never decides`},
		{"access", "service:db by label:db", "is for the host"}, // these are of a node
		{"access", strings.Repeat("1 from all,", 256) + "1 from all", "257 rules, want at most 256"},
		{"default-access", "", "open or closed"},
		{"default-access", "half", "open or closed"},
		{"detection", "faster", "fast, normal or calm"},
		{"lost-pair", "forget", "reset or evict"},
		{"providers", "carrier-pigeon", "quic"},
		{"providers", "shm", "want at least one of quic and tcp"},
		{"providers", "shm,shm,tcp", "shm to insist"},
		{"providers", "quic,quic", "quic"},
		{"providers", "^carrier-pigeon", "^ and those to leave out"},
		{"providers", "^", "^ and those to leave out"},
		{"providers", "quic,^tcp", "^ and those to leave out"},
		{"providers", "^tcp,^quic", "^ and those to leave out"},
		{"providers", "^tcp,tcp", "^ and those to leave out"},
		{"providers", "^tcp,quic", "want at least one of quic and tcp"},
		{"providers", "auto,tcp", "auto: all"},
		{"providers", "^auto", "auto: all"},
		{"providers", "", "quic"},
		{"providers", "tcp,", "quic, tcp"},
		{"tcp-plaintext", "yes", "true or false"},
		{"connect-timeout", "10", "duration"},
		{"connect-timeout", "1ms", "duration"},
		{"connect-timeout", "-5s", "duration"},
		{"connect-timeout", "11m", "duration"},
		{"certificate-validity", "59s", "1m to 3650d"},
		{"certificate-validity", "3651d", "1m to 3650d"},
		{"certificate-validity", "99999999999d", "1m to 3650d"},
		{"certificate-validity", "-1d", "1m to 3650d"},
		{"certificate-validity", "d", "1m to 3650d"},
		{"certificate-validity", "1y", "1m to 3650d"},
		{"max-nodes", "0", "1 to 16384"},
		{"max-nodes", "16385", "1 to 16384"},
		{"max-nodes", "many", "1 to 16384"},
		{"allowed-networks", "10.0.0.1", "networks like"},
		{"allowed-networks", "10.1.2.3/8", "networks like"}, // 10.0.0.0/8 is more than it says
		{"allowed-networks", "10.0.0.0/8,", "networks like"},
		{"allowed-networks", "everywhere", "networks like"},
		{"ring-slots", "5", "a power of two from 4 to 65536"},
		{"ring-slots", "2", "a power of two from 4 to 65536"},
		{"ring-slots", "131072", "a power of two from 4 to 65536"},
		{"ring-slots", "-4", "a power of two from 4 to 65536"},
		{"ring-slots", "", "a power of two from 4 to 65536"},
		{"ring-slots", "99999999999999999999", "a power of two from 4 to 65536"},
		{"conn-memory", "1023KiB", "auto: half of the memory limit; or a size from 1MiB to 1TiB"},
		{"conn-memory", "2TiB", "auto: half of the memory limit; or a size from 1MiB to 1TiB"},
		{"conn-memory", "0", "auto: half of the memory limit; or a size from 1MiB to 1TiB"},
		{"app-endpoints", "0", "a number from 1 to 1048576"},
		{"app-windows", "1048577", "a number from 1 to 1048576"},
		{"app-window-memory", "4095", "a size from 4KiB to 1TiB"},
		{"ring-data", "300KiB", "a power of two from 4KiB to 64MiB"},
		{"ring-data", "2KiB", "a power of two from 4KiB to 64MiB"},
		{"ring-data", "128MiB", "a power of two from 4KiB to 64MiB"},
		{"ring-data", "4096MiB", "a power of two from 4KiB to 64MiB"},
		{"ring-data", "1 MiB", "a power of two from 4KiB to 64MiB"},
		{"ring-data", "1GiB", "a power of two from 4KiB to 64MiB"},
		{"ring-data", "0", "a power of two from 4KiB to 64MiB"},
		{"ring-release", "91", "0 to 90"},
		{"ring-release", "-1", "0 to 90"},
		{"ring-release", "0.5", "0 to 90"},
		{"ring-huge-pages", "yes", "off, try or require"},
		{"ring-huge-pages", "", "off, try or require"},
		{"log-level", "loud", "trace, debug, info, warn or error"},
		{"log-format", "xml", "console or json"},
	}
	for _, test := range tests {
		t.Run(test.key+"="+test.value, func(t *testing.T) {
			_, err := Load("", nil, map[string]string{test.key: test.value})
			lines := configError(t, err)
			for _, line := range lines {
				if !strings.Contains(line, test.allowed) {
					t.Errorf("%q does not say what is allowed: %q", line, test.allowed)
				}
			}
			if test.key == "ca" {
				return // reported as the two that are missing
			}
			if len(lines) != 1 || !strings.Contains(lines[0], test.key) && !strings.Contains(lines[0], "gossip-port") ||
				!strings.Contains(lines[0], fmt.Sprintf("%q", test.value)) {
				t.Errorf("got %q, want one line with %s and %q", lines, test.key, test.value)
			}
		})
	}
}

// configError returns the lines of a *ConfigError.
func configError(t *testing.T, err error) []string {
	t.Helper()
	if _, ok := errors.AsType[*ConfigError](err); !ok {
		t.Fatalf("got error %v, want a *ConfigError", err)
	}
	return strings.Split(err.Error(), "\n")
}

func TestMistakesInAFileAreNamedByLine(t *testing.T) {
	tests := []struct {
		name, text, want string
	}{
		{"unknown key", "name: a\nrolle: host\n", `rolle: "host" (FILE:2): unknown setting; did you mean role?`},
		{"underscore", "data_port: 1\n", `data_port: "1" (FILE:1): unknown setting; did you mean data-port?`},
		{"strange key", "colour: blue\n", "colour: \"blue\" (FILE:1): unknown setting; `fabricd run --help` lists them all"},
		{"bad value", "# first\n\nlog-level: loud\n", `log-level: "loud" (FILE:3): want trace, debug, info, warn or error`},
		{"a mapping as value", "name:\n  first: a\n", "name: \"  first: a\" (FILE:1): want a value or a list of values"},
		{"nested list", "join: [[a:1]]\n", "join: \"[[a:1]]\" (FILE:1): want a value or a list of values"},
		{"not a mapping", "- role\n- host\n", `config: "FILE": want a mapping of settings to values`},
		{"two documents", "name: a\n---\nname: b\n", `config: "FILE": want one YAML document, not several`},
		{"twice", "name: a\nname: b\n", `config: "FILE:2": not YAML: mapping key "name" already defined at [1:1]`},
		{"a tab", "name:\n\t- a\n", `config: "FILE:2": not YAML: found character ' ' that cannot start any token`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := write(t, "bad.yaml", test.text)
			_, err := Load(file, nil, nil)
			lines := configError(t, err)
			got := strings.ReplaceAll(strings.Join(lines, "\n"), file, "FILE")
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestEveryProblemIsReported(t *testing.T) {
	file := write(t, "bad.yaml", "rolle: host\nlog-level: loud\n")
	_, err := Load(file, []string{"FABRIC_DETECTION=faster"}, map[string]string{"data-port": "x"})
	lines := configError(t, err)
	if len(lines) != 4 {
		t.Errorf("got %d lines, want all 4 problems at once:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	if !strings.Contains(err.Error(), "(FABRIC_DETECTION)") || !strings.Contains(err.Error(), "(flag)") {
		t.Errorf("the sources are missing:\n%v", err)
	}
}

func TestUnreadableFiles(t *testing.T) {
	big := write(t, "big.yaml", "# "+strings.Repeat("x", maxConfigFile))
	for name, want := range map[string]string{
		"/nonexistent/fabricd.yaml": "no such file",
		t.TempDir():                 "is a directory",
		big:                         "larger than",
	} {
		_, err := Load(name, nil, nil)
		if lines := configError(t, err); len(lines) != 1 || !strings.Contains(lines[0], want) {
			t.Errorf("%s: got %q, want one line with %q", name, lines, want)
		}
	}
}

func TestUnknownEnvironmentIsFound(t *testing.T) {
	got := UnknownEnv([]string{"FABRIC_ROLE=host", "FABRIC_ROL=host", "FABRIC_CONFIG=x", "HOME=/", "FABRICD_DATA_PORT=1", "FABRICD_PANIC=crash", "FABRIC_SOMETHING=1"})
	want := []string{
		"FABRIC_ROL is set, and no setting has this name; did you mean FABRIC_ROLE?",
		"FABRICD_DATA_PORT is set, and no setting has this name; did you mean FABRIC_DATA_PORT?",
		"FABRIC_SOMETHING is set, and no setting has this name",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzConfigFile(f *testing.F) {
	f.Add([]byte("role: host\njoin: [a:1, b:2]\n"))
	f.Add([]byte("rolle: host\n"))
	f.Add([]byte("name:\n  first: a\n"))
	f.Add([]byte("a: &x [*x]\n"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Add([]byte("name: !!binary abc\n<<: {role: host}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		values, problems := parseFile("f", text)
		for key := range values {
			if nearest(key) == "" {
				t.Errorf("%q is not a setting", key)
			}
		}
		for _, p := range problems {
			if line := p.String(); strings.ContainsAny(line, "\n\r") {
				t.Errorf("a problem of several lines: %q", line)
			}
		}
	})
}
