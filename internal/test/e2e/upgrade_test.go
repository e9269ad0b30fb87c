package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// before is the commit of the release before this one: there the application's library,
// the links and membership spoke earlier versions. A release puts its own here.
const before = "109c3d41b43097f3eb16298e0cb495d346e24e10"

// A release is a fabricd and the programs of examples/echo, of one tree.
type release struct{ fabricd, echo string }

// releaseBefore builds fabricd and examples/echo of the commit before, from the repository's
// own history. A clone without that history has them of this tree, with earlier versions of
// the protocols.
func releaseBefore(t *testing.T, present release) release {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	if err := exec.Command("git", "-C", root, "cat-file", "-e", before+"^{commit}").Run(); err != nil {
		t.Logf("this clone has no commit %s: a build of earlier protocol versions stands for it", before)
		return release{pastBuild.make(t), present.echo}
	}
	tree := t.TempDir()
	unpack := exec.Command("sh", "-c", `git -C "$1" archive "$2" | tar -x -C "$3"`, "sh", root, before, tree)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := release{fabricdExe + "-before", filepath.Join(tree, "echo")}
	t.Cleanup(func() { os.Remove(r.fabricd) })
	buildIn(t, tree, r)
	return r
}

// buildIn builds the programs of r from the tree at dir.
func buildIn(t *testing.T, dir string, r release) {
	t.Helper()
	for exe, pkg := range map[string]string{r.fabricd: "./cmd/fabricd", r.echo: "./examples/echo"} {
		if exe == "" {
			continue
		}
		cmd := exec.Command("go", "build", "-trimpath", "-o", exe, pkg)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s of %s: %v: %s", pkg, dir, err, out)
		}
	}
}

// TestUpgradeFromTheReleaseBefore replaces the fabricd of one machine after the other, as
// docs/upgrade.md says, and then one of them back. After each step every node sees all, an
// application of either release talks over them, and the IDs are those of before.
func TestUpgradeFromTheReleaseBefore(t *testing.T) {
	t.Parallel()
	present := release{fabricdExe, filepath.Join(t.TempDir(), "echo")}
	buildIn(t, filepath.Join("..", "..", ".."), release{echo: present.echo})
	past := releaseBefore(t, present)

	l := newLab(t)
	l.hostExe = past.fabricd
	host := l.host()
	members := []*node{l.member(host, "web-1"), l.member(host, "web-2")}
	all := append([]*node{host}, members...)
	for _, n := range members {
		n.exe = past.fabricd
		n.start()
	}
	talk := func(step string) {
		t.Helper()
		l.agree(all...)
		for _, ends := range [][2]*node{{host, members[0]}, {members[0], host}, {members[0], members[1]}} {
			echoOver(t, l, past, ends[0], ends[1], past)
			echoOver(t, l, past, ends[0], ends[1], present)
			if ends[0].exe == present.fabricd { // an earlier one knows no names
				echoOver(t, l, present, ends[0], ends[1], past)
			}
		}
		t.Logf("%s: applications of both releases talk", step)
	}
	talk("before")
	replace := func(n *node, exe string) {
		t.Helper()
		id, generation := n.place.ID, n.place.Generation
		n.signal(t, syscall.SIGTERM)
		if code := n.exit(t, stepLimit); code != 0 {
			t.Fatalf("%s ends with %d: %s", n.name, code, tail(n.log, 3))
		}
		n.exe = exe
		n.start()
		if n.place.ID != id || n.place.Generation <= generation {
			t.Errorf("%s was %d.%d and is %d.%d", n.name, id, generation, n.place.ID, n.place.Generation)
		}
	}
	for _, n := range []*node{members[0], host, members[1]} {
		replace(n, present.fabricd)
		talk(n.name + " is upgraded")
	}
	replace(members[0], past.fabricd)
	talk(members[0].name + " is back")
}

// echoOver runs the server of one release at one node and the client of another release at
// another node, and sends a line.
func echoOver(t *testing.T, l *lab, server release, at, from *node, client release) {
	t.Helper()
	serve := echoCommand(server, at, "serve")
	out, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := l.spawn("serve", serve)
	defer p.kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s at %s says %q: %v; %s", server.echo, at.name, line, err, p.said())
	}
	words := strings.Fields(line)
	dial := echoCommand(client, from, "dial", words[len(words)-1])
	dial.Stdin = strings.NewReader("hello\n")
	var answer strings.Builder
	dial.Stdout = &answer
	if code := l.spawn("dial", dial).exit(t, stepLimit); code != 0 || !strings.Contains(answer.String(), "echo: hello") {
		t.Fatalf("%s from %s to %s: code %d, %q; %s", client.echo, from.name, line, code, answer.String(), tail(filepath.Join(l.dir, "dial.log"), 2))
	}
}

// echoCommand is the echo program of r as an application of n.
func echoCommand(r release, n *node, args ...string) *exec.Cmd {
	cmd := exec.Command(r.echo, args...)
	cmd.Env = append(environ(), fmt.Sprint("FABRIC_SOCKET=", n.socket()))
	return cmd
}
