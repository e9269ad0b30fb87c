// Package tools runs third-party benchmarks on the loopback interface, both ends of each, and reads
// their output: ucx_perftest and fi_pingpong, and iperf3, which its caller runs. A run is bounded
// in time, and both processes have ended when it returns.
package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// ErrNotInstalled reports that a program is missing.
var ErrNotInstalled = errors.New("not installed: make bench-baselines")

const (
	// runLimit bounds one run of both ends.
	runLimit = 60 * time.Second
	// startLimit bounds the wait for a server that listens.
	startLimit = 10 * time.Second
	pollEvery  = 5 * time.Millisecond
	// killDelay is how long output may stay open after an end was killed.
	killDelay = time.Second
	// maxOutput bounds the output of one end, in bytes; the rest is dropped.
	maxOutput = 1 << 20
)

// Find returns the path of a program, or ErrNotInstalled.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, ErrNotInstalled)
	}
	return path, nil
}

// A pair is the two ends of one run.
type pair struct {
	program        string
	server, client []string
	port           int // the TCP port at which the server listens
	env            []string
}

// run starts the server, waits until it listens, runs the client and returns the client's output.
func (p pair) run(ctx context.Context) (_ []byte, err error) {
	path, err := Find(p.program)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	server := p.command(ctx, path, p.server)
	if err := server.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	var serverErr error
	go func() { // ends with the server, which run waits for
		defer close(ended)
		serverErr = server.Wait()
	}()
	if err := listening(ctx, p.port, ended); err != nil {
		cancel()
		<-ended
		return nil, fmt.Errorf("%s: the server: %w: %s", p.program, err, lastLine(server))
	}
	client := p.command(ctx, path, p.client)
	err = client.Run()
	if err != nil {
		cancel() // the server waits for a client that has failed
	}
	<-ended
	if err == nil {
		err = serverErr
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", p.program, err, lastLine(client))
	}
	return client.Stdout.(*output).kept.Bytes(), nil
}

func (p pair) command(ctx context.Context, path string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), p.env...)
	out := &output{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, killDelay
	return cmd
}

// An output keeps the beginning of a program's output.
type output struct{ kept bytes.Buffer }

func (o *output) Write(p []byte) (int, error) {
	o.kept.Write(p[:min(len(p), maxOutput-o.kept.Len())])
	return len(p), nil
}

// lastLine returns the last line of output of a command that has ended.
func lastLine(cmd *exec.Cmd) string {
	text := strings.TrimSpace(cmd.Stdout.(*output).kept.String())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// listening waits until a socket listens at a TCP port of this machine.
func listening(ctx context.Context, port int, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !Listens("self", port) {
		select {
		case <-ended:
			if ctx.Err() != nil {
				return ctx.Err() // the cause of the end
			}
			return errors.New("it has ended")
		case <-ctx.Done():
			return fmt.Errorf("it does not listen at port %d: %w", port, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// Listens reports whether a TCP socket listens at port in the network namespace of a process: its
// PID, or self. It does not connect, which the server would take for its client's connection.
func Listens(process string, port int) bool {
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/" + process + "/net/" + table)
		if err == nil && tableListens(string(text), port) {
			return true
		}
	}
	return false
}

// tableListens reads the kernel's table of TCP sockets: number, local address,
// remote address, state, …; state 0A is listening.
func tableListens(text string, port int) bool {
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// FreePort returns a port that neither TCP nor UDP uses now.
func FreePort() (int, error) {
	for range 100 {
		t, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return 0, err
		}
		port := t.Addr().(*net.TCPAddr).Port
		u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		t.Close()
		if err == nil {
			return port, u.Close()
		}
	}
	return 0, errors.New("no port is free for both TCP and UDP")
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
