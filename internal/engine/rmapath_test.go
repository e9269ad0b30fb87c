package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// An initiator is an application's end of an RMA path, which may write anything.
type initiator struct {
	t *testing.T
	*path.Conn
	last uint64
}

// initiates makes the RMA path of ep.
func initiates(t *testing.T, ep attach.NodeEndpoint) *initiator {
	t.Helper()
	key, err := path.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ep.RMAPath(t.Context(), key.Hash(), func() {})
	if err != nil {
		t.Fatal(err)
	}
	return initiatorOf(t, s, key)
}

// initiatorOf makes an initiator of an RMA path's socket.
func initiatorOf(t *testing.T, s attach.PathSocket, key *path.Key) *initiator {
	t.Helper()
	c, err := path.New(t.Context(), s.File, path.Options{Client: s.Client, Plaintext: s.Plaintext, Binding: s.Binding,
		Key: key, Peer: s.Peer, Changed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.Begin(0)
	if _, err := c.Write(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	<-c.Started()
	return &initiator{t: t, Conn: c}
}

// send writes a request and its payload.
func (i *initiator) send(r path.RMARequest, payload []byte) error {
	i.last++
	if r.Number == 0 {
		r.Number = i.last
	}
	_, err := i.Write(context.Background(), append(r.AppendTo(nil), payload...))
	return err
}

// answer reads one answer, and data that follows it.
func (i *initiator) answer() (path.RMAAnswer, []byte, error) {
	var head [path.RMAAnswerLen]byte
	if _, err := io.ReadFull(i, head[:]); err != nil {
		return path.RMAAnswer{}, nil, err
	}
	a, err := path.ParseRMAAnswer(&head)
	if err != nil || a.Kind != path.RMAData {
		return a, nil, err
	}
	data := make([]byte, a.Value)
	_, err = io.ReadFull(i, data)
	return a, data, err
}

func (i *initiator) Read(p []byte) (int, error) { return i.Conn.Read(i.t.Context(), p) }

// refusal asks about n requests from number first on.
func (i *initiator) refusal(first, n uint64) status.Code {
	i.t.Helper()
	if err := i.send(path.RMARequest{Kind: path.RMANop, Flags: path.RMAWantAnswer, Offset: first, Length: n}, nil); err != nil {
		i.t.Fatal(err)
	}
	a, _, err := i.answer()
	if err != nil || a.Number != i.last || a.Bad != 0 {
		i.t.Fatalf("%+v, %v", a, err)
	}
	return status.Code(a.Code)
}

// A farMemory is a connection with an RMA path from end a to b's windows.
type farMemory struct {
	*pathed
	a, b attach.NodeEndpoint
	*initiator
	mem []byte
	off int64
}

func newFarMemory(t *testing.T, from int, size int) *farMemory {
	t.Helper()
	return newFarMemoryBy(t, from, size, nil)
}

// newFarMemoryBy is newFarMemory with a show of newPathed.
func newFarMemoryBy(t *testing.T, from int, size int, show func(p *pathed, far *net.TCPConn)) *farMemory {
	t.Helper()
	f := &farMemory{pathed: newPathed(t, show)}
	x, y := f.pair(0, 1) // node 0 dials the link
	x.Close()
	y.Close()
	f.a, f.b = f.pair(from, 1-from)
	f.mem = alloc(t, size)
	var err error
	if f.off, err = register(f.b, f.mem, 0, rma.ProtRead|rma.ProtWrite, 0); err != nil {
		t.Fatal(err)
	}
	f.initiator = initiates(t, f.a)
	return f
}

// TestAnRMAPathIsJudgedAsTheLinkIs: the target's node decides for each operation, whatever
// its initiator has written, and reports which it has refused.
func TestAnRMAPathIsJudgedAsTheLinkIs(t *testing.T) {
	for from := range 2 {
		f := newFarMemory(t, from, 2*rma.PageSize)
		off := uint64(f.off)
		readable, err := register(f.b, alloc(t, rma.PageSize), 0x10000, rma.ProtRead, rma.MapFixed)
		if err != nil {
			t.Fatal(err)
		}
		for i, tt := range []struct {
			r    path.RMARequest
			want status.Code
		}{
			{path.RMARequest{Kind: path.RMAWrite, Offset: off, Length: 8}, status.OK},
			{path.RMARequest{Kind: path.RMAWrite, Offset: off + 2*rma.PageSize - 4, Length: 4, Flags: path.RMAOrdered}, status.OK},
			{path.RMARequest{Kind: path.RMASignal, Offset: off + 4, Length: 5}, status.OK},
			{path.RMARequest{Kind: path.RMAAtomic, Offset: off + 64, Op: uint8(rma.AtomicAdd), Width: 8, Length: 5}, status.OK},
			{path.RMARequest{Kind: path.RMAWrite, Offset: off + 2*rma.PageSize - 4, Length: 8}, status.NoAddress},
			{path.RMARequest{Kind: path.RMAWrite, Offset: off + 2*rma.PageSize - 4, Length: 200_000}, status.NoAddress},
			{path.RMARequest{Kind: path.RMAWrite, Offset: uint64(readable), Length: 8}, status.Access},
			{path.RMARequest{Kind: path.RMAWrite, Offset: off}, status.Invalid},
			{path.RMARequest{Kind: path.RMAWrite, Offset: math.MaxUint64 - 4, Length: 8}, status.NoAddress},
			{path.RMARequest{Kind: path.RMARead, Offset: off, Length: math.MaxUint64}, status.Invalid},
			{path.RMARequest{Kind: path.RMARead, Offset: off, Length: math.MaxInt64}, status.NoAddress},
			{path.RMARequest{Kind: path.RMARead, Offset: off, Length: 0}, status.Invalid},
			{path.RMARequest{Kind: path.RMAAtomic, Offset: off, Op: 99, Width: 8}, status.Invalid},
			{path.RMARequest{Kind: path.RMAAtomic, Offset: off + 4, Op: uint8(rma.AtomicAdd), Width: 8}, status.Invalid},
			{path.RMARequest{Kind: path.RMAAtomic, Offset: uint64(readable), Op: uint8(rma.AtomicAdd), Width: 8}, status.Access},
			{path.RMARequest{Kind: path.RMASignal, Offset: off, Length: 5, Flags: path.RMABehind}, status.Access}, // as the one before it
			{path.RMARequest{Kind: path.RMASignal, Offset: off, Length: 5}, status.OK},
		} {
			tt.r.Flags |= path.RMAWantAnswer
			var payload []byte
			if tt.r.Kind == path.RMAWrite {
				payload = make([]byte, tt.r.Length)
			}
			if err := f.send(tt.r, payload); err != nil {
				t.Fatal(err)
			}
			a, _, err := f.answer()
			if err != nil || status.Code(a.Code) != tt.want || a.Number != f.last || a.Bad != 0 {
				t.Errorf("%d: %+v: %+v, %v, want %v", i, tt.r, a, err, tt.want)
			}
		}
		for about, want := range map[[2]uint64]status.Code{
			{1, 4}: status.OK, {1, 100}: status.NoAddress, {5, 1}: status.NoAddress, {7, math.MaxUint64}: status.Access, {17, 5}: status.OK,
		} {
			if got := f.refusal(about[0], about[1]); got != want {
				t.Errorf("of %d requests from %d on: %v, want %v", about[1], about[0], got, want)
			}
		}
		info := f.nodes[from].Conns()[0]
		if info.RMA != "path" || info.RMASocket == nil || !info.RMASocket.TLS {
			t.Errorf("the table says %+v", info)
		}
		if _, err := f.a.RMAPath(t.Context(), path.Hash{}, func() {}); !errors.Is(err, status.InUse) {
			t.Errorf("a second path: %v", err)
		}
	}
}

// TestAnRMAPathIsTriedAgain: one that either node has refused for a passing reason is made
// later, and not at once; one that can never be made is not.
func TestAnRMAPathIsTriedAgain(t *testing.T) {
	for name, refuse := range map[string]func(p *pathed) (allow func()){
		"no descriptors": func(p *pathed) func() {
			dial := p.net.Dial
			p.net.Dial = func(context.Context, string) (*net.TCPConn, error) { return nil, syscall.EMFILE }
			return func() { p.net.Dial = dial }
		},
		"max-paths": func(p *pathed) func() {
			p.net.Max = 1
			_, other := p.pair(0, 1)
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				other.Path(ctx, path.Hash{}, func() {}) // it waits, and counts at node 1
			}()
			for p.nodes[1].Paths() == 0 {
				time.Sleep(time.Millisecond)
			}
			return func() { leave(); <-left }
		},
	} {
		for from := range 2 {
			t.Run(fmt.Sprintf("%s, by node %d", name, from), func(t *testing.T) {
				p := newPathed(t, nil)
				x, y := p.pair(0, 1) // node 0 dials the link
				x.Close()
				y.Close()
				a, b := p.pair(from, 1-from)
				off, err := register(b, alloc(t, rma.PageSize), 0, rma.ProtRead|rma.ProtWrite, 0)
				if err != nil {
					t.Fatal(err)
				}
				key, err := path.NewKey()
				if err != nil {
					t.Fatal(err)
				}
				ask := func() (attach.PathSocket, error) {
					return a.RMAPath(t.Context(), key.Hash(), func() {})
				}
				allow := refuse(p)
				for range 2 {
					if _, err := ask(); !errors.Is(err, status.Again) {
						t.Fatalf("refused: %v", err)
					}
				}
				allow()
				s, err := ask()
				for end := time.Now().Add(20 * time.Second); errors.Is(err, status.Again) && time.Now().Before(end); s, err = ask() {
					time.Sleep(50 * time.Millisecond)
				}
				if err != nil {
					t.Fatal(err)
				}
				i := initiatorOf(t, s, key)
				i.send(path.RMARequest{Kind: path.RMAWrite, Flags: path.RMAWantAnswer, Offset: uint64(off), Length: 8}, make([]byte, 8))
				if got, _, err := i.answer(); err != nil || got.Code != 0 {
					t.Errorf("a write: %+v, %v", got, err)
				}
			})
		}
	}
}

// TestWhatTheRMAPathDoesNotKnowEndsItsConnection, and no other one.
func TestWhatTheRMAPathDoesNotKnowEndsItsConnection(t *testing.T) {
	for name, r := range map[string]path.RMARequest{
		"a number is left out": {Kind: path.RMANop, Number: 3},
		"another kind":         {Kind: path.RMADone},
		"another flag":         {Kind: path.RMARead, Flags: 128},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarMemory(t, 0, rma.PageSize)
			other, far := f.pair(0, 1)
			f.send(path.RMARequest{Kind: path.RMANop}, nil)
			f.send(r, nil)
			awaitHup(t, f.a)
			awaitHup(t, f.b)
			if cause := f.b.Cause(); !strings.Contains(cause, "broke the protocol of its RMA path") {
				t.Errorf("cause %q", cause)
			}
			if _, err := other.Send(t.Context(), []byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := far.Recv(t.Context(), make([]byte, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

func awaitHup(t *testing.T, e attach.NodeEndpoint) {
	t.Helper()
	changed := make(chan struct{}, 1)
	defer e.Notify(changed)()
	late := time.After(20 * time.Second)
	for e.Ready()&attach.PollHup == 0 {
		select {
		case <-changed:
		case <-late:
			t.Fatal("the connection does not end")
		}
	}
}

// TestWhatBecameOfARequestIsOfThatRequest: also when its node has forgotten most refusals.
func TestWhatBecameOfARequestIsOfThatRequest(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	readable, err := register(f.b, alloc(t, rma.PageSize), 0x10000, rma.ProtRead, rma.MapFixed)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 101 { // the first is applied, the second is wrong, the others are not allowed
		r := path.RMARequest{Kind: path.RMAWrite, Offset: uint64(readable), Length: 8}
		switch n {
		case 0:
			r.Offset = uint64(f.off)
		case 1:
			r.Length = 0
		}
		if err := f.send(r, make([]byte, r.Length)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		first, n uint64
		want     status.Code
	}{
		{1, 1, status.OK}, {1, 101, status.Invalid}, {2, 1, status.Invalid}, {3, 99, status.Access},
		{10, 3, status.NoAddress}, // forgotten, and none of them may pass for applied
		{37, 1, status.Access}, {38, 1, status.Access}, {101, 5, status.Access}, {102, 5, status.OK},
	} {
		if got := f.refusal(tt.first, tt.n); got != tt.want {
			t.Errorf("of %d requests from %d on: %v, want %v", tt.n, tt.first, got, tt.want)
		}
	}
}

// behind writes n pieces of 64 KiB, each filled with its number, and has do done as soon as
// they are in the socket: the node has not applied them all then.
func (f *farMemory) behind(n int, do func()) {
	f.t.Helper()
	for i := range n {
		r := path.RMARequest{Kind: path.RMAWrite, Offset: uint64(f.off), Length: uint64(len(f.mem))}
		if err := f.send(r, bytes.Repeat([]byte{byte(i + 1)}, len(f.mem))); err != nil {
			f.t.Fatal(err)
		}
	}
	do()
	if want := bytes.Repeat([]byte{byte(n)}, len(f.mem)); !bytes.Equal(f.mem, want) {
		f.t.Errorf("piece %d is there, want %d", f.mem[0], n)
	}
}

// TestThePeersCallsComeBehindThePath: a mark over the peer's operations, a signal behind
// them, the end of a window and the close all come behind the operations in the initiator's
// socket, and none of those is refused.
func TestThePeersCallsComeBehindThePath(t *testing.T) {
	const pieces = 100
	for from := range 2 {
		for name, do := range map[string]func(f *farMemory) error{
			"mark": func(f *farMemory) error {
				m, err := f.b.FenceMark(fence.InitPeer)
				if err == nil {
					err = f.b.FenceWait(f.t.Context(), m)
				}
				return err
			},
			"unregister": func(f *farMemory) error { return f.b.Unregister(f.off, int64(len(f.mem))) },
			"close":      func(f *farMemory) error { return f.a.Close() },
		} {
			t.Run(name, func(t *testing.T) {
				f := newFarMemory(t, from, 64<<10)
				f.behind(pieces, func() {
					if err := do(f); err != nil {
						t.Error(err)
					}
				})
				if name == "close" {
					return
				}
				if code := f.refusal(1, pieces); code != status.OK {
					t.Errorf("a piece was refused: %v", code)
				}
			})
		}
	}
	t.Run("signal", func(t *testing.T) {
		f := newFarMemory(t, 0, 64<<10)
		mine := alloc(t, rma.PageSize)
		word, _ := regionOf(mine)
		off, err := register(f.a, mine, 0, rma.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.behind(pieces, func() {
			err := f.b.FenceSignal(fence.Signal{By: fence.InitPeer, Where: fence.SignalRemote, RemoteOffset: off, RemoteValue: 9})
			for v := uint64(0); err == nil && v != 9; time.Sleep(time.Millisecond) {
				v, err = word.Load(0, 8)
			}
			if err != nil {
				t.Error(err)
			}
		})
	})
}

// TestNothingIsAppliedBehindTheEnd: when the end is reported, the memory stays as it is,
// although the initiator goes on.
func TestNothingIsAppliedBehindTheEnd(t *testing.T) {
	for name, end := range map[string]func(f *farMemory){
		"node removed": func(f *farMemory) { f.nodes[1].NodeLost(f.peers[0].Incarnation, "crashed") },
		"closed":       func(f *farMemory) { f.b.Close() },
		"unregistered": func(f *farMemory) { f.b.Unregister(f.off, int64(len(f.mem))) },
		"aborted":      func(f *farMemory) { f.b.Abort("the application died") },
		"node closes":  func(f *farMemory) { f.nodes[1].Close() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarMemory(t, 0, 64<<10)
			stop := f.goesOn(50)
			end(f)
			was := bytes.Clone(f.mem)
			time.Sleep(30 * time.Millisecond)
			if !bytes.Equal(f.mem, was) {
				t.Error("the memory changes behind the end")
			}
			stop()
		})
	}
}

// A slowRegion is memory into which a store waits.
type slowRegion struct {
	attach.Region
	began, goOn chan struct{}
}

func (r *slowRegion) WriteAt(p []byte, off int64) error {
	close(r.began)
	<-r.goOn
	return r.Region.WriteAt(p, off)
}

// TestTheEndWaitsForAStore: a connection that fails reports that only when no piece of an
// operation is being stored any more.
func TestTheEndWaitsForAStore(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	region, _ := regionOf(alloc(t, rma.PageSize))
	slow := &slowRegion{region, make(chan struct{}), make(chan struct{})}
	off, err := f.b.RegisterRegion(slow, 0, rma.PageSize, 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.send(path.RMARequest{Kind: path.RMAWrite, Offset: uint64(off), Length: 8}, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	<-slow.began
	ended := make(chan error, 1)
	go func() {
		_, err := f.b.Recv(context.Background(), make([]byte, 1))
		ended <- err
	}()
	var failing sync.WaitGroup
	defer failing.Wait()
	failing.Go(func() { f.b.NoRMAPath("it is of no use", true) })
	select {
	case err := <-ended:
		close(slow.goOn)
		t.Fatalf("during the store the receiver gets %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(slow.goOn)
	if err := <-ended; !errors.Is(err, status.Reset) {
		t.Errorf("behind the store the receiver gets %v", err)
	}
}

// TestAnInitiatorThatTakesNoAnswers holds up its own connection, for a time, and no other.
func TestAnInitiatorThatTakesNoAnswers(t *testing.T) {
	defer engine.SetPassTime(500 * time.Millisecond)()
	f := newFarMemory(t, 0, 1<<20)
	for range 100 { // in the background: the socket does not take them all
		f.send(path.RMARequest{Kind: path.RMARead, Offset: uint64(f.off), Length: 1 << 20}, nil)
	}
	other, _ := f.pair(0, 1)
	begun := time.Now()
	if err := f.b.Unregister(f.off, 1<<20); !errors.Is(err, status.Reset) {
		t.Errorf("unregister: %v", err)
	}
	awaitHup(t, f.b)
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("after %v", took)
	}
	if _, err := other.Send(t.Context(), []byte("x")); err != nil {
		t.Error(err)
	}
}

// TestALongReadIsProgress: a peer's call waits behind a read that takes longer than no
// progress may, as long as the initiator takes the bytes.
func TestALongReadIsProgress(t *testing.T) {
	const pass = 500 * time.Millisecond
	defer engine.SetPassTime(pass)()
	f := newFarMemory(t, 0, 32<<20)
	if err := f.send(path.RMARequest{Kind: path.RMARead, Offset: uint64(f.off), Length: 32 << 20}, nil); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		begun := time.Now()
		buf := make([]byte, 64<<10)
		var err error
		for range 32 << 20 / len(buf) {
			if _, err = io.ReadFull(f, buf); err != nil {
				break
			}
			time.Sleep(3 * pass / (32 << 20 / (64 << 10)))
		}
		t.Logf("read for %v", time.Since(begun))
		read <- err
	}()
	if err := f.b.Unregister(f.off, 32<<20); err != nil {
		t.Errorf("unregister: %v", err)
	}
	if err := <-read; err != nil {
		t.Errorf("the read: %v", err)
	}
}

// TestWhatIsNotCountedShowsNothing: a node that cannot count the bytes written to an RMA path
// ends the connection, and sends no frame that has to come behind those operations.
func TestWhatIsNotCountedShowsNothing(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	engine.LoseCount(f.a)
	m, err := f.b.FenceMark(fence.InitPeer)
	if err == nil {
		t.Errorf("a mark over operations that were not counted: %+v", m)
	}
	awaitHup(t, f.a)
	awaitHup(t, f.b)
}

// goesOn writes over the path until stop is called, and returns behind the first n writes.
func (f *farMemory) goesOn(n int) (stop func()) {
	quit, done, begun := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 1; ; i++ {
			if i == n {
				close(begun)
			}
			select {
			case <-quit:
				return
			default:
			}
			r := path.RMARequest{Kind: path.RMAWrite, Offset: uint64(f.off), Length: uint64(len(f.mem))}
			if f.send(r, bytes.Repeat([]byte{byte(i)}, len(f.mem))) != nil {
				return
			}
		}
	}()
	<-begun
	return func() {
		close(quit)
		f.Interrupt()
		<-done
	}
}

// TestASilentPathEndsTheRMAPaths: a connection ends because its message path is silent, or
// its RMA path. When that is reported, the RMA path has ended at that end, and nothing that is on
// its way there is applied.
func TestASilentPathEndsTheRMAPaths(t *testing.T) {
	t.Run("messages", func(t *testing.T) {
		t.Parallel()
		f := newFarMemory(t, 0, 64<<10)
		sockets, errs := f.ask(f.a, f.b)
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		for _, c := range conns(t, sockets) {
			swallow(t, c)
		}
		stop := f.goesOn(50)
		defer stop()
		wantLoss(t, f.b)
		was := bytes.Clone(f.mem)
		time.Sleep(30 * time.Millisecond)
		if !bytes.Equal(f.mem, was) {
			t.Error("the memory changes behind the end")
		}
	})
	t.Run("RMA", func(t *testing.T) {
		t.Parallel()
		served := make(chan *net.TCPConn, 1)
		f := newFarMemoryBy(t, 0, 64<<10, func(p *pathed, far *net.TCPConn) {
			served <- far
			p.nodes[1].AcceptPath(far, far)
		})
		swallow(t, <-served)
		r := path.RMARequest{Kind: path.RMAWrite, Offset: uint64(f.off), Length: uint64(len(f.mem)), Flags: path.RMAWantAnswer}
		if err := f.send(r, make([]byte, len(f.mem))); err != nil { // it stays on the way
			t.Fatal(err)
		}
		wantLoss(t, f.a)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if n, err := f.Conn.Read(ctx, make([]byte, 1)); n != 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("behind the end the initiator reads %d, %v", n, err)
		}
		awaitHup(t, f.b)
	})
}

func wantLoss(t *testing.T, e attach.NodeEndpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if n, err := e.Recv(ctx, make([]byte, 1)); n != 0 || !errors.Is(err, status.Reset) || !strings.HasPrefix(e.Cause(), "path silent ") {
		t.Errorf("the end is reported as %d, %v, with the cause %q", n, err, e.Cause())
	}
}
