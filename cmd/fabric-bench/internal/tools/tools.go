// Package tools knows third-party benchmarks: the command lines of ucx_perftest and fi_pingpong, which
// have two ends, and the output of these and of iperf3. Its caller runs them.
package tools

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// ErrNotInstalled reports that a program is missing.
var ErrNotInstalled = errors.New("not installed: make bench-baselines")

// Find returns the path of a program, or ErrNotInstalled.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, ErrNotInstalled)
	}
	return path, nil
}

// A Pair is the two ends of one run on the loopback interface.
type Pair struct {
	Program        string
	Port           int // the TCP port at which the server listens
	Server, Client []string
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
