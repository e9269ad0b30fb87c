package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
)

// forwardCommand is the hidden command of a forwarder: it carries the connections of
// an unmodified TCP application over a fabric. Two of them, one at each fabricd, are
// as small as a user would write them.
const forwardCommand = "forwarder"

// A forwarder accepts connections and carries each to what it dials.
type forwarder struct {
	listener net.Listener
	dial     func(ctx context.Context) (net.Conn, error)
}

func (a *app) forwardProcess() *cobra.Command {
	var socket, listen, dial string
	var port uint16
	cmd := &cobra.Command{
		Use: forwardCommand, Hidden: true, Args: cobra.NoArgs, Short: "Carry TCP over a fabric: fabric-bench run starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := fabric.Attach(cmd.Context(), socket)
			if err != nil {
				return err
			}
			defer node.Close()
			var f forwarder
			var d net.Dialer
			if listen != "" { // into the fabric
				f.listener, err = net.Listen("tcp", listen)
				f.dial = func(ctx context.Context) (net.Conn, error) { return node.DialContext(ctx, "scif", dial) }
			} else {
				f.listener, err = node.Listen(fabric.Port(port))
				f.dial = func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", dial) }
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(a.stdout, f.listener.Addr())
			return f.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&socket, "socket", "", "socket of fabricd")
	f.StringVar(&listen, "listen", "", "accept TCP here, and dial a port of the fabric")
	f.Uint16Var(&port, "port", 0, "accept at this port of the node, and dial TCP")
	f.StringVar(&dial, "dial", "", "what to dial")
	return cmd
}

// run accepts until ctx ends, or the listener does.
func (f *forwarder) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { f.listener.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return ignoreClosed(err)
		}
		all.Go(func() {
			far, err := f.dial(ctx)
			if err != nil {
				c.Close()
				return
			}
			carry(c.(halfCloser), far.(halfCloser)) // TCP and fabric connections are
		})
	}
}

// A halfCloser is a connection whose two directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// carry copies both ways until both directions have ended, and closes both
// connections. An end that is none in order aborts the other connection too.
func carry(a, b halfCloser) {
	var both sync.WaitGroup
	both.Go(func() { copyTo(a, b) })
	both.Go(func() { copyTo(b, a) })
	both.Wait()
	_ = errors.Join(a.Close(), b.Close()) // either may have ended before
}

// copyTo copies from one connection to the other, and passes the end on.
func copyTo(to, from halfCloser) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		_ = errors.Join(to.Close(), from.Close()) // the other direction ends with them
	}
}
