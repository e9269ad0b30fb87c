package deploytest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const unitFile = "deploy/systemd/fabricd.service"

// directives returns the sections of a unit, as key to values.
func directives(t *testing.T, unit string) map[string]map[string][]string {
	t.Helper()
	all := map[string]map[string][]string{}
	section := ""
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSuffix(name, "]")
			all[section] = map[string][]string{}
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || all[section] == nil {
			t.Fatalf("unit: %q is no directive of a section", line)
		}
		all[section][key] = append(all[section][key], value)
	}
	return all
}

func TestUnitSaysWhatItMust(t *testing.T) {
	service := directives(t, readFile(t, unitFile))["Service"]
	for key, want := range map[string]string{
		"User": "fabricd", "Group": "fabricd", "ExecStart": "/usr/local/bin/fabricd run --config /etc/fabricd/fabricd.yaml",
		"Type": "notify", "TimeoutStartSec": "infinity", "KillSignal": "SIGTERM", "Restart": "on-failure", "RestartPreventExitStatus": "2",
		"RuntimeDirectory": "fabricd", "RuntimeDirectoryMode": "0750", "StateDirectory": "fabricd", "StateDirectoryMode": "0700",
		"NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes",
		"MemoryDenyWriteExecute": "yes", "SystemCallArchitectures": "native", "LimitCORE": "0",
	} {
		if got := service[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// Their reasons are in the unit: users are distinguished, and memory is looked at.
	for _, key := range []string{"PrivateUsers", "ProcSubset"} {
		if service[key] != nil {
			t.Errorf("%s is %q, want it not set", key, service[key])
		}
	}
	for _, dir := range []string{"/run/fabricd/fabric.sock", "/run/fabricd/admin.sock"} {
		if !strings.HasPrefix(dir, "/run/"+service["RuntimeDirectory"][0]+"/") {
			t.Errorf("%s is not in the unit's directory", dir)
		}
	}
}

// withoutSystemd reports that there is no systemd-analyze, and that this is
// known.
func withoutSystemd(t *testing.T) bool {
	t.Helper()
	if lacks("systemd") {
		t.Log("not tested: FABRICD_TEST_WITHOUT says that there is no systemd here")
		return true
	}
	if _, err := output(callLimit, nil, "systemd-analyze", "--version"); err != nil {
		t.Fatalf("this test needs systemd-analyze: %v; install systemd, or say FABRICD_TEST_WITHOUT=systemd", err)
	}
	return false
}

// maxExposure is what systemd may rate the unit, of 10.
const maxExposure = 2.0

// TestSystemdAcceptsTheUnit has systemd look at it, with this test's binary in
// fabricd's place, which is not installed.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	if withoutSystemd(t) {
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "fabricd.service")
	text := strings.Replace(readFile(t, unitFile), "/usr/local/bin/fabricd", exe, 1)
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Everything that it finds strange, unknown keys too, it says on standard
	// error, of other units as well.
	out, err := output(callLimit, nil, "sh", "-c", "systemd-analyze verify --man=no "+unit+" 2>&1")
	if err != nil || strings.Contains(out, unit) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err = output(callLimit, nil, "systemd-analyze", "security", "--offline=true", "--no-pager", unit)
	if err != nil {
		t.Fatal(err)
	}
	rated := regexp.MustCompile(`exposure level for fabricd.service: ([0-9.]+)`).FindStringSubmatch(out)
	if rated == nil {
		t.Fatalf("systemd-analyze security says no level:\n%s", lastLines(out, 3))
	}
	level, err := strconv.ParseFloat(rated[1], 64)
	if err != nil || level > maxExposure {
		t.Errorf("systemd rates the unit %s of 10, want %v at most", rated[1], maxExposure)
	}
	if page := readFile(t, "docs/systemd.md"); !strings.Contains(page, "rates that "+rated[1]+" of 10") {
		t.Errorf("README.md does not have that systemd rates the unit %s of 10", rated[1])
	}
}

// TestSystemdPage does the steps of the page, below a folder
// that stands for the machine's root, with a fabricd and as a user that are
// there.
func TestSystemdPage(t *testing.T) {
	t.Parallel()
	machine := t.TempDir()
	bin := filepath.Join(machine, "bin-fabricd")
	if lacks("docker") {
		must(t, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", bin, "./cmd/fabricd")
	} else {
		copyOut(t, built(t).fabricd, "fabricd", bin)
	}
	for _, dir := range []string{"usr/local/bin", "usr/lib/sysusers.d", "etc/systemd/system", "etc/sysctl.d", "etc", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(machine, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range []string{"docs/systemd.md", "docs/sysctl.md"} {
		for _, words := range commands(t, page, "install", "runuser", "systemd-sysusers", "systemctl", "usermod", "sysctl") {
			systemdStep(t, machine, bin, words)
		}
	}
	for name, mode := range map[string]fs.FileMode{
		"usr/local/bin/fabricd": 0o755, "etc/systemd/system/fabricd.service": 0o644, "etc/sysctl.d/60-fabricd.conf": 0o644,
		"etc/fabricd/fabricd.yaml": 0o644, "etc/fabricd/join.token": 0o600, "var/lib/fabricd/join.token": 0o600,
	} {
		if info, err := os.Stat(filepath.Join(machine, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %o", name, info, err, mode)
		}
	}
}

// systemdStep does one step of the page.
func systemdStep(t *testing.T, machine, bin string, words []string) {
	t.Helper()
	there := func(path string) string { return filepath.Join(machine, path) }
	switch words[0] {
	case "install":
		words = withoutOwner(words)
		for i, w := range words {
			switch {
			case w == "bin/fabricd":
				words[i] = bin
			case w == "join.token": // copied from the host
				words[i] = there("/var/lib/fabricd/join.token")
			case strings.HasPrefix(w, "/"):
				words[i] = there(w)
			}
		}
		must(t, nil, words...)
	case "runuser":
		i := slices.Index(words, "--")
		command := words[i+1:]
		command[0] = bin
		for j, w := range command[1:] {
			if strings.HasPrefix(w, "/") {
				command[j+1] = there(w)
			}
		}
		must(t, nil, command...)
	case "systemd-sysusers":
		if withoutSystemd(t) {
			return
		}
		must(t, nil, "systemd-sysusers", "--dry-run", there("/usr/lib/sysusers.d/"+words[1]))
	case "systemctl":
		if words[len(words)-1]+".service" != filepath.Base(unitFile) {
			t.Errorf("%q is for another unit", words)
		}
	case "usermod", "sysctl": // the machine's own
	}
}

// withoutOwner removes -o and -g: the user fabricd is not on this machine.
func withoutOwner(words []string) []string {
	var kept []string
	for i := 0; i < len(words); i++ {
		if words[i] == "-o" || words[i] == "-g" {
			i++
			continue
		}
		kept = append(kept, words[i])
	}
	return kept
}

func must(t *testing.T, environ []string, command ...string) {
	t.Helper()
	if _, err := output(callLimit, environ, command[0], command[1:]...); err != nil {
		t.Error(err)
	}
}
