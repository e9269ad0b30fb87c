package conformance

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// peerSocket is set in the environment of a process that is a peer: the socket of its
// node.
const peerSocket = "FABRICD_CONFORMANCE_PEER"

// startPeer starts a process of this binary that attaches through socket.
func startPeer(tb testing.TB, socket string) (accepts, waits fabric.Addr, kill func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerSocket+"="+socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait() // it was killed
	})
	tb.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &accepts.Node, &accepts.Port, &waits.Port)
		waits.Node = accepts.Node
	}
	if err != nil {
		tb.Fatalf("the peer says %q: %v", line, err)
	}
	return accepts, waits, kill
}

// bePeer is the process: it ends with its node, or when it is killed.
func bePeer(socket string) error {
	ctx := context.Background()
	app, err := fabric.Attach(ctx, socket)
	if err != nil {
		return err
	}
	accepts, err := app.Open()
	if err != nil {
		return err
	}
	waits, err := app.Open()
	if err != nil {
		return err
	}
	for _, e := range []*fabric.Endpoint{accepts, waits} {
		if _, err := e.Bind(0); err != nil {
			return err
		}
		if err := e.Listen(64); err != nil {
			return err
		}
	}
	fmt.Println(app.ID(), accepts.LocalAddr().Port, waits.LocalAddr().Port)
	for {
		e, err := accepts.Accept(ctx)
		if err != nil {
			return err
		}
		mem, err := app.Alloc(page)
		if err != nil {
			return err
		}
		if _, err := e.Register(mem.Bytes(), 0, rw, fixed); err != nil {
			return err
		}
		go echo(ctx, e)
	}
}

// echo sends back the first 4 bytes. The process has no other end than its own.
func echo(ctx context.Context, e *fabric.Endpoint) {
	p := make([]byte, 4)
	if _, err := e.Recv(ctx, p); err == nil {
		e.Send(ctx, p)
	}
}
