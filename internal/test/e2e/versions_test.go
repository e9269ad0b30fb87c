package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A build is a fabricd that speaks other versions of the protocols, as one of
// another release would.
type build struct{ control, link [2]int } // the first and the last that it speaks

var (
	nextBuild = build{control: [2]int{2, 5}, link: [2]int{2, 8}} // and this one's
	lateBuild = build{control: [2]int{5, 5}, link: [2]int{8, 8}}
	oddBuild  = build{control: [2]int{2, 3}, link: [2]int{8, 8}} // no link with this one
	pastBuild = build{control: [2]int{2, 2}, link: [2]int{2, 2}}
	rmaBuild  = build{control: [2]int{2, 2}, link: [2]int{2, 3}} // paths for messages alone
)

// make builds it. Its name begins as that of the fabricd of all labs, so that processes
// left running are found.
func (b build) make(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	overlay := map[string]string{}
	for file, v := range map[string]struct {
		own [2]string // the first and the last version of the source
		of  [2]int
	}{"membership/control/frames.go": {[2]string{"2", "4"}, b.control}, "internal/wire/frames.go": {[2]string{"2", "7"}, b.link}} {
		path, err := filepath.Abs(filepath.Join("../../..", file))
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		other := string(text)
		for i, name := range []string{"VersionMin uint16 = ", "VersionMax uint16 = "} {
			if strings.Count(other, name+v.own[i]) != 1 {
				t.Fatalf("%s: want %q once", file, name+v.own[i])
			}
			other = strings.Replace(other, name+v.own[i], fmt.Sprint(name, v.of[i]), 1)
		}
		overlay[path] = filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(overlay[path], []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	exe := fabricdExe + "-" + filepath.Base(filepath.Dir(dir)) + filepath.Base(dir)
	out, err := exec.Command("go", "build", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"), "-o", exe,
		"github.com/fabricd/fabricd/cmd/fabricd").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { os.Remove(exe) })
	return exe
}

// TestBuildsOfTwoVersions is F42 with two builds: a version that both speak is used, whichever
// is the host; one that only one build speaks is refused, with both versions, and costs
// other nodes nothing.
func TestBuildsOfTwoVersions(t *testing.T) {
	t.Parallel()
	next := nextBuild.make(t)
	t.Run("a later member", func(t *testing.T) { together(t, fabricdExe, next) })
	t.Run("a later host", func(t *testing.T) { together(t, next, fabricdExe) })
	t.Run("an earlier member", func(t *testing.T) {
		past := pastBuild.make(t)
		together(t, fabricdExe, past)
		noIDOnDemand(t, past)
		noPaths(t, past)
	})
	t.Run("a member that knows no RMA paths", func(t *testing.T) { rmaByTheLink(t, rmaBuild.make(t)) })
	t.Run("a member of nothing in common", func(t *testing.T) {
		l := newLab(t)
		nodes := l.cluster(1)
		late := l.member(nodes[0], "late")
		late.exe = lateBuild.make(t)
		late.launch()
		if code := late.exit(t, stepLimit); code == 0 {
			t.Error("it ended as if all were well")
		}
		if line := tail(late.log, 1); !strings.Contains(line, "version") || !strings.Contains(line, "4") || !strings.Contains(line, "5") {
			t.Errorf("it said %q, want both versions", line)
		}
		l.agree(nodes...)
	})
	t.Run("a member that no link reaches", func(t *testing.T) {
		l := newLab(t)
		nodes := l.cluster(1)
		odd := l.member(nodes[0], "odd")
		odd.exe = oddBuild.make(t)
		odd.start()
		all := append(nodes, odd)
		l.agree(all...)
		for _, ends := range [][2]*node{{odd, nodes[1]}, {nodes[1], odd}, {odd, nodes[0]}, {nodes[0], odd}} {
			began := time.Now()
			out, err := l.fabricd("ping", fmt.Sprint(ends[1].place.ID), "--admin", ends[0].adminSocket(), "--count", "1")
			if err == nil || !strings.Contains(err.Error(), "version") {
				t.Errorf("%s pings %s: %s, %v; want that the versions differ", ends[0].name, ends[1].name, out, err)
			}
			if took := time.Since(began); took > stepLimit {
				t.Errorf("that took %v", took)
			}
		}
		l.agree(all...)
		if _, err := l.fabricd("ping", "0", "--admin", nodes[1].adminSocket(), "--count", "1"); err != nil {
			t.Error(err)
		}
	})
}

// noIDOnDemand: a node that takes one ID only waits for a host that can grant it.
func noIDOnDemand(t *testing.T, hostExe string) {
	l := newLab(t)
	l.hostExe = hostExe
	host := l.cluster(0)[0]
	fixed := l.member(host, "fixed", "--node-id", "12")
	fixed.launch()
	fixed.logs("is of a release that grants no ID on demand")
	if incarnations, err := host.incarnations(); err != nil || strings.Contains(incarnations, "fixed") {
		t.Errorf("the host lists %s, %v", incarnations, err)
	}
}

// together makes a cluster of a host of one build and members of both.
func together(t *testing.T, hostExe, exe string) {
	l := newLab(t)
	l.hostExe = hostExe
	all := l.cluster(1)
	other := l.member(all[0], "other")
	other.exe = exe
	other.start()
	all = append(all, other)
	l.agree(all...)
	for _, a := range all {
		for _, b := range all {
			if a == b {
				continue
			}
			if out, err := l.fabricd("ping", fmt.Sprint(b.place.ID), "--admin", a.adminSocket(), "--count", "2"); err != nil {
				t.Errorf("%s pings %s: %s, %v", a.name, b.name, out, err)
			}
		}
	}
}
