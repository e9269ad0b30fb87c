package hostile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/rma"
)

// Environment variables that make a test binary the owner of a window for reading only, or
// a process that tries to write there, and their arguments.
const (
	ownsWindow   = "FABRIC_HOSTILE_OWNER"  // the socket
	wantsWindow  = "FABRIC_HOSTILE_READER" // the socket
	windowAt     = "FABRIC_HOSTILE_WINDOW" // port, offset, the owner's process
	peerOfWindow = "FABRIC_HOSTILE_PEER"   // the socket
	sharing      = "FABRIC_HOSTILE_SHARES" // set: the owner shares its windows with other users
)

// windowBytes is the value of every byte of the window.
const windowBytes = 0xA5

// TestWindowForReadingOnly gives applications of several users a window for reading
// only, and has them try everything to write there. Nothing works, also not for the
// owner's own user, which all applications of a compose file or a pod share: it may
// open the descriptor again, but no write or mapping comes of that. The owner's
// user and root may only look into the owner's process, where they can see it.
func TestWindowForReadingOnly(t *testing.T) {
	owner := os.Getuid()
	type reader struct {
		as      *syscall.SysProcAttr
		through []string // the attempts that succeed
	}
	readers := map[string]reader{
		"the owner's user": {nil, []string{"look into the owner", "change the mode", "open for writing after that"}},
	}
	if owner == 0 {
		owner = 65533
		user := func(id uint32) *syscall.SysProcAttr {
			return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
		}
		namespace := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
		same := readers["the owner's user"]
		same.as = user(uint32(owner))
		readers["the owner's user"] = same
		readers["another user"] = reader{user(65534), nil}
		readers["root of another user's namespace"] = reader{&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: namespace, GidMappings: namespace,
			Credential: &syscall.Credential{NoSetGroups: true}}, nil}
		readers["root"] = reader{nil, append([]string{"open for writing", "open for writing only"}, same.through...)}
	} else {
		t.Log("not tested: only root can be several users")
	}
	c := newCluster(t)
	socket := c.host.Status().Socket
	for name, r := range readers {
		t.Run(name, func(t *testing.T) {
			o := startOwner(t, socket, readers["the owner's user"].as, sharing+"=1")
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsReaderOfAWindow$", "-test.v")
			cmd.Env, cmd.Dir, cmd.SysProcAttr = append(os.Environ(), wantsWindow+"="+socket, windowAt+"="+o.window), "/", r.as
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte(attacked)) {
				t.Fatalf("the reader: %v\n%s", err, out)
			}
			var through []string
			for line := range strings.Lines(string(out)) {
				if what, ok := strings.CutPrefix(strings.TrimSpace(line), "through: "); ok {
					through = append(through, what)
				}
			}
			if !slices.Equal(through, r.through) {
				t.Errorf("these got through: %q, want %q\n%s", through, r.through, out)
			}
			o.end(t)
		})
	}
}

// An ownerProcess owns a window.
type ownerProcess struct {
	cmd    *exec.Cmd
	stdin  interface{ Close() error }
	out    *bufio.Reader
	window string // port, offset, process
}

func startOwner(t *testing.T, socket string, as *syscall.SysProcAttr, env ...string) *ownerProcess {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsOwnerOfAWindow$")
	cmd.Env, cmd.Dir, cmd.SysProcAttr, cmd.Stderr = append(append(os.Environ(), ownsWindow+"="+socket), env...), "/", as, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	o := &ownerProcess{cmd: cmd, stdin: in, out: bufio.NewReader(out)}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it has ended, unless the test has failed
	o.window = fmt.Sprint(o.line(t, "window "), " ", cmd.Process.Pid)
	return o
}

// line waits for a line that begins with word, and returns the rest.
func (o *ownerProcess) line(t *testing.T, word string) string {
	t.Helper()
	var said strings.Builder
	for {
		line, err := o.out.ReadString('\n')
		said.WriteString(line)
		if rest, ok := strings.CutPrefix(line, word); ok {
			return strings.TrimSpace(rest)
		}
		if err != nil {
			t.Fatalf("the owner says %q, want %q", said.String(), word)
		}
	}
}

// end ends the owner, which looks at its memory for the last time.
func (o *ownerProcess) end(t *testing.T) {
	t.Helper()
	o.stdin.Close()
	if said := o.line(t, "memory "); said != "unchanged" {
		t.Errorf("the owner's memory is %s", said)
	}
	if err := o.cmd.Wait(); err != nil {
		t.Errorf("the owner: %v", err)
	}
}

// TestAsOwnerOfAWindow is the body of [TestWindowForReadingOnly]'s owner; in other
// processes it owns nothing.
func TestAsOwnerOfAWindow(t *testing.T) {
	socket := os.Getenv(ownsWindow)
	if socket == "" {
		return
	}
	s, l, port := listener(t, socket)
	defer s.Close()
	mem, err := s.Alloc(2 * rma.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mem.Bytes() {
		mem.Bytes()[i] = windowBytes
	}
	const off = 0x10000
	fmt.Println("window", port, off)
	ep, _, err := l.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Register(mem.Bytes(), off, rma.ProtRead, rma.MapFixed); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Send(within(t), []byte("x")); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // its end
	if i := slices.IndexFunc(mem.Bytes(), func(b byte) bool { return b != windowBytes }); i >= 0 {
		fmt.Println("memory changed at", i)
		return
	}
	fmt.Println("memory unchanged")
}

func listener(t *testing.T, socket string) (attach.Session, attach.Endpoint, addr.Port) {
	t.Helper()
	s, err := client.DialWith(within(t), socket, client.DialOptions{ShareWindows: os.Getenv(sharing) != ""})
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	l, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, l, port
}

// TestAsReaderOfAWindow is the body of [TestWindowForReadingOnly]'s readers; in
// other processes it has nothing to attack.
func TestAsReaderOfAWindow(t *testing.T) {
	socket := os.Getenv(wantsWindow)
	if socket == "" {
		return
	}
	ep, off, owner := windowPeer(t, socket)
	// By the contract: an error, whichever process asks.
	if _, err := ep.Mmap(off, rma.PageSize, rma.ProtRead|rma.ProtWrite); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a mapping for writing: %v, want EACCES", err)
	}
	if err := ep.VWriteTo([]byte{1}, off, rma.Sync); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a write: %v, want EACCES", err)
	}
	read := make([]byte, 2*rma.PageSize)
	if err := ep.VReadFrom(read, off, rma.Sync); err != nil || read[0] != windowBytes { // directly: it maps the window
		t.Fatalf("a read: %v", err)
	}
	m, err := ep.Mmap(off, 2*rma.PageSize, rma.ProtRead)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	attackReadOnly(t, m.Bytes(), owner)
	fmt.Println(attacked)
}

// windowPeer connects to the owner of a window, and returns when that is there.
func windowPeer(t *testing.T, socket string) (ep attach.Endpoint, off int64, owner int) {
	t.Helper()
	var port addr.Port
	if _, err := fmt.Sscan(os.Getenv(windowAt), &port, &off, &owner); err != nil {
		t.Fatal(err)
	}
	s, err := client.Dial(within(t), socket)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	ep, err = s.Open()
	if err != nil {
		t.Fatal(err)
	}
	self := s.Self().Incarnation
	if _, err := ep.Connect(within(t), addr.Addr{Node: self.Node, Port: port}); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Recv(context.Background(), make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return ep, off, owner
}

// TestWindowOfAnotherUser: an application of another user gets a window's bytes, and
// nothing that it could map.
func TestWindowOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("not tested: only root can be several users")
		return
	}
	user := func(id uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	}
	socket := newCluster(t).host.Status().Socket
	for name, c := range map[string]struct {
		as   *syscall.SysProcAttr
		maps bool
	}{"another user": {user(65534), false}, "root": {nil, false}, "the owner's user": {user(65533), true}} {
		t.Run(name, func(t *testing.T) {
			o := startOwner(t, socket, user(65533))
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsPeerOfAWindow$", "-test.v")
			cmd.Env, cmd.Dir, cmd.SysProcAttr = append(os.Environ(), peerOfWindow+"="+socket, windowAt+"="+o.window), "/", c.as
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, fmt.Appendf(nil, "maps: %v\n", c.maps)) {
				t.Errorf("the peer: %v, want maps: %v\n%s", err, c.maps, out)
			}
			o.end(t)
		})
	}
}

// TestAsPeerOfAWindow is the body of [TestWindowOfAnotherUser]'s peers.
func TestAsPeerOfAWindow(t *testing.T) {
	socket := os.Getenv(peerOfWindow)
	if socket == "" {
		return
	}
	ep, off, _ := windowPeer(t, socket)
	read := make([]byte, 2*rma.PageSize)
	for range 3 {
		if err := ep.VReadFrom(read, off, rma.Sync); err != nil || read[len(read)-1] != windowBytes {
			t.Fatalf("a read: %v, %#x", err, read[len(read)-1])
		}
	}
	_, err := ep.Mmap(off, rma.PageSize, rma.ProtRead)
	if err != nil && !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("Mmap: %v", err)
	}
	if n := len(windowMappings(t)); (err == nil) != (n > 0) {
		t.Errorf("Mmap is %v, and the window is mapped %d times", err, n)
	}
	fmt.Printf("maps: %v\n", err == nil)
}

// attackReadOnly tries to write into a mapping for reading only, and reports the attempts
// that succeed. It writes nothing that changes the memory.
func attackReadOnly(t *testing.T, mem []byte, owner int) {
	fd := windowDescriptor(t)
	self := fmt.Sprint("/proc/self/fd/", fd)
	try := func(what string, want syscall.Errno, attack func() error) {
		err := attack()
		switch {
		case err == nil:
			fmt.Println("through:", what)
		case !errors.Is(err, want):
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	reopened := func(attack func(fd int) error) func() error {
		return func() error {
			f, err := os.OpenFile(self, os.O_RDWR, 0)
			if err != nil {
				return syscall.EPERM // there is nothing to attack with
			}
			defer f.Close()
			return attack(int(f.Fd()))
		}
	}
	opened := func(flags int) func() error {
		return func() error {
			f, err := os.OpenFile(self, flags, 0)
			if err == nil {
				f.Close()
			}
			return err
		}
	}
	const page = rma.PageSize
	try("map for writing", syscall.EACCES, func() error { return mapWritable(fd) })
	try("make the mapping writable", syscall.EACCES, func() error { return syscall.Mprotect(mem, syscall.PROT_READ|syscall.PROT_WRITE) })
	try("open for writing", syscall.EACCES, opened(os.O_RDWR))
	try("open for writing only", syscall.EACCES, opened(os.O_WRONLY))
	try("write to the descriptor", syscall.EBADF, func() error { _, err := syscall.Pwrite(fd, []byte{windowBytes}, 0); return err })
	try("punch a hole", syscall.EBADF, func() error { return syscall.Fallocate(fd, 1|2, 0, page) }) // KEEP_SIZE, PUNCH_HOLE
	try("remove pages", syscall.EACCES, func() error { return syscall.Madvise(mem[:page], syscall.MADV_REMOVE) })
	try("truncate", syscall.EINVAL, func() error { return syscall.Ftruncate(fd, 0) })
	try("seal", syscall.EPERM, func() error {
		if _, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), 1033, 8); e != 0 { // F_ADD_SEALS, F_SEAL_WRITE
			return e
		}
		return nil
	})
	starts := windowMappings(t)
	if len(starts) < 2 {
		t.Errorf("the window is mapped %d times, want one mapping of Mmap and one for direct use", len(starts))
	}
	for _, at := range starts {
		try("write by way of /proc/self/mem", syscall.EIO, func() error { return writeMemory("self", at) })
	}
	try("look into the owner", syscall.EACCES, func() error { _, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", owner)); return err })
	try("change the mode", syscall.EPERM, func() error { return syscall.Fchmod(fd, 0o666) })
	try("open for writing after that", syscall.EACCES, opened(os.O_RDWR))
	try("map for writing after that", syscall.EPERM, reopened(mapWritable))
	try("write after that", syscall.EPERM, reopened(func(fd int) error { _, err := syscall.Pwrite(fd, []byte{windowBytes}, 0); return err }))
	try("punch a hole after that", syscall.EPERM, reopened(func(fd int) error { return syscall.Fallocate(fd, 1|2, 0, page) }))
}

func mapWritable(fd int) error {
	b, err := syscall.Mmap(fd, 0, rma.PageSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	return syscall.Munmap(b)
}

func writeMemory(process string, at int64) error {
	f, err := os.OpenFile(filepath.Join("/proc", process, "mem"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{windowBytes}, at)
	return err
}

// windowDescriptor finds the descriptor that came for the mapping.
func windowDescriptor(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.HasPrefix(to, "/memfd:fabric-window") {
			n, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no descriptor of the window")
	return 0
}

// windowMappings returns where the window is mapped, and checks that none of these
// mappings can ever be written to: the kernel does not say "mw" of it.
func windowMappings(t *testing.T) (starts []int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(b)) {
		field := strings.Fields(line)
		if from, _, ok := strings.Cut(field[0], "-"); ok {
			inside = strings.Contains(line, "/memfd:fabric-window")
			at, err := strconv.ParseInt(from, 16, 64)
			if inside && err == nil {
				starts = append(starts, at)
			}
		}
		if inside && field[0] == "VmFlags:" && (slices.Contains(field, "mw") || slices.Contains(field, "wr")) {
			t.Errorf("a mapping of the window has %s", line)
		}
	}
	return starts
}
