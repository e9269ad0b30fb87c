package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// TestMain is also the application, or the node, that tests start and kill.
func TestMain(m *testing.M) {
	if path := os.Getenv("ATTACH_TEST_APPLICATION"); path != "" {
		if err := application(path); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv("ATTACH_TEST_WRITER"); path != "" {
		if err := writer(path); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv("ATTACH_TEST_HOG"); path != "" {
		if err := hog(path); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv("ATTACH_TEST_SCRIBBLER"); path != "" {
		if err := scribbler(path); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv("ATTACH_TEST_NODE"); path != "" {
		if err := node(path); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("ATTACH_TEST_SPIN") != "" {
		fmt.Println("processors", runtime.GOMAXPROCS(0))
		fmt.Println("looks", tuning{spin: -1}.spinner().most)
		return
	}
	if name := os.Getenv("ATTACH_TEST_WAKES"); name != "" {
		if err := answerWakings(name); !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		return
	}
	if path := os.Getenv("ATTACH_TEST_POOR"); path != "" {
		if err := poor(path); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv("ATTACH_TEST_ECHO"); path != "" {
		if err := echo(path, os.Getenv("ATTACH_TEST_STEP")); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// echo attaches to path, prints the port at which it listens, or connects to the port that it
// reads, and sends back received bytes. At the step of a shared-memory path it reports that and
// waits to be killed.
func echo(path, step string) error {
	ctx := context.Background()
	sess, err := Dial(ctx, path)
	if err != nil {
		return err
	}
	stop := func(at string) {
		if at == step {
			fmt.Println("step", 1)
			select {}
		}
	}
	sess.(*session).step.Store(&stop)
	ep, err := sess.Open()
	if err != nil {
		return err
	}
	if os.Getenv("ATTACH_TEST_ROLE") == "connects" {
		var port addr.Port
		fmt.Scanln(&port)
		_, err = ep.Connect(ctx, addr.Addr{Node: 3, Port: port})
	} else {
		ep, err = acceptOne(ctx, ep)
	}
	ends := os.Getenv("ATTACH_TEST_ENDS") != ""
	buf := make([]byte, 64<<10)
	for round := 0; err == nil; round++ {
		var n int
		if n, err = ep.Recv(ctx, buf); err == nil {
			_, err = ep.Send(ctx, buf[:n])
		}
		if ends && through(ep) && round > 100 {
			return ep.Close()
		}
	}
	return err
}

// acceptOne listens, prints its port, and accepts one connection.
func acceptOne(ctx context.Context, l attach.Endpoint) (attach.Endpoint, error) {
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(1)
	}
	if err != nil {
		return nil, err
	}
	fmt.Println("port", port)
	ep, _, err := l.Accept(ctx)
	return ep, err
}

// application attaches to path, listens and prints its port, connects to itself, registers memory,
// accepts every connect and prints the number of bytes it has sent to it; then it waits to be
// killed.
func application(path string) error {
	ctx := context.Background()
	c, err := Dial(ctx, path)
	if err != nil {
		return err
	}
	l, err := c.Open()
	if err != nil {
		return err
	}
	port, err := l.Bind(0)
	if err != nil {
		return err
	}
	if err := l.Listen(8); err != nil {
		return err
	}
	fmt.Println("port", port)
	go func() { // a connection to itself; its other end is accepted like all others
		ep, err := c.Open()
		if err == nil {
			ep.Connect(ctx, addr.Addr{Node: 3, Port: port})
		}
	}()
	for {
		ep, _, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		mem, err := c.Alloc(64 << 10)
		if err != nil {
			return err
		}
		off, err := ep.Register(mem.Bytes(), 0, rma.ProtRead|rma.ProtWrite, 0)
		if err != nil {
			return err
		}
		ep.Send(ctx, []byte("last message"))
		fmt.Println("window", off)
		c.Watch(func(attach.Event) {})
	}
}

// A child is a running application.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
	in  io.Writer
}

// start starts this program as an application of s, in the role that env selects.
func start(t testing.TB, s *service, env ...string) *child {
	t.Helper()
	if len(env) == 0 {
		env = []string{"ATTACH_TEST_APPLICATION=" + s.path}
	}
	return startAs(t, nil, env...)
}

// apart makes a process that shares no process IDs, no System V IPC and no mounts
// with this one, as one in another container.
func apart() *syscall.SysProcAttr {
	one := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
	}
	return &syscall.SysProcAttr{UidMappings: one(os.Getuid()), GidMappings: one(os.Getgid()),
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNS}
}

// startAs starts this program with attributes.
func startAs(t testing.TB, attr *syscall.SysProcAttr, env ...string) *child {
	t.Helper()
	return startProgram(t, os.Args[0], attr, env...)
}

// startProgram starts a program that is this one, or like it.
func startProgram(t testing.TB, program string, attr *syscall.SysProcAttr, env ...string) *child {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, attr
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
	c := &child{cmd, bufio.NewReader(out), in}
	t.Cleanup(c.kill)
	return c
}

// say writes a number to the child.
func (c *child) say(t testing.TB, n any) {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, n); err != nil {
		t.Fatal(err)
	}
}

func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// number reads a line "name n".
func (c *child) number(t testing.TB, name string) (n int64) {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, name+" %d\n", &n)
	}
	if err != nil {
		t.Fatalf("application says %q (%v), want %q and a number", line, err, name)
	}
	return n
}

// usage counts the resources that killed applications must not leave behind.
func usage(t testing.TB) (fds, goroutines, memory int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return descriptors(t), runtime.NumGoroutine(), strings.Count(string(maps), "memfd:")
}

func TestKilledApplicationsLeaveNothing(t *testing.T) {
	s := serve(t, nil)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	fds, goroutines, memory := usage(t)
	const rounds, atOnce = 12, 4
	for range rounds {
		var kids []*child
		for range atOnce {
			kids = append(kids, start(t, s))
		}
		for _, k := range kids {
			switch r.IntN(3) {
			case 0: // in the middle of attaching
				time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond)
			case 1:
				k.number(t, "port")
			case 2:
				k.number(t, "port")
				k.number(t, "window")
			}
			k.kill()
		}
	}
	eventually(t, "everything is as before", func() bool {
		a, b, c := s.node.held()
		f, g, m := usage(t)
		return a == 0 && b == 0 && c == 0 && f <= fds && g <= goroutines && m <= memory
	})
}

func TestPeersSeeAnApplicationDie(t *testing.T) {
	s := serve(t, nil)
	k := start(t, s)
	port := addr.Port(k.number(t, "port"))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := s.dial(t)
	ep := must(c.Open())(t)
	if _, err := ep.Connect(ctx, addr.Addr{Node: 3, Port: port}); err != nil {
		t.Fatal(err)
	}
	k.number(t, "window")
	off := k.number(t, "window")
	m := must(ep.Mmap(off, 4096, rma.ProtRead|rma.ProtWrite))(t)
	defer m.Close()
	m.Bytes()[0] = 5
	k.kill()
	got, buf := []byte(nil), make([]byte, 3)
	for {
		n, err := ep.Recv(ctx, buf)
		got = append(got, buf[:n]...)
		if err != nil {
			check(t, "Recv after the death", err, status.Reset)
			break
		}
	}
	if !bytes.Equal(got, []byte("last message")) {
		t.Errorf("%q arrived, want what was sent before the death", got)
	}
	check(t, "VWriteTo after the death", ep.VWriteTo(buf, off, rma.Sync), status.Reset)
	if m.Bytes()[0] != 5 {
		t.Error("the mapping of a dead process's memory is gone")
	}
	if _, err := ep.Connect(ctx, addr.Addr{Node: 3, Port: port}); err == nil {
		t.Error("Connect on the reset endpoint succeeds")
	}
}

// TestPeerDiesAtEveryStepOfAShmPath kills the other application at each step of setting up a
// shared-memory path, and in the middle of its traffic: the calls here end with a reset, promptly,
// after a part of the sent bytes, and no resource is left. It does so in the namespaces of this
// process and in others.
func TestPeerDiesAtEveryStepOfAShmPath(t *testing.T) {
	for _, role := range roles {
		t.Run("which "+role, func(t *testing.T) { peerDies(t, role, nil) })
		t.Run("which "+role+" in other namespaces", func(t *testing.T) { peerDies(t, role, apart()) })
	}
}

func peerDies(t *testing.T, role string, attr *syscall.SysProcAttr) {
	s := serve(t, nil)
	sess := s.dial(t)
	must(sess.Open())(t).Close() // all that serves the session is there with its first answer
	fds, goroutines, memory := usage(t)
	var took []time.Duration
	steps := []string{"asking", "memory", "mapped", "doorbell", "made", "installed", "switched", "", "", "", ""}
	for round, step := range steps {
		k := startAs(t, attr, "ATTACH_TEST_ECHO="+s.path, "ATTACH_TEST_ROLE="+role, "ATTACH_TEST_STEP="+step)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		ep := meet(t, ctx, sess, role, k)
		var wg sync.WaitGroup
		wg.Go(func() { flood(t, ctx, ep) })
		got := make(chan struct{}, 1)
		wg.Go(func() { drain(t, ctx, ep, got) })
		if step != "" {
			k.number(t, "step")
		} else {
			talked(t, ep, got, round)
		}
		ended, killed := endOf(&wg), time.Now()
		k.kill()
		took = append(took, (<-ended).Sub(killed))
		cancel()
		check(t, "Close", ep.Close(), status.OK)
	}
	prompt(t, took)
	eventually(t, "everything is as before", func() bool {
		f, g, m := usage(t)
		return f <= fds && g <= goroutines && m <= memory
	})
}

// talked waits until the peer has sent some, through a shared-memory path.
func talked(t *testing.T, ep attach.Endpoint, got chan struct{}, more int) {
	t.Helper()
	for range more {
		<-got
	}
	eventually(t, "the peer talks through the shared-memory path", func() bool { return through(ep) })
	<-got
}

// flood sends bytes that count until the connection ends.
func flood(t *testing.T, ctx context.Context, ep attach.Endpoint) {
	buf := make([]byte, 777)
	for at, round := 0, 0; ; round++ {
		p := buf[:len(buf)-round%2*740] // in a slot, and in the data area
		for i := range p {
			p[i] = byte(at + i)
		}
		n, err := ep.Send(ctx, p)
		if at += n; err != nil {
			check(t, "Send", err, status.Reset)
			return
		}
	}
}

// drain receives them, and reports that to got.
func drain(t *testing.T, ctx context.Context, ep attach.Endpoint, got chan struct{}) {
	buf := make([]byte, 5000)
	for at := 0; ; {
		n, err := ep.Recv(ctx, buf)
		for i, c := range buf[:n] {
			if c != byte(at+i) {
				t.Errorf("byte %d is %d, want %d", at+i, c, byte(at+i))
				return
			}
		}
		select {
		case got <- struct{}{}:
		default:
		}
		if at += n; err != nil {
			check(t, "Recv", err, status.Reset)
			return
		}
	}
}

// RMA needs no action of the process that owns the memory.
func TestRMAIntoAStoppedApplication(t *testing.T) {
	s := serve(t, nil)
	k := start(t, s)
	port := addr.Port(k.number(t, "port"))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := s.dial(t)
	ep := must(c.Open())(t)
	if _, err := ep.Connect(ctx, addr.Addr{Node: 3, Port: port}); err != nil {
		t.Fatal(err)
	}
	k.number(t, "window")
	off := k.number(t, "window")
	if err := k.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	check(t, "VWriteTo", ep.VWriteTo([]byte("while it sleeps"), off+4096, rma.Sync), status.OK)
	got := make([]byte, 15)
	check(t, "VReadFrom", ep.VReadFrom(got, off+4096, 0), status.OK)
	if string(got) != "while it sleeps" {
		t.Errorf("window has %q", got)
	}
	// Messages to it wait, and block no other application.
	n, err := 0, error(nil)
	for full := make([]byte, 1<<16); err == nil; {
		short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
		var m int
		m, err = ep.Send(short, full)
		stop()
		n += m
	}
	check(t, "Send to a stopped application", err, status.TimedOut)
	if n == 0 || n > 8<<20 {
		t.Errorf("%d bytes are kept for an application that does not read, want some and a bound", n)
	}
	a, b := connect(t, c, s.dial(t))
	if _, err := a.Send(ctx, []byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := b.Recv(ctx, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func TestApplicationLearnsThatItsNodeEnds(t *testing.T) {
	s := serve(t, nil)
	k := start(t, s)
	k.number(t, "port")
	s.stop()
	rest, err := io.ReadAll(k.out)
	if err != nil || !bytes.Contains(rest, []byte("the node is gone")) {
		t.Errorf("application ends with %q, %v, want it to say that the node is gone", rest, err)
	}
}

// node serves a fake node on path until its process is killed.
func node(path string) error {
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	s, err := server.NewServer(context.Background(), server.Options{Log: zerolog.Nop(), NewSession: newFakeNode().NewSession})
	if err != nil {
		return err
	}
	fmt.Println("ready 1")
	return s.Serve(ln)
}

func TestKilledNodeEndsBlockedCalls(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	s := &service{path: filepath.Join(t.TempDir(), "s")}
	k := start(t, s, "ATTACH_TEST_NODE="+s.path)
	k.number(t, "ready")
	c, d := s.dial(t), s.dial(t)
	a, b := connect(t, c, d)
	l := must(c.Open())(t)
	must(l.Bind(0))(t)
	l.Listen(1)
	mem := must(d.Alloc(rma.PageSize))(t)
	off := must(b.Register(mem.Bytes(), 0, rma.ProtRead|rma.ProtWrite, 0))(t)
	mapped := must(a.Mmap(off, rma.PageSize, rma.ProtRead|rma.ProtWrite))(t)
	results := make(chan error, 3)
	go func() { _, _, err := l.Accept(context.Background()); results <- err }()
	go func() { _, err := a.Recv(context.Background(), make([]byte, 1)); results <- err }()
	go func() { _, err := a.Send(context.Background(), make([]byte, 8<<20)); results <- err }()
	waitRequests(t, c, 1)
	k.kill()
	for range 3 {
		select {
		case err := <-results:
			check(t, "a blocked call", err, status.Reset)
		case <-time.After(limit):
			t.Fatal("a blocked call has not returned")
		}
	}
	<-c.Done()
	_, err := c.Open()
	check(t, "Open", err, status.NoDevice)
	_, err = a.TrySend([]byte("x"))
	check(t, "TrySend", err, status.Reset)
	if got := l.Ready(); got != attach.PollErr|attach.PollHup {
		t.Errorf("Ready = %#x, want PollErr and PollHup", got)
	}
	if mapped.Bytes()[5] = 7; mem.Bytes()[5] != 7 {
		t.Error("mapping and window are not the same memory any more")
	}
	mapped.Close()
	mem.Close()
}
