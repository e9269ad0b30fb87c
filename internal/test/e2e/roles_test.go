package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
)

// roles are the applications that this binary can run as. Each gets the
// command line and prints its results, one line each, on standard output.
var roles = map[string]func(args []string) error{
	"victim":      victim,
	"target":      target,
	"sink":        sink,
	"source":      source,
	"torrent":     torrent,
	"misuser":     misuser,
	"grpc-client": grpcClient,
}

// Exit codes of an application.
const (
	roleDone   = 0
	roleFailed = 3
)

func runRole(name string) int {
	if err := roles[name](os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return roleFailed
	}
	return roleDone
}

// anchorPort is where anchors listen.
const anchorPort fabric.Port = 2050

const (
	windowSize = 64 << 10
	wordOffset = windowSize - 8 // of the word that signals are stored in
)

// pattern returns n bytes that show where they belong.
func pattern(tag byte, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = tag ^ byte(i) ^ byte(i>>8)
	}
	return p
}

// openWindow registers new memory and sends the peer its offset.
func openWindow(ctx context.Context, n *fabric.Node, ep *fabric.Endpoint) (*fabric.Memory, int64, error) {
	mem, err := n.Alloc(windowSize)
	if err != nil {
		return nil, 0, err
	}
	off, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err == nil {
		_, err = ep.Send(ctx, binary.BigEndian.AppendUint64(nil, uint64(off)))
	}
	if err != nil {
		mem.Close()
		return nil, 0, err
	}
	return mem, off, nil
}

// peerWindow receives the offset that openWindow sent.
func peerWindow(ctx context.Context, ep *fabric.Endpoint) (int64, error) {
	var b [8]byte
	_, err := ep.Recv(ctx, b[:])
	return int64(binary.BigEndian.Uint64(b[:])), err
}

// target is an application that others write to: it accepts one connection,
// opens a window, and on "check" compares the window with the expected content.
func target(args []string) error {
	ctx := context.Background()
	n, err := fabric.Attach(ctx, args[0])
	if err != nil {
		return err
	}
	defer n.Close()
	l, err := n.Listen(0)
	if err != nil {
		return err
	}
	fmt.Println("listening", l.Addr().(fabric.Addr).Port)
	conn, err := l.AcceptConn(ctx)
	if err != nil {
		return err
	}
	mem, _, err := openWindow(ctx, n, conn.Endpoint())
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		want := pattern('w', wordOffset)
		switch got := mem.Bytes(); {
		case !bytes.Equal(got[:wordOffset], want):
			fmt.Println("wrong bytes")
		default:
			fmt.Printf("holds %#x\n", fabric.LoadUint64(got[wordOffset:]))
		}
	}
	return nil
}

// sink is an application that accepts one connection and reads it to its end
// when it is asked to.
func sink(args []string) error {
	ctx := context.Background()
	n, err := fabric.Attach(ctx, args[0])
	if err != nil {
		return err
	}
	defer n.Close()
	l, err := n.Listen(0)
	if err != nil {
		return err
	}
	fmt.Println("listening", l.Addr().(fabric.Addr).Port)
	conn, err := l.AcceptConn(ctx)
	if err != nil {
		return err
	}
	fmt.Println("accepted")
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	var got int64
	sum := uint32(0)
	b := make([]byte, 64<<10)
	for {
		m, err := conn.Read(b)
		for _, c := range b[:m] {
			sum = sum*31 + uint32(c)
		}
		got += int64(m)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Printf("received %d %d\n", got, sum)
	in.Scan() // until the test says so
	return nil
}

// A victim's incarnation, in steps. It is killed during one of them.
type incarnation struct {
	ctx    context.Context
	socket string
	anchor fabric.Addr

	node     *fabric.Node
	listener *fabric.Listener
	ep       *fabric.Endpoint // connected to the anchor
	mem      *fabric.Memory
	off      int64 // of our window
	peer     int64 // offset of the anchor's
}

// step is one thing that a victim does.
type step struct {
	name string
	do   func(*incarnation) error
}

// victimSteps are a victim's incarnation in order.
var victimSteps = []step{
	{"attach", func(v *incarnation) (err error) { v.node, err = fabric.Attach(v.ctx, v.socket); return }},
	{"open", func(v *incarnation) (err error) { v.ep, err = v.node.Open(); return }},
	{"bind", func(v *incarnation) error { _, err := v.ep.Bind(0); return err }},
	{"listen", func(v *incarnation) (err error) { v.listener, err = v.node.Listen(0); return }},
	{"connect", func(v *incarnation) error { _, err := v.ep.Connect(v.ctx, v.anchor); return err }},
	{"send", (*incarnation).hello},
	{"recv", func(v *incarnation) (err error) { v.peer, err = peerWindow(v.ctx, v.ep); return }},
	{"accept", func(v *incarnation) error { _, err := v.accept(); return err }},
	{"register", (*incarnation).register},
	{"vwriteto", func(v *incarnation) error { return v.ep.VWriteTo(pattern('v', 9000), v.peer+13, 0) }},
	{"writeto", func(v *incarnation) error { return v.ep.WriteTo(v.off, windowSize, v.peer, fabric.Ordered) }},
	{"readfrom", func(v *incarnation) error { return v.ep.ReadFrom(v.off, windowSize, v.peer, fabric.Sync) }},
	{"vreadfrom", func(v *incarnation) error { return v.ep.VReadFrom(make([]byte, 20000), v.peer+1, fabric.Sync) }},
	{"atomic", func(v *incarnation) error { _, err := v.ep.FetchAdd64(v.ctx, v.peer+wordOffset, 1); return err }},
	{"fence_signal", (*incarnation).signal},
	{"fence_wait", (*incarnation).fence},
	{"mmap", (*incarnation).mmap},
	{"both ends", (*incarnation).bothEnds},
	{"flood", (*incarnation).flood},
	{"unregister", func(v *incarnation) error { return v.ep.Unregister(v.off, windowSize) }},
	{"close", func(v *incarnation) error { return v.ep.Close() }},
	{"detach", func(v *incarnation) error { return v.node.Close() }},
}

// victim lives and is killed: by itself, some time after it began the step that
// the command line names, or by the test that started it.
func victim(args []string) error {
	anchor, err := addr.Parse(args[1])
	if err != nil {
		return err
	}
	doomed, err := strconv.Atoi(args[2]) // a step, or none of them
	if err != nil {
		return err
	}
	after, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	v := &incarnation{ctx: context.Background(), socket: args[0], anchor: anchor}
	for i, s := range victimSteps {
		if i == doomed {
			go dieIn(after)
		}
		if err := s.do(v); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	select {} // until it is killed
}

// dieIn kills this process after d. It spins: no timer is that fine.
func dieIn(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// An incarnation's name is its process: a connecting anchor sends the name that it wants. A port
// is free again at once when its holder dies, so that the anchor, late, may
// connect to the next victim instead of the one that asked for it.
const nameSize = 8

func (v *incarnation) name() []byte { return binary.BigEndian.AppendUint64(nil, uint64(os.Getpid())) }

// hello sends our name and our port to the anchor.
func (v *incarnation) hello() error {
	port := v.listener.Addr().(fabric.Addr).Port
	_, err := v.ep.Send(v.ctx, binary.BigEndian.AppendUint16(v.name(), uint16(port)))
	return err
}

// accept returns the next connection that wants us. The anchor makes one when
// it has read our hello.
func (v *incarnation) accept() (*fabric.Conn, error) {
	name := make([]byte, nameSize)
	for {
		c, err := v.listener.AcceptConn(v.ctx)
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, name); err == nil && bytes.Equal(name, v.name()) {
			return c, nil
		}
		if err := c.Close(); err != nil {
			return nil, err
		}
	}
}

func (v *incarnation) register() (err error) {
	if v.mem, err = v.node.Alloc(windowSize); err == nil {
		v.off, err = v.ep.Register(v.mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	}
	return err
}

func (v *incarnation) signal() error {
	return v.ep.FenceSignal(fabric.Signal{
		By: fabric.InitSelf, Where: fabric.SignalLocal | fabric.SignalRemote,
		LocalOffset: v.off + wordOffset, LocalValue: 1, RemoteOffset: v.peer + wordOffset, RemoteValue: 2,
	})
}

func (v *incarnation) fence() error {
	if err := v.ep.VWriteTo(pattern('f', 30000), v.peer, 0); err != nil {
		return err
	}
	m, err := v.ep.FenceMark(fabric.InitSelf)
	if err != nil {
		return err
	}
	return v.ep.FenceWait(v.ctx, m)
}

// mmap maps the anchor's window, which only works on one node.
func (v *incarnation) mmap() error {
	m, err := v.ep.Mmap(v.peer, windowSize, fabric.ProtRead|fabric.ProtWrite)
	switch {
	case v.anchor.Node == v.node.ID() && err != nil:
		return err
	case v.anchor.Node == v.node.ID():
		m.Bytes()[0]++
	case !errors.Is(err, syscall.EOPNOTSUPP):
		return fmt.Errorf("across nodes: %v, want EOPNOTSUPP", err)
	}
	return nil
}

// bothEnds connects to itself, so that both ends die at once.
func (v *incarnation) bothEnds() error {
	dialed := make(chan error, 1)
	go func() {
		c, err := v.node.DialAddr(v.ctx, v.listener.Addr().(fabric.Addr))
		if err == nil {
			_, err = c.Write(append(v.name(), pattern('b', 100_000)...))
		}
		dialed <- err
	}()
	c, err := v.accept()
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 100_000)); err != nil {
		return err
	}
	return <-dialed
}

// flood sends without reading the echo until nothing fits any more.
func (v *incarnation) flood() error {
	block := pattern('s', 32<<10)
	for idle := 0; idle < 3; {
		n, err := v.ep.TrySend(block)
		if err != nil {
			return err
		}
		if n == 0 {
			idle++
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// An anchor is the application that victims talk to. It lives in the test.
type anchor struct {
	node *fabric.Node
}

// serve serves every connection, until the listener is closed. It returns
// when all of them have ended.
func (a *anchor) serve(l *fabric.Listener, failed func(error)) {
	var talks sync.WaitGroup
	defer talks.Wait()
	for {
		conn, err := l.AcceptConn(context.Background())
		if err != nil {
			return
		}
		talks.Go(func() {
			if err := a.talk(conn); err != nil {
				failed(err)
			}
		})
	}
}

// talk opens a window for one victim, connects to the victim's port, and echoes
// its messages, until it dies.
func (a *anchor) talk(conn *fabric.Conn) error {
	defer conn.Close()
	var hello [nameSize + 2]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return died(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	mem, _, err := openWindow(ctx, a.node, conn.Endpoint())
	if err != nil {
		return died(err)
	}
	defer mem.Close()
	back, err := a.node.DialAddr(ctx, fabric.Addr{
		Node: conn.RemoteAddr().(fabric.Addr).Node,
		Port: fabric.Port(binary.BigEndian.Uint16(hello[nameSize:])),
	})
	if err != nil {
		return died(err)
	}
	defer back.Close()
	if _, err := back.Write(hello[:nameSize]); err != nil {
		return died(err)
	}
	_, err = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
	return died(err)
}

// died returns nil for the errors that a peer's death may cause.
func died(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return err
}

// doom chooses where and how a victim dies: in which step, and how long after
// its beginning. A step behind the last is one that never comes: then the test that
// started it kills it.
func doom(r *rand.Rand) (step int, after time.Duration) {
	scales := []time.Duration{0, 30 * time.Microsecond, 300 * time.Microsecond, 2 * time.Millisecond}
	after = scales[r.IntN(len(scales))]
	if after > 0 {
		after = time.Duration(r.Int64N(int64(after)))
	}
	return r.IntN(len(victimSteps) + len(victimSteps)/8), after
}
