package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/gateway"
	"github.com/fabricd/fabricd/internal/gateway/spec"
)

// addSocket gives cmd the flag of a command that is an application of its own.
func addSocket(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", "", "socket of the fabricd to attach to (default $FABRIC_SOCKET or "+fabric.DefaultSocket+")")
}

// attach attaches to the fabricd of a command's flag or environment.
func (a *app) attach(ctx context.Context, socket string) (*fabric.Node, error) {
	if socket == "" {
		socket = a.getenv("FABRIC_SOCKET")
	}
	return fabric.Attach(ctx, socket)
}

// listenAs listens as a service, or at a port if name is the number of one.
func listenAs(n *fabric.Node, name string, allow []string) (*fabric.Listener, error) {
	port, isPort := spec.Port(name)
	var options []fabric.ListenOption
	switch {
	case !isPort && !addr.ValidService(name):
		return nil, usagef("name: %q: want a service's name or a port, 1 to 65535", name)
	case !isPort:
		options = append(options, fabric.Service(name))
	}
	if len(allow) > 0 {
		options = append(options, fabric.Allow(allow...))
	}
	return n.Listen(port, options...)
}

func (a *app) ncCommand() *cobra.Command {
	var socket string
	var listen bool
	var allow []string
	cmd := &cobra.Command{
		Use: "nc NAME", Short: "Connect standard input and output to a service of the fabric, or be one",
		Long: `nc connects to NAME, an address of the fabric, and copies standard input to it and what
comes to standard output. With --listen it serves NAME, a service or a port, for one
connection. The end of standard input is passed on, and the command ends when both
directions have ended, or, at a terminal, when the other end's has. A connection that is
lost is an error, and never an end.`,
		Example: `  fabricd nc db
  fabricd nc --listen inbox > file
  fabricd nc inbox@web-1 < dump.sql`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("want one NAME, got %s", plural(len(args), "argument"))
			}
			return nil
		},
	}
	addSocket(cmd, &socket)
	cmd.Flags().BoolVarP(&listen, "listen", "l", false, "serve NAME for one connection")
	cmd.Flags().StringSliceVar(&allow, "allow", nil, "with --listen: which nodes may connect, as in access rules; all if empty")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := onlyWith(cmd, "listen", "allow"); err != nil {
			return err
		}
		n, err := a.attach(cmd.Context(), socket)
		if err != nil {
			return err
		}
		defer n.Close()
		c, err := connectOrServe(cmd.Context(), n, args[0], listen, allow)
		if listen && cmd.Context().Err() != nil && err != nil {
			return nil // as of the other commands that serve
		}
		if err != nil {
			return err
		}
		return join(cmd.Context(), c, cmd.InOrStdin(), a.stdout)
	}
	return cmd
}

// connectOrServe returns the one connection of nc.
func connectOrServe(ctx context.Context, n *fabric.Node, name string, listen bool, allow []string) (*fabric.Conn, error) {
	if !listen {
		return n.Dial(ctx, name)
	}
	l, err := listenAs(n, name, allow)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.AcceptConn(ctx)
}

// join copies in to the connection and the connection to out until both have ended. The
// end of ctx aborts it.
func join(ctx context.Context, c *fabric.Conn, in io.Reader, out io.Writer) error {
	defer context.AfterFunc(ctx, func() { _ = c.Abort("interrupted") })()
	sent := make(chan error, 1)
	go func() { // ends with the process, where a read of standard input cannot be ended
		_, err := io.Copy(c, in)
		if err == nil {
			err = gateway.EndWrite(c)
			sent <- err
			return
		}
		sent <- err
		_ = c.Abort(err.Error()) // so that the other direction ends too
	}()
	_, err := io.Copy(out, c)
	if err == nil && !isTerminal(in) {
		select {
		case err = <-sent:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err != nil {
		select { // the other direction may have failed first, and closed this one
		case first := <-sent:
			err = cmp.Or(first, err)
		default:
		}
		err = lostBy(c, err)
		_ = c.Abort("") // it may have ended
		return err
	}
	return c.Close()
}

// lostBy returns err of a connection, prefixed with the name of the peer's node if err is the
// loss of the connection and the name is known.
func lostBy(c *fabric.Conn, err error) error {
	_, lost := errors.AsType[*fabric.LostError](err)
	peer, perr := c.Peer()
	if !lost || perr != nil {
		return err
	}
	return fmt.Errorf("%s: %w", peer.Name, err)
}

// isTerminal reports whether file is a terminal, or another device that never ends.
func isTerminal(file any) bool {
	f, ok := file.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}
