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
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
)

// endCommand is the hidden command of an application process.
const endCommand = "end"

// An endOptions is the command line of an application process.
type endOptions struct {
	carrier string
	socket  string // of fabricd
	dir     string // of the lab, for the state of embedded nodes
	bind    string // client: address of an embedded node
	listen  string // server: address to listen on; of a node its host
	dial    string // client: the server's address, as the server has printed it
}

func (a *app) endProcess() *cobra.Command {
	o := &endOptions{}
	cmd := &cobra.Command{
		Use: endCommand, Hidden: true, Args: cobra.NoArgs, Short: "One end of a measurement: fabric-bench run starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			return o.run(ctx, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.carrier, "carrier", carryFabric, "what carries the bytes")
	f.StringVar(&o.socket, "socket", "", "socket of fabricd")
	f.StringVar(&o.dir, "dir", "", "directory of embedded nodes")
	f.StringVar(&o.bind, "bind", "", "address of the client's embedded node")
	f.StringVar(&o.listen, "listen", "", "be the server, at this address")
	f.StringVar(&o.dial, "dial", "", "be the client of the server at this address")
	return cmd
}

// An end is an application process: its node, if it has one, and the functions to connect to the
// other end.
type end struct {
	node   *fabric.Node
	listen func() (net.Listener, error)
	dial   dialFunc
	close  func() error
	at     string     // that clients need beside the listener's address; empty: nothing
	pool   []net.Conn // connections that orders keep open
}

func (o *endOptions) run(ctx context.Context, in io.Reader, out io.Writer) error {
	e, err := o.open(ctx)
	if err != nil {
		return err
	}
	if o.listen != "" {
		err = e.serve(in, out)
	} else {
		err = e.obey(ctx, in, out)
	}
	return errors.Join(err, e.close())
}

// open prepares the end of a carrier.
func (o *endOptions) open(ctx context.Context) (*end, error) {
	var d net.Dialer
	e := &end{
		listen: func() (net.Listener, error) { return net.Listen("tcp", o.listen) },
		dial:   func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", o.dial) },
		close:  func() error { return nil },
	}
	switch o.carrier {
	case carryTLS:
		return e, o.overTLS(e)
	case carryQUIC:
		return e, o.overQUIC(ctx, e)
	case carryEmbedded:
		return e, o.embedded(ctx, e)
	case carryNodeLow:
		if err := os.Setenv("FABRIC_LATENCY", "low"); err != nil {
			return nil, err
		}
		fallthrough
	case carryFabric, carryNode:
		node, err := fabric.Attach(ctx, o.socket)
		if err != nil {
			return nil, err
		}
		o.onNode(e, node)
		e.close = node.Close
	}
	return e, nil
}

// onNode makes the end one of a node.
func (o *endOptions) onNode(e *end, node *fabric.Node) {
	e.node = node
	e.listen = func() (net.Listener, error) { return node.Listen(0) }
	e.dial = func(ctx context.Context) (net.Conn, error) { return node.DialContext(ctx, "scif", o.dial) }
}

func (o *endOptions) overTLS(e *end) error {
	cert, err := selfSigned()
	if err != nil {
		return err
	}
	e.listen = func() (net.Listener, error) {
		return tls.Listen("tcp", o.listen, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
	}
	d := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}} // the baseline's own server
	e.dial = func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", o.dial) }
	return nil
}

// serve answers connections until in ends; it answers each line of in with the number of
// allocations in this process.
func (e *end) serve(in io.Reader, out io.Writer) error {
	l, err := e.listen()
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { // ends with in, which this function waits for
		defer close(ended)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			fmt.Fprintln(out, mallocs())
		}
		l.Close()
	}()
	fmt.Fprintln(out, strings.TrimSpace(e.at+" "+l.Addr().String()))
	for {
		c, err := l.Accept()
		if err != nil {
			<-ended
			return ignore(err, net.ErrClosed)
		}
		go func() { // ends with the client's connection, or this process
			if err := serveOne(e.node, c); ignore(err, io.EOF) != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				fmt.Fprintln(os.Stderr, "error:", err)
			}
		}()
	}
}

// mallocs returns the number of allocations in this process.
func mallocs() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Mallocs)
}

// ignore returns err, unless it is the expected one.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// obey carries out orders: it answers each with "ready" after the warm-up, starts at the next line,
// and answers with the outcome.
func (e *end) obey(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var next order
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return err
		}
		result, err := e.carryOut(ctx, next, func() error {
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

// carryOut carries out one order; it calls begin between the warm-up and the measurement.
func (e *end) carryOut(ctx context.Context, next order, begin func() error) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+next.During)
	defer cancel()
	if next.Kind >= kindOpen {
		if err := begin(); err != nil {
			return outcome{}, err
		}
		return e.manyAtOnce(ctx, next)
	}
	w, err := newWorkload(ctx, e.node, e.dial, next)
	if err == nil {
		_, err = w.repeat(next.Warmup, next.Size)
	}
	if berr := begin(); err != nil || berr != nil {
		return outcome{}, errors.Join(err, berr)
	}
	before := mallocs()
	result, err := w.repeat(next.During, next.Size)
	result.Mallocs = mallocs() - before
	return result, errors.Join(err, w.close())
}
