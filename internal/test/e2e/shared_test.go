package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestSharedMemoryThatCannotBe starts nodes that can make no memory for shared-memory paths.
// One that has to is refused, by a line that names the limit. One that may goes
// on: the reason is in the log, in the status and beside every connection, whose
// messages go through the node.
func TestSharedMemoryThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prefix func(t *testing.T) (argv []string, limit string)
		args   []string
		says   string // %s is the limit
	}{
		"size of files": {
			func(*testing.T) ([]string, string) {
				const most = 480 << 10 // less than a shared-memory path, more than the node's files
				return []string{"prlimit", fmt.Sprintf("--fsize=%d", most)}, fmt.Sprint(most)
			}, nil,
			"ftruncate: out of memory or over quota: file too large (RLIMIT_FSIZE: this process may make files and memory of %s bytes)",
		},
		"memory cgroup": {
			func(t *testing.T) ([]string, string) {
				dir, file := memoryGroup(t, 96<<20)
				return []string{"/bin/sh", "-c", `echo 0 >"$0/cgroup.procs" && exec "$@"`, dir}, file
			}, []string{"--ring-data", "64MiB"},
			"are available below the limit %s of 100663296 bytes: out of memory or over quota",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix, limit := c.prefix(t)
			if limit == "" {
				t.Log("not tested: this machine lets nobody make control groups")
				return
			}
			says := fmt.Sprintf(c.says, limit)
			l := newLab(t)
			n := l.prepare("host-node", append([]string{"--role", "host"}, c.args...)...)
			if _, err := l.fabricd("init", "--name", n.name, "--state-dir", n.stateDir()); err != nil {
				t.Fatal(err)
			}
			n.prefix = prefix
			plain := n.args
			for _, forced := range []string{"shm,quic,tcp", "tcp,shm"} {
				n.args = append(plain[:len(plain):len(plain)], "--providers", forced)
				n.refused(exitUsage, fmt.Sprintf("providers: %q: ", forced), "shm cannot be used: ", says)
			}
			for _, may := range []string{"auto", "quic,tcp"} {
				n.args = append(plain[:len(plain):len(plain)], "--providers", may)
				n.start()
				n.logs("provider cannot be used; applications of this node talk through it")
				// The available memory of a group is never the same twice: only the limit is.
				why := "no memory for shared-memory paths could be made when the node started: "
				l.talk(n, n).shows("messages  shared-memory path", 0, "messages  socket: "+why, 2, says, 2)
				if text, err := l.fabricd("status", "--admin", n.adminSocket()); err != nil || !strings.Contains(text, "none: "+why) || !strings.Contains(text, says) {
					t.Errorf("status says %v\n%s", err, text)
				}
				n.kill()
			}
		})
	}
}

// TestNoShmPathWithoutDescriptors takes the last descriptors that a user's
// applications may have while two of them talk: messages go on through the node, it
// says why to both, and when there are some again the connection gets its shared-memory path. It
// is the same whether shared memory has to be usable or may: when the node started, it
// was.
func TestNoShmPathWithoutDescriptors(t *testing.T) {
	t.Parallel()
	for _, providers := range []string{"shm,quic,tcp", "auto"} {
		t.Run(providers, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			n := l.prepare("host-node", "--role", "host", "--providers", providers)
			if _, err := l.fabricd("init", "--name", n.name, "--state-dir", n.stateDir()); err != nil {
				t.Fatal(err)
			}
			n.prefix = []string{"prlimit", "--nofile=96"}
			n.start()
			talk := l.talk(n, n)
			var apps []*fabric.Node
			for len(apps) < 64 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				app, err := fabric.Attach(ctx, n.socket())
				cancel()
				if err != nil {
					break
				}
				apps = append(apps, app)
			}
			talk.exchange(t, 20)
			const why = "may have 12 descriptors"
			n.logs("no shared-memory path: messages go through the node")
			n.logs(why)
			talk.shows("messages  socket: ", 2, why, 2) // operators ask with the node's own
			for _, app := range apps {
				app.Close()
			}
			talk.exchange(t, 300) // the next request comes with the 256th message
			talk.shows("messages  shared-memory path", 2, why, 0)
		})
	}
}

// exchange sends bytes one by one and reads the echo.
func (c *conversation) exchange(t *testing.T, n int) {
	t.Helper()
	for _, conn := range c.conns {
		for range n {
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

var groups atomic.Uint32

// memoryGroup makes a control group with a limit, and returns its directory and the
// limit's file; empty without permission. It is removed when the test ends, after everything
// that was made later.
func memoryGroup(t *testing.T, limit int64) (dir, file string) {
	t.Helper()
	tree, name := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(tree, "cgroup.controllers")); err != nil {
		tree, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	}
	number := groups.Add(1)
	dir = filepath.Join(tree, fmt.Sprintf("fabricd-e2e-%d-%d", os.Getpid(), number))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", ""
	}
	t.Cleanup(func() {
		eventually(t, stepLimit, "the group has no process and can be removed", func() error { return os.Remove(dir) })
	})
	file = filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(fmt.Sprint(limit)), 0); err != nil {
		return "", "" // groups here have no limits of memory
	}
	return dir, file
}
