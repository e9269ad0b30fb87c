package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
)

// deployedEnd is the hidden command of an application process of `deployed`.
const deployedEnd = "deployed-end"

// The carriers of a measurement.
const (
	carryFabric  = "fabric"
	carryTCP     = "tcp"
	carryTLS     = "tls"
	carryStunnel = "stunnel" // plain TCP to a stunnel beside the client
)

// An endOptions is the command line of an application process.
type endOptions struct {
	carrier string
	socket  string // of fabricd
	listen  string // server: address to listen on; fabric: ignored
	dial    string // client: address of the server; fabric: NODE:PORT
}

// deployedPort is where the server listens on its node.
const deployedPort = fabric.Port(2060)

func (a *app) deployedEndProcess() *cobra.Command {
	o := &endOptions{}
	cmd := &cobra.Command{
		Use: deployedEnd, Hidden: true, Args: cobra.NoArgs, Short: "One end of a measurement: fabric-bench deployed starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			return o.run(ctx, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.carrier, "carrier", carryFabric, "fabric, tcp, tls or stunnel")
	f.StringVar(&o.socket, "socket", "", "socket of fabricd")
	f.StringVar(&o.listen, "listen", "", "be the server, at this address")
	f.StringVar(&o.dial, "dial", "", "be the client of the server at this address")
	return cmd
}

func (o *endOptions) run(ctx context.Context, in io.Reader, out io.Writer) error {
	var node *fabric.Node
	if o.carrier == carryFabric {
		var err error
		if node, err = fabric.Attach(ctx, o.socket); err != nil {
			return err
		}
		defer node.Close()
	}
	if o.listen != "" {
		return o.serve(node, in, out)
	}
	return o.obey(ctx, node, in, out)
}

// serve answers connections until in ends.
func (o *endOptions) serve(node *fabric.Node, in io.Reader, out io.Writer) error {
	l, err := o.listener(node)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { // ends with in, which this function waits for
		defer close(ended)
		_, _ = io.Copy(io.Discard, in) // its end is all that counts
		l.Close()
	}()
	fmt.Fprintln(out, l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			<-ended
			return ignoreClosed(err)
		}
		go func() { // ends with the client's connection, or this process
			if err := serveDeployed(node, c); ignoreEOF(err) != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				fmt.Fprintln(out, "error:", err)
			}
		}()
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (o *endOptions) listener(node *fabric.Node) (net.Listener, error) {
	switch o.carrier {
	case carryFabric:
		return node.Listen(deployedPort)
	case carryTLS:
		cert, err := selfSigned()
		if err != nil {
			return nil, err
		}
		return tls.Listen("tcp", o.listen, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
	}
	return net.Listen("tcp", o.listen)
}

// dialer returns how the client connects.
func (o *endOptions) dialer(node *fabric.Node) (dialFunc, error) {
	switch o.carrier {
	case carryFabric:
		return func(ctx context.Context) (net.Conn, error) { return node.DialContext(ctx, "scif", o.dial) }, nil
	case carryTLS:
		d := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}} // a baseline's own server
		return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", o.dial) }, nil
	}
	var d net.Dialer
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", o.dial) }, nil
}

// obey carries out orders: each is answered with "ready" when it is warm, begins
// with the next line, and is answered with its outcome.
func (o *endOptions) obey(ctx context.Context, node *fabric.Node, in io.Reader, out io.Writer) error {
	dial, err := o.dialer(node)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var next order
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return err
		}
		result, err := carryOut(ctx, node, dial, next, func() error {
			fmt.Fprintln(out, "ready")
			if !lines.Scan() {
				return errors.Join(io.ErrUnexpectedEOF, lines.Err())
			}
			return nil
		})
		if err != nil {
			result.Error = err.Error()
		}
		if err := answers.Encode(result); err != nil {
			return err
		}
	}
	return lines.Err()
}

func carryOut(ctx context.Context, node *fabric.Node, dial dialFunc, next order, begin func() error) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+next.During)
	defer cancel()
	w, err := newWorkload(ctx, node, dial, next)
	if err == nil {
		_, err = w.repeat(next.Warmup, next.Size)
	}
	if berr := begin(); err != nil || berr != nil {
		return outcome{}, errors.Join(err, berr)
	}
	result, err := w.repeat(next.During, next.Size)
	return result, errors.Join(err, w.close())
}
