package fabric_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// onePage registers one page of fresh memory at an endpoint.
func onePage(n *fabric.Node, ep *fabric.Endpoint) (*fabric.Memory, int64) {
	mem, err := n.Alloc(fabric.PageSize)
	if err != nil {
		log.Fatal(err)
	}
	off, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		log.Fatal(err)
	}
	return mem, off
}

// A fence waits for transfers that were begun without Sync: behind it their bytes are in
// the peer's memory.
func ExampleEndpoint_FenceWait() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	at, from := pair(ctx, cluster.Node(0), cluster.Node(1))
	mem, off := onePage(cluster.Node(0), at)

	for i, word := range []string{"one ", "after ", "the ", "other"} {
		if err := from.VWriteTo([]byte(word), off+int64(i)*8, 0); err != nil {
			log.Fatal(err)
		}
	}
	mark, err := from.FenceMark(fabric.InitSelf)
	if err != nil {
		log.Fatal(err)
	}
	if err := from.FenceWait(ctx, mark); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", mem.Bytes()[24:29])
	// Output: other
}

// A fence signal stores a value behind transfers, at the peer, at this end, or at both.
func ExampleEndpoint_FenceSignal() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	at, from := pair(ctx, cluster.Node(0), cluster.Node(1))
	mem, off := onePage(cluster.Node(0), at)

	if err := from.VWriteTo([]byte("bytes"), off, 0); err != nil {
		log.Fatal(err)
	}
	err := from.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: off + 64, RemoteValue: 7})
	if err != nil {
		log.Fatal(err)
	}
	mark, err := from.FenceMark(fabric.InitSelf)
	if err != nil {
		log.Fatal(err)
	}
	if err := from.FenceWait(ctx, mark); err != nil { // a program that polls the word needs none
		log.Fatal(err)
	}
	value, err := from.FetchAdd64(ctx, off+64, 0)
	fmt.Printf("%s, and the word is %d, %v\n", mem.Bytes()[:5], value, err)
	// Output: bytes, and the word is 7, <nil>
}

// Two nodes count in one word of a third one's memory.
func ExampleEndpoint_FetchAdd64() {
	ctx := context.Background()
	cluster := fabrictest.Start(3)
	defer cluster.Close()
	mem, err := cluster.Node(0).Alloc(fabric.PageSize)
	if err != nil {
		log.Fatal(err)
	}
	for i := range 2 {
		at, from := pair(ctx, cluster.Node(0), cluster.Node(i+1))
		off, err := at.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
		if err != nil {
			log.Fatal(err)
		}
		old, err := from.FetchAdd64(ctx, off, 10)
		fmt.Println("it was", old, err)
	}
	fmt.Println("it is", binary.NativeEndian.Uint64(mem.Bytes()))
	// Output:
	// it was 0 <nil>
	// it was 10 <nil>
	// it is 20
}

// Poll waits for the first of several endpoints that has something to do.
func ExampleNode_Poll() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	node := cluster.Node(0)
	quiet, _ := pair(ctx, node, cluster.Node(1))
	busy, peer := pair(ctx, node, cluster.Node(1))

	if _, err := peer.Send(ctx, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	items := []fabric.PollItem{{Endpoint: quiet, Events: fabric.PollIn}, {Endpoint: busy, Events: fabric.PollIn}}
	n, err := node.Poll(ctx, items)
	fmt.Println(n, err, items[0].Revents&fabric.PollIn != 0, items[1].Revents&fabric.PollIn != 0)
	// Output: 1 <nil> false true
}

// A listener can say which nodes may connect; all others are refused before they wait.
func ExampleAllow() {
	ctx := context.Background()
	cluster := fabrictest.Start(3)
	defer cluster.Close()
	friend, stranger := cluster.Node(1), cluster.Node(2)

	l, err := cluster.Node(0).Listen(2050, fabric.Allow(friend.Name()))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	_, err = stranger.Dial(ctx, "0:2050")
	fmt.Println("refused:", errors.Is(err, syscall.ECONNREFUSED))
	go friend.Dial(ctx, "0:2050")
	conn, err := l.AcceptConn(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	peer, err := conn.Peer()
	fmt.Println("connected: node", peer.Node, err)
	// Output:
	// refused: true
	// connected: node 1 <nil>
}

// The error of a lost connection has the cause of the peer's loss.
func ExampleLostError() {
	ctx := context.Background()
	cluster := fabrictest.Start(2)
	defer cluster.Close()
	_, survivor := pair(ctx, cluster.Node(1), cluster.Node(0))

	cluster.Kill(1)
	_, err := survivor.Recv(ctx, make([]byte, 1))
	var lost *fabric.LostError
	if errors.As(err, &lost) && lost.Cause == fabric.NodeLost {
		fmt.Println("connect to another node:", lost)
	}
	// Output: connect to another node: node removed: crashed
}
