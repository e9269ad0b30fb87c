package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"runtime"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// Two applications on two nodes exchange messages. With fabricd running, each
// begins with fabric.Attach(ctx, "") instead.
func Example_messages() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	server, client := cluster.Node(0), cluster.Node(1)

	l, err := server.Listen(2050)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		io.Copy(conn, conn) // echo until the client closes
	}()

	conn, err := client.DialAddr(ctx, fabric.Addr{Node: 0, Port: 2050})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "hello, fabric")
	reply := make([]byte, 13)
	if _, err := io.ReadFull(conn, reply); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s from %v\n", reply, conn.RemoteAddr())
	// Output: hello, fabric from 0:2050
}

// pair connects an endpoint of client to one of server.
func pair(ctx context.Context, server, client *fabric.Node) (at, from *fabric.Endpoint) {
	l, err := server.Listen(0)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *fabric.Conn)
	go func() {
		conn, err := l.AcceptConn(ctx)
		if err != nil {
			log.Fatal(err)
		}
		accepted <- conn
	}()
	conn, err := client.DialAddr(ctx, l.Addr().(fabric.Addr))
	if err != nil {
		log.Fatal(err)
	}
	return (<-accepted).Endpoint(), conn.Endpoint()
}

// One end writes into the other's memory and signals when the data is there.
// The other end waits for the signal by looking at its own memory; it makes no
// call.
func Example_rma() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	target, initiator := pair(ctx, cluster.Node(0), cluster.Node(1))

	// The target opens a window of two pages: data, and a word for the signal.
	mem, err := cluster.Node(0).Alloc(2 * fabric.PageSize)
	if err != nil {
		log.Fatal(err)
	}
	defer mem.Close()
	data, signal := mem.Bytes()[:fabric.PageSize], mem.Bytes()[fabric.PageSize:]
	off, err := target.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		log.Fatal(err)
	}

	// The initiator writes, and has 1 stored after its writes.
	if err := initiator.VWriteTo([]byte("one-sided"), off, 0); err != nil {
		log.Fatal(err)
	}
	err = initiator.FenceSignal(fabric.Signal{
		By:           fabric.InitSelf,
		Where:        fabric.SignalRemote,
		RemoteOffset: off + fabric.PageSize,
		RemoteValue:  1,
	})
	if err != nil {
		log.Fatal(err)
	}

	for fabric.LoadUint64(signal) != 1 {
		runtime.Gosched()
	}
	fmt.Printf("%s\n", data[:9])
	// Output: one-sided
}

// A program that would map the peer's memory on one node works on a copy of it
// across nodes: it acquires the ranges that it is going to use, and releases those
// that it has changed.
func ExampleMirror() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	owner, user := pair(ctx, cluster.Node(0), cluster.Node(1))

	mem, err := cluster.Node(0).Alloc(fabric.PageSize)
	if err != nil {
		log.Fatal(err)
	}
	defer mem.Close()
	copy(mem.Bytes(), "the owner's line")
	off, err := owner.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		log.Fatal(err)
	}

	_, err = user.Mmap(off, fabric.PageSize, fabric.ProtRead)
	fmt.Println("mapped:", !errors.Is(err, syscall.EOPNOTSUPP))
	m, err := fabric.NewMirror(user, off, fabric.PageSize, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Acquire(ctx, 0, 16); err != nil {
		log.Fatal(err)
	}
	if err := m.Write(0, []byte("one")); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("here %q, there %q\n", m.Bytes()[:16], mem.Bytes()[:16])
	if err := m.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("then %q\n", mem.Bytes()[:16])
	// Output:
	// mapped: false
	// here "one owner's line", there "the owner's line"
	// then "one owner's line"
}

// One call writes and announces. The owner of the memory waits for the word, and
// both ends count in another one.
func ExampleEndpoint_VPutSignal() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	owner, writer := pair(ctx, cluster.Node(0), cluster.Node(1))

	mem, err := cluster.Node(0).Alloc(fabric.PageSize)
	if err != nil {
		log.Fatal(err)
	}
	defer mem.Close()
	off, err := owner.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		log.Fatal(err)
	}
	ready, err := mem.Word64(64)
	if err != nil {
		log.Fatal(err)
	}

	if err := writer.Add64(off+72, 1); err != nil { // applied before the put
		log.Fatal(err)
	}
	if err := writer.VPutSignal([]byte("one-sided"), off, fabric.Notice{Offset: off + 64, Value: 1}); err != nil {
		log.Fatal(err)
	}
	if _, err := ready.Wait(ctx, func(v uint64) bool { return v == 1 }); err != nil {
		log.Fatal(err)
	}
	count, err := mem.Word64(72)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, counted %d\n", mem.Bytes()[:9], count.Add(1))
	// Output: one-sided, counted 2
}

// A node is lost while a call waits for it: the call fails, then the event
// arrives, and a connection to the node's next incarnation works.
func Example_lostNode() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	_, survivor := pair(ctx, cluster.Node(1), cluster.Node(0))

	events := make(chan fabric.Event, 2)
	cancel := cluster.Node(0).OnEvent(func(ev fabric.Event) { events <- ev })
	defer cancel()

	received := make(chan error)
	go func() {
		_, err := survivor.Recv(ctx, make([]byte, 1))
		received <- err
	}()
	cluster.Kill(1)
	err := <-received
	fmt.Println("reset:", errors.Is(err, syscall.ECONNRESET), "end of stream:", errors.Is(err, io.EOF))
	fmt.Println(<-events)

	cluster.Restart(1)
	fmt.Println(<-events)
	_, again := pair(ctx, cluster.Node(1), cluster.Node(0))
	n, err := again.Send(ctx, []byte("welcome back"))
	fmt.Println("sent", n, err)
	// Output:
	// reset: true end of stream: false
	// node 1.1 removed: crashed
	// node 1.2 added
	// sent 12 <nil>
}
