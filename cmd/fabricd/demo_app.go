package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/wait"
)

// Constants on which the two applications of the demo agree.
const (
	demoPort     fabric.Port = 2050
	demoFirst                = 3 // messages that go over the link: a path is requested after the fourth
	demoMessages             = 100
	demoWindow               = 1 << 20        // bytes of each end's window
	demoData                 = demoWindow / 2 // bytes that are written and read
	demoWord                 = demoWindow - 8 // offset in the window of the word that is polled
	aliceDone    uint64      = 0xA11CE        // alice's signal
	bobDone      uint64      = 0xB0B          // bob's signal
)

// A line is a report of an application of the demo, one JSON object per line.
type line struct {
	Say    string    `json:"say"`
	At     time.Time `json:"at"`
	Detail string    `json:"detail,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// demoAppCommand is the command that the demo starts for each of its applications.
// It is hidden from users.
func (a *app) demoAppCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use: "demo-app ROLE", Hidden: true, Args: oneArgument("a role"),
		Short: "One application of the demo", Example: "  fabricd demo-app alice --socket S",
	}
	cmd.Flags().StringVar(&socket, "socket", "", "socket of the fabricd to attach to")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		roles := map[string]func(context.Context, *demoApp) error{"alice": alice, "bob": bob, "bob-again": bobAgain, "bob-banned": bobBanned,
			"streamer": streamer, "reader": reader, "witness": witness, "bystander": bystander}
		play, ok := roles[args[0]]
		if !ok {
			return usagef("role: %q: want alice, bob, bob-again, bob-banned, streamer, reader, witness or bystander", args[0])
		}
		return runDemoApp(cmd.Context(), socket, os.Stdin, a.stdout, play)
	}
	return cmd
}

// A demoApp is one application of the demo: a program that attaches to its
// machine's fabricd and uses the public API only.
type demoApp struct {
	node     *fabric.Node
	commands chan string // lines of standard input; closed at its end

	mu  sync.Mutex // guards out
	out io.Writer
}

// runDemoApp attaches and plays a role. The end of in ends it: its
// parent is gone.
func runDemoApp(ctx context.Context, socket string, in io.Reader, out io.Writer, play func(context.Context, *demoApp) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &demoApp{commands: make(chan string, 8), out: out} // the demo gives one command at a time
	go func() {                                             // ends with the process: a read of standard input cannot be interrupted
		defer close(d.commands)
		defer cancel() // first: an operation that the end of the commands cancels has not failed
		for lines := bufio.NewScanner(in); lines.Scan(); {
			d.commands <- lines.Text()
		}
	}()
	n, err := fabric.Attach(ctx, socket)
	if err != nil {
		d.say("attached", "", err)
		return err
	}
	defer n.Close()
	d.node = n
	defer n.OnEvent(func(ev fabric.Event) {
		kind := "node-added"
		if ev.Kind == fabric.NodeRemoved {
			kind = "node-removed"
		}
		d.say(kind, ev.String(), nil)
	})()
	d.say("attached", n.Incarnation().String(), nil)
	err = play(ctx, d)
	if err != nil && ctx.Err() == nil {
		d.say("failed", "", err)
		return err
	}
	return nil
}

// say sends the demo a line.
func (d *demoApp) say(what, detail string, err error) {
	l := line{Say: what, At: time.Now(), Detail: detail}
	if err != nil {
		l.Error = err.Error()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// The demo notices by itself when no more lines arrive.
	_ = json.NewEncoder(d.out).Encode(l)
}

// command waits for the demo's next command.
func (d *demoApp) command(ctx context.Context) (string, error) {
	select {
	case c, ok := <-d.commands:
		if !ok {
			return "", io.EOF
		}
		return c, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// dial waits for "connect NODE:PORT" and connects there.
func (d *demoApp) dial(ctx context.Context) (*fabric.Conn, error) {
	c, err := d.command(ctx)
	if err != nil {
		return nil, err
	}
	to, ok := strings.CutPrefix(c, "connect ")
	if !ok {
		return nil, fmt.Errorf("command %q: want connect", c)
	}
	dst, err := addr.Parse(to)
	if err != nil {
		return nil, err
	}
	conn, err := d.node.DialAddr(ctx, dst)
	if err == nil {
		d.say("connected", fmt.Sprintf("%v to %v", conn.LocalAddr(), conn.RemoteAddr()), nil)
	}
	return conn, err
}

// wait waits for the demo's next command, whatever it is.
func (d *demoApp) wait(ctx context.Context) error {
	_, err := d.command(ctx)
	return err
}

// alice connects to bob again and again: before and after the loss of his node,
// before and after its ban.
func alice(ctx context.Context, d *demoApp) error {
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	talk := func(n int) task { return func(context.Context) error { return d.talk(conn, n) } }
	return inOrder(ctx,
		talk(demoFirst),
		talk(demoMessages),
		d.wait, // until there is a path
		talk(demoMessages),
		func(ctx context.Context) error { return d.writeFirst(ctx, conn) },
		func(ctx context.Context) error { return d.survive(ctx, conn) },
		d.greet,
		d.talkOn,
		d.greet,
		d.wait, // attached, to see the events to come
	)
}

// greet connects on command, exchanges one message and closes.
func (d *demoApp) greet(ctx context.Context) error {
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(d.talk(conn, 1), conn.Close())
}

// talkOn connects on command, and exchanges messages until the connection is cut off.
func (d *demoApp) talkOn(ctx context.Context) error {
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for n := 0; ; n++ {
		if err := exchange(conn, pattern(byte(n), 64)); err != nil {
			return d.cutOff(n, err)
		}
		if n == demoMessages {
			d.say("talking", fmt.Sprintf("%s until now", plural(n, "message")), nil)
		}
		if !wait.For(ctx.Done(), time.Millisecond) {
			return ctx.Err()
		}
	}
}

// witness answers a bystander until the commands end.
func witness(ctx context.Context, d *demoApp) error {
	return d.accept(ctx, func(conn *fabric.Conn) error {
		_, _ = echo(conn, math.MaxInt) // its errors are the bystander's too
		return d.wait(ctx)
	})
}

// bystander connects on command, and exchanges messages until the next one.
func bystander(ctx context.Context, d *demoApp) error {
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var longest time.Duration
	for len(d.commands) == 0 {
		began := time.Now()
		if err := exchange(conn, []byte("still there?")); err != nil {
			return err
		}
		longest = max(longest, time.Since(began))
		if !wait.For(ctx.Done(), time.Millisecond) {
			return ctx.Err()
		}
	}
	d.say("unharmed", fmt.Sprintf("their slowest message meanwhile took %v", longest.Round(10*time.Microsecond)), nil)
	return inOrder(ctx, d.wait, d.wait)
}

// cutOff reports that a connection ended after n messages. Only the loss of the
// peer's node may end it.
func (d *demoApp) cutOff(n int, err error) error {
	if !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("after %s: got %w, want ECONNRESET", plural(n, "message"), err)
	}
	d.say("cut-off", fmt.Sprintf("after %s: %v", plural(n, "message"), err), nil)
	return nil
}

// bobBanned answers on one connection until it is cut off. On the command to listen it
// then accepts another one, as bobAgain does.
func bobBanned(ctx context.Context, d *demoApp) error {
	err := d.accept(ctx, func(conn *fabric.Conn) error { return d.cutOff(echo(conn, math.MaxInt)) })
	if err != nil {
		return err
	}
	if c, err := d.command(ctx); err != nil || c != "listen" {
		return fmt.Errorf("command %q, %w: want listen", c, err)
	}
	return bobAgain(ctx, d)
}

// bob accepts a connection and does the other half of alice's tasks.
func bob(ctx context.Context, d *demoApp) error {
	return d.accept(ctx, func(conn *fabric.Conn) error {
		if _, err := echo(conn, demoFirst+2*demoMessages); err != nil {
			return err
		}
		if err := d.writeSecond(ctx, conn); err != nil {
			return err
		}
		select {
		case <-d.node.Done():
			d.say("node-gone", "", nil)
		case <-ctx.Done():
		}
		return nil
	})
}

// bobAgain accepts a connection and answers one message.
func bobAgain(ctx context.Context, d *demoApp) error {
	return d.accept(ctx, func(conn *fabric.Conn) error {
		if _, err := echo(conn, 1); err != nil {
			return err
		}
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			return fmt.Errorf("after the peer's close: got %v, want EOF", err)
		}
		d.say("closed", "", nil)
		return nil
	})
}

// accept accepts a connection, which it closes behind use.
func (d *demoApp) accept(ctx context.Context, use func(*fabric.Conn) error) error {
	l, err := d.node.Listen(demoPort)
	if err != nil {
		return err
	}
	d.say("listening", l.Addr().String(), nil)
	conn, err := l.AcceptConn(ctx)
	l.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	d.say("accepted", conn.RemoteAddr().String(), nil)
	return use(conn)
}

// talk sends n messages of growing size, each behind its length, and expects
// each of them back.
func (d *demoApp) talk(conn *fabric.Conn, n int) error {
	bytesSent := 0
	began := time.Now()
	for i := range n {
		msg := pattern(byte(i), 1+i*97)
		if err := exchange(conn, msg); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		bytesSent += len(msg)
	}
	d.say("messages", fmt.Sprintf("%s there and back, %s each way, %v per round trip",
		plural(n, "message"), plural(bytesSent, "byte"), (time.Since(began)/time.Duration(n)).Round(time.Microsecond)), nil)
	return nil
}

// exchange sends a message and expects it back.
func exchange(conn *fabric.Conn, msg []byte) error {
	if err := sendMessage(conn, msg); err != nil {
		return err
	}
	back, err := recvMessage(conn)
	if err == nil && !bytes.Equal(back, msg) {
		err = errors.New("the answer is not what was sent")
	}
	return err
}

// echo answers n messages, and returns how many it has answered.
func echo(conn *fabric.Conn, n int) (int, error) {
	for i := range n {
		msg, err := recvMessage(conn)
		if err == nil {
			err = sendMessage(conn, msg)
		}
		if err != nil {
			return i, fmt.Errorf("message %d: %w", i, err)
		}
	}
	return n, nil
}

func sendMessage(conn *fabric.Conn, msg []byte) error {
	_, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(msg))), msg...))
	return err
}

func recvMessage(conn *fabric.Conn) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > 1<<20 {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(conn, msg)
	return msg, err
}

// pattern returns n bytes that depend on seed and position.
func pattern(seed byte, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = seed + byte(i) + byte(i>>8)
	}
	return p
}

// A window is one end's registered memory and where the peer's begins.
type window struct {
	mem  []byte
	here int64 // offset of mem in our space
	peer int64 // offset of the peer's window in its space
}

// openWindow registers memory and exchanges offsets with the peer.
func (d *demoApp) openWindow(conn *fabric.Conn) (window, error) {
	mem, err := d.node.Alloc(demoWindow)
	if err != nil {
		return window{}, err
	}
	w := window{mem: mem.Bytes()}
	w.here, err = conn.Endpoint().Register(w.mem, 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return window{}, err
	}
	if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(w.here))); err != nil {
		return window{}, err
	}
	var there [8]byte
	if _, err := io.ReadFull(conn, there[:]); err != nil {
		return window{}, err
	}
	w.peer = int64(binary.BigEndian.Uint64(there[:]))
	d.say("window", fmt.Sprintf("%d KiB at %#x", demoWindow>>10, w.here), nil)
	return w, nil
}

// signal stores v in the peer's word when all that we began has completed.
func (w window) signal(conn *fabric.Conn, v uint64) error {
	return conn.Endpoint().FenceSignal(fabric.Signal{
		By: fabric.InitSelf, Where: fabric.SignalRemote,
		RemoteOffset: w.peer + demoWord, RemoteValue: v,
	})
}

// poll waits until our word holds v. After it this process sees all that the peer
// wrote before.
func (w window) poll(ctx context.Context, v uint64) error {
	for fabric.LoadUint64(w.mem[demoWord:]) != v {
		if !wait.For(ctx.Done(), 100*time.Microsecond) {
			return ctx.Err()
		}
	}
	return nil
}

// writeFirst writes into bob's memory, signals, waits for bob's answer and
// reads bob's memory back.
func (d *demoApp) writeFirst(ctx context.Context, conn *fabric.Conn) error {
	w, err := d.openWindow(conn)
	if err != nil {
		return err
	}
	ours := pattern('a', demoData)
	copy(w.mem, ours)
	if err := conn.Endpoint().WriteTo(w.here, demoData, w.peer, 0); err != nil {
		return err
	}
	if err := w.signal(conn, aliceDone); err != nil {
		return err
	}
	d.say("wrote", fmt.Sprintf("%d KiB into the peer's memory, and a signal behind them", demoData>>10), nil)

	if err := w.poll(ctx, bobDone); err != nil {
		return err
	}
	if !bytes.Equal(w.mem[:demoData], pattern('b', demoData)) {
		return errors.New("bob's signal is here, what he wrote is not")
	}
	d.say("saw-signal", fmt.Sprintf("%#x, and all of the peer's %d KiB", bobDone, demoData>>10), nil)

	clear(w.mem[:demoData])
	if err := conn.Endpoint().ReadFrom(w.here, demoData, w.peer, fabric.Sync); err != nil {
		return err
	}
	if !bytes.Equal(w.mem[:demoData], ours) {
		return errors.New("bob's memory does not hold what was written there")
	}
	d.say("read", fmt.Sprintf("%d KiB of the peer's memory", demoData>>10), nil)
	return nil
}

// writeSecond polls for alice's signal, reads her memory, and writes into it.
func (d *demoApp) writeSecond(ctx context.Context, conn *fabric.Conn) error {
	w, err := d.openWindow(conn)
	if err != nil {
		return err
	}
	if err := w.poll(ctx, aliceDone); err != nil {
		return err
	}
	hers := pattern('a', demoData)
	if !bytes.Equal(w.mem[:demoData], hers) {
		return errors.New("alice's signal is here, what she wrote is not")
	}
	d.say("saw-signal", fmt.Sprintf("%#x, and all of the peer's %d KiB", aliceDone, demoData>>10), nil)

	got := make([]byte, demoData)
	if err := conn.Endpoint().VReadFrom(got, w.peer, fabric.Sync); err != nil {
		return err
	}
	if !bytes.Equal(got, hers) {
		return errors.New("alice's memory does not hold what she wrote from it")
	}
	d.say("read", fmt.Sprintf("%d KiB of the peer's memory", demoData>>10), nil)

	if err := conn.Endpoint().VWriteTo(pattern('b', demoData), w.peer, 0); err != nil {
		return err
	}
	mark, err := conn.Endpoint().FenceMark(fabric.InitSelf)
	if err == nil {
		err = conn.Endpoint().FenceWait(ctx, mark)
	}
	if err == nil {
		err = w.signal(conn, bobDone)
	}
	if err == nil {
		d.say("wrote", fmt.Sprintf("%d KiB into the peer's memory, and a signal behind them", demoData>>10), nil)
	}
	return err
}

// survive blocks in a receive until bob's node is lost, and then checks the errors
// of calls towards a lost node.
func (d *demoApp) survive(ctx context.Context, conn *fabric.Conn) error {
	d.say("blocked", "in a receive", nil)
	_, err := conn.Read(make([]byte, 1))
	if !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("blocked receive: got %v, want ECONNRESET", err)
	}
	d.say("reset", err.Error(), nil)
	if _, err := conn.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("send after the loss: got %v, want ECONNRESET", err)
	}
	c, err := d.node.DialAddr(ctx, conn.RemoteAddr().(fabric.Addr))
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("connect to the lost node: got %v, want ENODEV", err)
	}
	d.say("no-device", err.Error(), nil)
	return nil
}
