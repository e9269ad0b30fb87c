package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// netnsDir is where ip keeps the names of network namespaces.
const netnsDir = "/run/netns"

// cgroupDirs are where groups of runs may be.
var cgroupDirs = []string{cpuTree, memoryTree, unifiedTree}

// A cleanup finds and removes the leftovers of runs on the machine.
type cleanup struct {
	tmp    string  // directory of the runs' directories
	docker *docker // nil: containers are not looked for
}

// leftovers returns the names of runs of which something is left.
func (b cleanup) leftovers(ctx context.Context) ([]Name, error) {
	var found []Name
	add := func(text string) {
		if n, ok := nameIn(text); ok && !slices.Contains(found, n) {
			found = append(found, n)
		}
	}
	for _, dir := range append([]string{b.tmp, netnsDir}, cgroupDirs...) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			add(e.Name())
		}
	}
	if b.docker != nil {
		names, err := b.docker.labelled(ctx)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			add(n)
		}
	}
	return found, nil
}

// removeDead removes the leftovers of runs with an ended process, and reports them.
func (b cleanup) removeDead(ctx context.Context, say func(string, ...any)) error {
	names, err := b.leftovers(ctx)
	if err != nil {
		return fmt.Errorf("look for leftovers: %w", err)
	}
	for _, n := range names {
		if n.alive() {
			continue
		}
		say("removing what run %s left behind", n)
		if err := b.remove(ctx, n); err != nil {
			return fmt.Errorf("remove what run %s left behind: %w", n, err)
		}
	}
	return nil
}

// remove removes everything of run n. It is no error if a part is gone already.
func (b cleanup) remove(ctx context.Context, n Name) error {
	var errs []error
	if b.docker != nil {
		errs = append(errs, b.docker.removeLabelled(ctx, string(n)))
	}
	for _, ns := range entriesOf(netnsDir, n) {
		errs = append(errs, command(ctx, "ip", "netns", "del", ns))
	}
	for _, tree := range cgroupDirs {
		for _, g := range entriesOf(tree, n) {
			errs = append(errs, os.Remove(filepath.Join(tree, g)))
		}
	}
	for _, d := range entriesOf(b.tmp, n) {
		errs = append(errs, os.RemoveAll(filepath.Join(b.tmp, d)))
	}
	return errors.Join(errs...)
}

// entriesOf returns the entries of dir that belong to run n.
func entriesOf(dir string, n Name) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // not there: nothing in it
	}
	var found []string
	for _, e := range entries {
		if m, ok := nameIn(e.Name()); ok && m == n {
			found = append(found, e.Name())
		}
	}
	return found
}

// cleanerDone is the line that a cleaner reads at the end of a run that cleaned up itself.
const cleanerDone = "done\n"

// cleanerPatience is how long a cleaner tries: the children of a killed runner end with
// it, but not at once.
const cleanerPatience = 30 * time.Second

// CleanUp waits for the end of in, which a runner holds open for its incarnation. If the
// runner did not write that it is done, it has been killed, and CleanUp removes
// everything of run name: namespaces, containers, files.
func CleanUp(name string, containers bool, in io.Reader) error {
	n, ok := nameIn(name)
	if !ok || string(n) != name {
		return refusef("run: %q: want the name of a run", name)
	}
	if word, _ := bufio.NewReader(in).ReadString('\n'); word == cleanerDone {
		return nil
	}
	b := cleanup{tmp: os.TempDir()}
	if containers {
		b.docker = newDocker(dockerSocket())
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanerPatience)
	defer cancel()
	var err error
	return errors.Join(await(ctx, cleanerPatience, func() error {
		if err = b.remove(ctx, n); err != nil {
			return err
		}
		left, err := b.leftovers(ctx)
		if err == nil && slices.Contains(left, n) {
			err = errors.New("something of it is back")
		}
		return err
	}))
}

// tmpOf returns the directory of run n.
func (b cleanup) tmpOf(n Name) string { return filepath.Join(b.tmp, string(n)) }

// oneLine returns the output of a command as one line for an error.
func oneLine(b []byte) string {
	return strings.Join(strings.Fields(string(b)), " ")
}
