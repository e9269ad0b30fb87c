package hostile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/rma"
)

// localRole makes this binary an application that attacks its node: the role, the
// socket, and further arguments, with spaces between.
const localRole = "FABRIC_HOSTILE_LOCAL"

// Users that applications run as, if the test is root.
const (
	ownerUID    = 65533
	attackerUID = 65534
)

// A child is an application of another user. It answers line by line.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *os.File
	buf *bufio.Reader
}

// child starts this binary as one test, with an environment, as uid.
func (a *arena) child(test string, uid uint32, env ...string) (*child, error) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v")
	cmd.Env, cmd.Dir = append(environment(), env...), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, w
	c := &child{cmd: cmd, out: r, buf: bufio.NewReader(r)}
	if c.in, err = cmd.StdinPipe(); err == nil {
		begun := make(chan error)
		a.f.spawn <- func() { begun <- cmd.Start() }
		err = <-begun
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	a.ends = append(a.ends, c.end)
	return c, nil
}

// end ends the child; it may have ended.
func (c *child) end() {
	c.in.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.out.Close()
}

// say gives the child a line.
func (c *child) say(line string) { _, _ = io.WriteString(c.in, line+"\n") }

// expect returns the rest of the child's next line that begins with word.
func (c *child) expect(word string) (string, error) {
	if err := c.out.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	var said []byte
	for {
		line, err := c.buf.ReadBytes('\n')
		said = append(said, line...)
		if rest, ok := bytes.CutPrefix(line, []byte(word)); ok {
			return string(bytes.TrimSpace(rest)), nil
		}
		if err != nil {
			return "", fmt.Errorf("the application does not say %q: %w: %s", word, err, said)
		}
	}
}

// local runs a role of TestAsLocalApplication at a node.
func (a *arena) local(role string, uid uint32, at *machine, args ...any) (*child, error) {
	return a.child("TestAsLocalApplication", uid, localRole+"="+strings.TrimSpace(fmt.Sprintln(append([]any{role, at.socket()}, args...)...)))
}

// TestAsLocalApplication is the body of the applications that attack their node; in
// other processes it does nothing.
func TestAsLocalApplication(t *testing.T) {
	args := strings.Fields(os.Getenv(localRole))
	if len(args) < 2 {
		return
	}
	roles := map[string]func(t *testing.T, socket string, in *bufio.Reader, args []string){
		"own": ownMemory, "reach": reachMemory, "hoard": hoard,
	}
	roles[args[0]](t, args[1], bufio.NewReader(os.Stdin), args[2:])
}

// awaitLine waits until the test lets the application go on.
func awaitLine(in *bufio.Reader) { _, _ = in.ReadString('\n') }

// The memory of which one page is a window.
const (
	ownedPages = 4
	windowPage = 1
	untouched  = 0xA5
	written    = 0x5A
)

// ownMemory registers one page of several and reports the state of the others, and
// of that one after its end.
func ownMemory(t *testing.T, socket string, in *bufio.Reader, _ []string) {
	s, l, port := listener(t, socket)
	defer s.Close()
	mem, err := s.Alloc(ownedPages * rma.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	b := mem.Bytes()
	for i := range b {
		b[i] = untouched
	}
	fmt.Println("listening", port)
	ep, _, err := l.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	const off = 0x10000
	window := b[windowPage*rma.PageSize:][:rma.PageSize]
	if _, err := ep.Register(window, off, rma.ProtRead|rma.ProtWrite, rma.MapFixed); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Send(within(t), []byte("x")); err != nil {
		t.Fatal(err)
	}
	awaitLine(in)
	fmt.Println("changed", changed(b, func(page int) bool { return page != windowPage }))
	if err := ep.Unregister(off, rma.PageSize); err != nil {
		t.Error(err)
	}
	ep.Close()
	copy(window, bytes.Repeat([]byte{untouched}, rma.PageSize)) // it is the owner's alone now
	fmt.Println("closed")
	awaitLine(in)
	fmt.Println("changed", changed(b, func(int) bool { return true }))
}

// changed counts the pages that the owner has not changed and that are not as it left
// them.
func changed(b []byte, which func(page int) bool) (pages int) {
	for page := range len(b) / rma.PageSize {
		own := b[page*rma.PageSize:][:rma.PageSize]
		if which(page) && !bytes.Equal(own, bytes.Repeat([]byte{untouched}, rma.PageSize)) {
			pages++
		}
	}
	return pages
}

// reachMemory uses the window as the contract has it, and then writes to whatever
// of the owner's memory it has got hold of.
func reachMemory(t *testing.T, socket string, in *bufio.Reader, args []string) {
	port, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.Dial(within(t), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ep, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Connect(within(t), addr.Addr{Node: s.Self().Incarnation.Node, Port: addr.Port(port)}); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Recv(within(t), make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := ep.VWriteTo(bytes.Repeat([]byte{untouched}, 64), 0x10000, rma.Sync); err != nil {
		t.Fatalf("a write within the window: %v", err)
	}
	if m, err := ep.Mmap(0x10000, rma.PageSize, rma.ProtRead|rma.ProtWrite); err == nil {
		defer m.Close()
	}
	maps := foreignMemory(t)
	most := 0
	for _, b := range maps {
		if scribble(b) {
			most = max(most, len(b))
		}
	}
	fmt.Println("mapped", most>>10)
	fmt.Println("written")
	awaitLine(in)
	for _, b := range maps {
		scribble(b)
	}
	fmt.Println("written")
	awaitLine(in)
}

// foreignMemory maps every memfd that this process has been given, all of it.
func foreignMemory(t *testing.T) (maps [][]byte) {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		path := filepath.Join("/proc/self/fd", e.Name())
		to, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		fd, _ := strconv.Atoi(e.Name()) // the kernel's own number
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) != nil || st.Size == 0 {
			continue
		}
		if b, err := syscall.Mmap(fd, 0, int(st.Size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err == nil {
			maps = append(maps, b)
		}
	}
	return maps
}

// scribble writes to the pages that hold the owner's bytes, and reports
// whether there are any: this process and its node need the other mapped pages.
func scribble(b []byte) (any bool) {
	const last = rma.PageSize - 1
	for at := 0; at+rma.PageSize <= len(b); at += rma.PageSize {
		page := b[at : at+rma.PageSize]
		if page[0] == untouched && (page[last] == untouched || page[last] == written) {
			page[last], any = written, true
		}
	}
	return any
}

// attackWindow: F11.
func attackWindow(a *arena) error {
	at := a.f.honest()[1]
	owner, err := a.local("own", ownerUID, at)
	if err != nil {
		return err
	}
	port, err := owner.expect("listening")
	if err != nil {
		return err
	}
	peer, err := a.local("reach", attackerUID, at, port)
	if err != nil {
		return err
	}
	mapped, err := peer.expect("mapped")
	if err == nil {
		_, err = peer.expect("written")
	}
	if err != nil {
		return err
	}
	owner.say("")
	beside, err := owner.expect("changed")
	if err == nil {
		_, err = owner.expect("closed")
	}
	if err != nil {
		return err
	}
	peer.say("")
	if _, err := peer.expect("written"); err != nil {
		return err
	}
	owner.say("")
	after, err := owner.expect("changed")
	if err != nil {
		return err
	}
	a.note("of 4 KiB registered another user's application mapped %s KiB; it changed %s pages beside the window, and %s after its end", mapped, beside, after)
	if beside != "0" || after != "0" {
		return fmt.Errorf("%s pages beside the window are changed, %s pages after its end", beside, after)
	}
	return nil
}

// hoard attaches, listens and connects within its node for as long as that works.
func hoard(_ *testing.T, socket string, in *bufio.Reader, _ []string) {
	held := 0
	for began := time.Now(); time.Since(began) < 8*time.Second; {
		ctx, cancel := during(time.Second) // a daemon without descriptors does not answer
		s, err := client.Dial(ctx, socket)
		cancel()
		if err != nil {
			break
		}
		held += 1 + hoardConns(s)
	}
	fmt.Println("held", held)
	awaitLine(in)
}

// hoardConns makes connections of one session with itself.
func hoardConns(s attach.Session) (held int) {
	ctx, cancel := during(2 * time.Second)
	defer cancel()
	l, err := s.Open()
	if err != nil {
		return 0
	}
	port, err := l.Bind(0)
	if err != nil || l.Listen(16) != nil {
		return 0
	}
	for ; held < 2048; held += 2 {
		ep, err := s.Open()
		if err != nil {
			return held
		}
		done := make(chan error, 1)
		go func() { // ends with ctx
			_, err := ep.Connect(ctx, addr.Addr{Node: s.Self().Incarnation.Node, Port: port})
			done <- err
		}()
		if _, _, err := l.Accept(ctx); err != nil {
			return held
		}
		if <-done != nil {
			return held
		}
	}
	return held
}

// attackDescriptors: F14. The descriptors of one user leave enough for others, for the
// administrator and for the disk.
func attackDescriptors(a *arena) error {
	at := a.f.honest()[1]
	c, err := a.local("hoard", attackerUID, at)
	if err != nil {
		return err
	}
	held, err := c.expect("held")
	if err != nil {
		return err
	}
	open := at.usage().Descriptors
	a.note("one user holds %s sessions and connection ends; %s has %d of %d descriptors open", held, at.name, open, nofile)
	var errs []error
	if open > nofile-64 {
		errs = append(errs, fmt.Errorf("one user took %d of %d descriptors", open, nofile))
	}
	if _, err := at.status(); err != nil {
		errs = append(errs, fmt.Errorf("the administrator: %w", err))
	}
	ctx, cancel := during(5 * time.Second)
	defer cancel()
	if err := useNode(ctx, at); err != nil {
		errs = append(errs, fmt.Errorf("another user: %w", err))
	}
	return errors.Join(errs...)
}

// useNode attaches and connects to the host's application.
func useNode(ctx context.Context, at *machine) error {
	n, err := fabric.Attach(ctx, at.socket())
	if err != nil {
		return err
	}
	defer n.Close()
	conn, err := n.DialAddr(ctx, fabric.Addr{Node: addr.Host, Port: talkPort})
	if err != nil {
		return err
	}
	return conn.Close()
}

// attackReadOnlyWindow: F15. The applications are those of TestWindowForReadingOnly,
// both of one user, as in containers that share it.
func attackReadOnlyWindow(a *arena) error {
	at := a.f.honest()[1]
	owner, err := a.child("TestAsOwnerOfAWindow", ownerUID, ownsWindow+"="+at.socket())
	if err != nil {
		return err
	}
	window, err := owner.expect("window ")
	if err != nil {
		return err
	}
	reader, err := a.child("TestAsReaderOfAWindow", ownerUID, wantsWindow+"="+at.socket(), fmt.Sprintf("%s=%s %d", windowAt, window, owner.cmd.Process.Pid))
	if err != nil {
		return err
	}
	var through []string
	for {
		line, err := reader.expect("")
		if err != nil {
			return err
		}
		if what, ok := strings.CutPrefix(line, "through: "); ok && (strings.HasPrefix(what, "map") || strings.HasPrefix(what, "write")) {
			through = append(through, what)
		}
		if strings.HasPrefix(line, attacked) || strings.HasPrefix(line, "FAIL") {
			break
		}
	}
	if len(through) > 0 {
		return fmt.Errorf("an application of the same user can %s", strings.Join(through, ", "))
	}
	a.note("an application of the same user can neither write to a read-only window nor map it for writing")
	return nil
}
