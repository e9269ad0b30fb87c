package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/membership/trust"
)

// joinTimeout bounds the wait for a member, and askTimeout the wait for the node here.
const (
	joinTimeout = 2 * time.Second
	askTimeout  = 2 * time.Second
)

// Look inspects the machine for a node with the configuration c. It changes nothing. client belongs
// to the node that runs here, if there is one.
func Look(ctx context.Context, c daemon.Config, environ []string, client *daemon.Client) Facts {
	f := Facts{
		Kernel:      readText("/proc/sys/kernel/osrelease"),
		Processors:  runtime.GOMAXPROCS(0),
		Descriptors: descriptorLimit(os.Getpid()),
		Sealed:      trySealed(),
		Ptrace:      readText("/proc/sys/kernel/yama/ptrace_scope"),
		HugePage:    shm.HugePageSize(),
		Needs:       daemon.Needs(c),
		Unknown:     daemon.UnknownEnv(environ),
		Node:        ask(ctx, client),
	}
	if f.Node.Runs {
		f.Descriptors = cmp.Or(descriptorLimit(f.Node.Status.PID), f.Descriptors)
	}
	var known bool
	if f.Memory, f.Bound, known = shm.Available(); !known {
		f.Memory = -1
	}
	if c.Local.HugePages != shm.HugeOff {
		f.HugeFailed = server.CheckHugePages(c.Local.Rings)
	}
	f.lookAtUDP(c)
	f.Locked, f.LockFailed = tryLock()
	f.Joins = dialAll(ctx, c.Join)
	return f
}

// readText returns the content of a small kernel file; empty if it cannot be read.
func readText(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// descriptorLimit returns a process's limit on descriptors, 0 if unknown. The Go runtime has
// raised the soft limit to the hard limit.
func descriptorLimit(pid int) (limit uint64) {
	_, line, _ := strings.Cut(readText(fmt.Sprintf("/proc/%d/limits", pid)), "Max open files")
	_, _ = fmt.Sscan(line, &limit) // an error leaves it unknown
	return limit
}

func trySealed() error {
	r, err := shm.Create("fabricd-doctor", shm.PageSize)
	if err == nil {
		r.Release()
	}
	return err
}

// Options of a UDP socket, of linux/udp.h.
const (
	udpSegment = 103
	udpGRO     = 104
)

func (f *Facts) lookAtUDP(c daemon.Config) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: c.Network.Bind.AsSlice()})
	if err != nil {
		f.UDPFailed = err
		return
	}
	defer conn.Close()
	quic.GrowBuffers(conn)
	f.UDPBuffers = quic.BufferWarning(conn)
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // an error leaves both false
		f.Send = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, udpSegment, 1200) == nil
		f.Merge = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, udpGRO, 1) == nil
	})
}

// tryLock reports whether this process may lock a path's socket to its peer.
func tryLock() (locked bool, err error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return false, err
	}
	defer l.Close()
	c, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		return false, err
	}
	held, err := path.Hold(c)
	if err != nil {
		return false, err
	}
	defer held.Close()
	return !held.Unlocked(), nil
}

// dialAll asks all addresses concurrently whether they are data ports, and does not wait long for
// an answer.
func dialAll(ctx context.Context, addresses []string) []Join {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	all := make([]Join, len(addresses))
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() {
			began := time.Now()
			err := askToJoin(ctx, address)
			all[i] = Join{address, time.Since(began), err}
		})
	}
	wg.Wait()
	return all
}

// askToJoin starts a join at the data port of a member. No other port accepts that protocol,
// although the gossip port accepts connections too.
func askToJoin(ctx context.Context, address string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	// The certificate is verified by the token, when the node joins.
	t := tls.Client(c, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{trust.JoinALPN}})
	if err = t.HandshakeContext(ctx); err == nil && t.ConnectionState().NegotiatedProtocol != trust.JoinALPN {
		err = errors.New("another protocol")
	}
	if err != nil {
		return fmt.Errorf("%s takes connections, and is no data port of fabricd: %w", address, err)
	}
	return nil
}

func ask(ctx context.Context, c *daemon.Client) (n Node) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	status, err := c.Status(ctx)
	if err != nil {
		return Node{}
	}
	n.Runs, n.Status = true, status
	if n.Health, err = c.Health(ctx); err != nil {
		n.Health.Detail = err.Error()
	}
	return n
}
