package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// poor is an application that sets its own resource limits. It connects to the port that it reads,
// sends bytes that come back, and executes the commands that it reads line by line.
func poor(path string) error {
	ctx := context.Background()
	sess, err := Dial(ctx, path)
	if err != nil {
		return err
	}
	ep, err := sess.Open()
	if err != nil {
		return err
	}
	var p poverty
	var l attach.Endpoint // that listens
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		word, rest, _ := strings.Cut(in.Text(), " ")
		n, _ := strconv.ParseInt(rest, 10, 64)
		var err error
		switch word {
		case "connect":
			_, err = ep.Connect(ctx, addr.Addr{Node: 3, Port: addr.Port(n)})
		case "listen":
			var port addr.Port
			if l, err = sess.Open(); err == nil {
				port, err = l.Bind(0)
			}
			if err == nil {
				err = l.Listen(1)
			}
			fmt.Println("port", port)
		case "accept":
			var accepted attach.Endpoint
			if accepted, _, err = l.Accept(ctx); err == nil {
				err = accepted.Close()
			}
		case "talk":
			for b := []byte("x"); err == nil && n > 0; n-- {
				if _, err = ep.Send(ctx, b); err == nil {
					_, err = ep.Recv(ctx, b)
				}
			}
		case "alloc":
			var m attach.Memory
			if m, err = sess.Alloc(int(n)); err == nil {
				err = m.Close()
			}
		case "mmap":
			var m attach.Mapping
			if m, err = ep.Mmap(n, windowBig, rma.ProtRead); err == nil {
				err = m.Close()
			}
		case "lift":
			err = p.lift()
		case "fill":
			err = fill(rest)
		case "group":
			err = os.WriteFile(filepath.Join(rest, "cgroup.procs"), []byte("0"), 0)
		default:
			err = p.limit(word, uint64(n))
		}
		fmt.Printf("did %d %q\n", status.Of(err), fmt.Sprint(err))
	}
	return nil
}

// fill mounts a small file system at dir, and leaves no room in it.
func fill(dir string) error {
	if err := syscall.Mount("full", dir, "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "everything"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%s is not full: %v", dir, err)
	}
	return nil
}

// rlimits are the limits that a process can be made to set.
var rlimits = map[string]int{"files": syscall.RLIMIT_FSIZE, "space": syscall.RLIMIT_AS, "descriptors": syscall.RLIMIT_NOFILE}

// A poverty is the limits that a process has set on itself.
type poverty struct {
	resource int
	before   syscall.Rlimit
	held     []*os.File
}

// limit sets a limit: of the address space, that much above the current use.
func (p *poverty) limit(name string, n uint64) error {
	var ok bool
	if p.resource, ok = rlimits[name]; !ok {
		return fmt.Errorf("no limit %q", name)
	}
	if err := syscall.Getrlimit(p.resource, &p.before); err != nil {
		return err
	}
	if name == "space" {
		b, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			return err
		}
		pages, err := strconv.ParseUint(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			return err
		}
		n += pages * uint64(os.Getpagesize())
	}
	now := p.before
	now.Cur = n
	if err := syscall.Setrlimit(p.resource, &now); err != nil || name != "descriptors" {
		return err
	}
	for {
		f, err := os.Open("/dev/null")
		if errors.Is(err, syscall.EMFILE) {
			return nil
		}
		if err != nil {
			return err
		}
		p.held = append(p.held, f)
	}
}

func (p *poverty) lift() error {
	for _, f := range p.held {
		f.Close()
	}
	p.held = nil
	return syscall.Setrlimit(p.resource, &p.before)
}

// does sends the child a command, and returns the resulting code and error.
func (c *child) does(t testing.TB, line string) (code status.Code, said string) {
	t.Helper()
	c.say(t, line)
	return c.did(t, line)
}

func (c *child) did(t testing.TB, line string) (code status.Code, said string) {
	t.Helper()
	answer, err := c.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(answer, "did %d %q\n", &code, &said)
	}
	if err != nil {
		t.Fatalf("application says %q (%v) to %q", answer, err, line)
	}
	return code, said
}

func (c *child) must(t testing.TB, line string) {
	t.Helper()
	if code, said := c.does(t, line); code != status.OK {
		t.Fatalf("%s: %s", line, said)
	}
}

// windowBig is more than a process may have that is limited below.
const windowBig = 128 << 20

// mappingsMost is how many mappings a session of the test may have.
const mappingsMost = 3

// TestMemoryOverALimit has applications ask for more than a limit of theirs
// allows: window memory is refused with ENOMEM and a text that names the limit, a
// shared-memory path is not had, and the node knows why; messages go on. Once the limit is
// lifted, there is a shared-memory path.
func TestMemoryOverALimit(t *testing.T) {
	for name, c := range map[string]struct {
		limit string // limit that the application sets on itself; empty: a memory control group
		says  string // Alloc's error; %d is the limit
		why   string // the node's reason for no shared-memory path; empty: there is one
		mmap  string // Mmap's error; empty: none
	}{
		"memory cgroup": {"", "below the limit %s of 67108864 bytes", "below the limit %s of 67108864 bytes", ""},
		"size of files": {"files 1048576", "RLIMIT_FSIZE: this process may make files and memory of 1048576 bytes", "", ""},
		"address space": {"space 67108864", "RLIMIT_AS: this process may have an address space of ", "RLIMIT_AS: this process may have an address space of ", "RLIMIT_AS: "},
		"descriptors":   {"descriptors 200", "RLIMIT_NOFILE: this process may have 200 descriptors", "RLIMIT_NOFILE: this process may have 200 descriptors", "RLIMIT_NOFILE: "},
	} {
		t.Run(name, func(t *testing.T) {
			limit, says, why, lift := c.limit, c.says, c.why, func(k *child) { k.must(t, "lift") }
			if limit == "" {
				g := newMemoryGroup(t, 64<<20)
				if g == nil {
					return
				}
				limit, says, why = "group "+g.dir, fmt.Sprintf(says, g.file), fmt.Sprintf(why, g.file)
				lift = func(*child) {
					if err := g.set(1 << 30); err != nil {
						t.Fatal(err)
					}
				}
			}
			var log logBuffer
			s := serve(t, func(o *server.Options) {
				o.Rings = ring.Params{Slots: 256, Data: 64 << 20, Release: 25}
				o.Session.Windows = mappingsMost
				o.Log = zerolog.New(&log)
			})
			k := start(t, s, "ATTACH_TEST_POOR="+s.path)
			ep, window := hostTo(t, s, k)
			k.must(t, "talk 1")
			k.must(t, limit)

			if code, said := k.does(t, fmt.Sprint("alloc ", windowBig)); code != status.NoMemory || !strings.Contains(said, says) {
				t.Errorf("Alloc: %s, want ENOMEM that says %q", said, says)
			}
			for range mappingsMost + 1 { // mappings that fail here must be released at the node
				if code, said := k.does(t, fmt.Sprint("mmap ", window)); c.mmap == "" && code != status.OK || c.mmap != "" && (code != status.NoMemory || !strings.Contains(said, c.mmap)) {
					t.Errorf("Mmap: %s, want %q", said, c.mmap)
				}
			}
			k.must(t, "talk 100")
			want := attach.ViaSocket
			if c.why == "" {
				want = attach.ViaShmPath
			}
			eventually(t, "the way is "+want, func() bool {
				ways := s.ways()
				n := 0
				for _, via := range ways {
					if via[0] == want && strings.Contains(via[1], why) {
						n++
					}
				}
				return n == 2
			})
			if c.why != "" && !log.has("no shared-memory path: messages go through the node", why) {
				t.Errorf("the log does not say so:\n%s", log.text())
			}
			k.must(t, "talk 1")
			lift(k)
			k.must(t, "alloc 4096")
			k.must(t, fmt.Sprint("mmap ", window))
			check(t, "Unregister after all mappings have ended", ep.Unregister(window, windowBig), status.OK)
			for range 10 {
				k.must(t, "talk 500")
			}
			eventually(t, "there is a shared-memory path", func() bool { return ep.(*endpoint).shmPath.Load() != nil })
			k.must(t, "talk 10")
			k.kill()
		})
	}
}

// An application that accepts without a descriptor left gets the reason. The connection ends, and
// the session has as many endpoints as before.
func TestAcceptWithoutADescriptor(t *testing.T) {
	const endpoints = 4
	s := serve(t, func(o *server.Options) { o.Session.Endpoints = endpoints })
	k := start(t, s, "ATTACH_TEST_POOR="+s.path)
	k.say(t, "listen")
	port := addr.Port(k.number(t, "port"))
	if code, said := k.did(t, "listen"); code != status.OK {
		t.Fatal(said)
	}
	sess := s.dial(t)
	accept := func() (ep attach.Endpoint, code status.Code, said string) {
		k.say(t, "accept")
		ep = must(sess.Open())(t)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if _, err := ep.Connect(ctx, addr.Addr{Node: 3, Port: port}); err != nil {
			t.Fatal(err)
		}
		code, said = k.did(t, "accept")
		return ep, code, said
	}
	k.must(t, "descriptors 100")
	for range endpoints + 1 {
		ep, code, said := accept()
		if code != status.NoMemory || !strings.Contains(said, "RLIMIT_NOFILE: this process may have 100 descriptors") {
			t.Fatalf("Accept: %s, want ENOMEM that names the limit", said)
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		_, err := ep.Recv(ctx, make([]byte, 1))
		check(t, "Recv of a connection that nobody could take", err, status.Reset)
		cancel()
		ep.Close()
	}
	k.must(t, "lift")
	ep, code, said := accept()
	if code != status.OK {
		t.Error("Accept afterwards: ", said)
	}
	ep.Close()
	k.kill()
}

// Neither windows nor shared-memory paths lie in /dev/shm, which is small in a container: it
// may be full.
func TestFullDevShm(t *testing.T) {
	s := serve(t, nil)
	k := startAs(t, apart(), "ATTACH_TEST_POOR="+s.path)
	ep, window := hostTo(t, s, k)
	k.must(t, "fill /dev/shm")
	k.must(t, fmt.Sprint("alloc ", windowBig))
	k.must(t, fmt.Sprint("mmap ", window))
	for range 10 {
		k.must(t, "talk 500")
	}
	eventually(t, "there is a shared-memory path", func() bool { return ep.(*endpoint).shmPath.Load() != nil })
	k.must(t, "talk 10")
	k.kill()
}

// hostTo connects the child to an endpoint here that sends everything back, and
// has a window.
func hostTo(t *testing.T, s *service, k *child) (ep attach.Endpoint, window int64) {
	sess := s.dial(t)
	l := must(sess.Open())(t)
	defer l.Close()
	port := must(l.Bind(0))(t)
	check(t, "Listen", l.Listen(1), status.OK)
	k.say(t, fmt.Sprint("connect ", port))
	ep, _, err := l.Accept(context.Background())
	if code, said := k.did(t, "connect"); code != status.OK || err != nil {
		t.Fatal(said, err)
	}
	mem := must(sess.Alloc(windowBig))(t)
	t.Cleanup(func() { mem.Close() })
	window = must(ep.Register(mem.Bytes(), 0, rma.ProtRead, 0))(t)
	go func() { // ends with the session
		for p := make([]byte, 64); ; {
			n, err := ep.Recv(context.Background(), p)
			if err == nil {
				_, err = ep.Send(context.Background(), p[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return ep, window
}

// A memoryGroup is a control group with a limit of memory.
type memoryGroup struct{ dir, file string }

// newMemoryGroup makes a memory control group, removed when the test and its processes have ended;
// nil without the permission.
func newMemoryGroup(t *testing.T, limit int64) *memoryGroup {
	t.Helper()
	tree, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(tree, "cgroup.controllers")); err != nil {
		tree, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	}
	dir := filepath.Join(tree, fmt.Sprintf("fabricd-attach-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Logf("not tested: this machine lets nobody make control groups in %s: %v", tree, err)
		return nil
	}
	g := &memoryGroup{dir, filepath.Join(dir, file)}
	t.Cleanup(func() {
		eventually(t, "the group has no process and can be removed", func() bool {
			err := os.Remove(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
	})
	if err := g.set(limit); err != nil {
		t.Logf("not tested: control groups here have no limits of memory: %v", err)
		return nil
	}
	return g
}

func (g *memoryGroup) set(limit int64) error {
	return os.WriteFile(g.file, []byte(strconv.FormatInt(limit, 10)), 0)
}

// A logBuffer is a log that is read while it is written.
type logBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// has reports whether one line has all of the texts.
func (l *logBuffer) has(texts ...string) bool {
	for line := range strings.Lines(l.text()) {
		n := 0
		for _, text := range texts {
			if strings.Contains(line, text) {
				n++
			}
		}
		if n == len(texts) {
			return true
		}
	}
	return false
}
