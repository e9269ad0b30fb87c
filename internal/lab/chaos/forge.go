package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

const (
	// forgedMTU is the least that IPv4 allows, in bytes.
	forgedMTU = 68
	// forgePause is the time between two messages about each port of each peer.
	forgePause = 10 * time.Millisecond
)

// forge sends to nodes the messages of a router that cannot forward their packets to
// the other nodes (ICMP "fragmentation needed", RFC 1191). Any host on the path that
// knows the ports can send them.
func (n *namespaces) forge(a scenario.Action) (effect, error) {
	var all []*forger
	for _, id := range a.Network.Node.IDs() {
		f, err := n.newForger(id)
		if err != nil {
			for _, f := range all {
				f.close()
			}
			return nil, err
		}
		all = append(all, f)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(func() { f.run(stop) })
	}
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		close(stop)
		wg.Wait()
		var sent, believed uint64
		var err error
		for _, f := range all {
			k, e := n.believed(ctx, f)
			sent, believed, err = sent+f.sent, believed+k, errors.Join(err, e, f.err)
			f.close()
		}
		return believed, fmt.Sprintf("%d messages; the kernels believe them of %d ways", sent, believed), err
	}), nil
}

// believed returns to how many peers the kernel holds the path MTU to be small. The
// kernel forgets that after minutes, by itself.
func (n *namespaces) believed(ctx context.Context, f *forger) (k uint64, err error) {
	for _, peer := range f.peers {
		route, e := output(ctx, "ip", "-n", n.namespace(f.node), "route", "get", peer.String())
		if err = errors.Join(err, e); strings.Contains(string(route), " mtu ") {
			k++
		}
	}
	return k, err
}

// A forger sends forged messages inside a node's namespace.
type forger struct {
	node  int
	own   netip.Addr
	peers []netip.Addr
	fd    int // a raw socket of that namespace

	sent uint64 // run's; read when it has returned
	err  error  // the same
}

func (n *namespaces) newForger(node int) (*forger, error) {
	f := &forger{node: node, own: n.place(node).bind}
	for i := range n.count {
		if i != node {
			f.peers = append(f.peers, n.place(i).bind)
		}
	}
	fd, err := rawSocketIn(n.file(node))
	f.fd = fd
	return f, err
}

// rawSocketIn opens a raw ICMP socket in a network namespace. A socket stays in
// the namespace in which it was made.
func rawSocketIn(namespace string) (fd int, err error) {
	made := make(chan struct{})
	go func() { // ends at once
		defer close(made)
		if err = enterNamespace(namespace); err != nil {
			return
		}
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP); err != nil {
			err = fmt.Errorf("raw socket: %w", err)
		}
	}()
	<-made
	return fd, err
}

// enterNamespace puts the calling goroutine into a network namespace, to its end.
func enterNamespace(path string) error {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%s: setns: %w", path, err)
	}
	return nil
}

func (n *namespaces) enter(node int) error { return enterNamespace(n.file(node)) }

// file names a node's namespace for the kernel.
func (n *namespaces) file(node int) string { return "/run/netns/" + n.namespace(node) }

func (f *forger) close() { _ = unix.Close(f.fd) } // nothing was left to send

// run sends until stop.
func (f *forger) run(stop <-chan struct{}) {
	t := time.NewTicker(forgePause)
	defer t.Stop()
	to := &unix.SockaddrInet4{Addr: f.own.As4()}
	for {
		for _, peer := range f.peers {
			for _, port := range []uint16{dataPort, gossipPort} {
				if err := unix.Sendto(f.fd, tooBig(f.own, peer, port), 0, to); err != nil {
					f.err = fmt.Errorf("forge: %w", err)
					return
				}
				f.sent++
			}
		}
		select {
		case <-t.C:
		case <-stop:
			return
		}
	}
}

// tooBig returns the ICMP message which reports that a UDP packet from one node to
// another, from and to a port that is the same on both, was too long.
func tooBig(from, to netip.Addr, port uint16) []byte {
	const icmpHead, ipHead, udpHead = 8, 20, 8
	p := make([]byte, icmpHead+ipHead+udpHead)
	p[0], p[1] = 3, 4 // destination unreachable: fragmentation needed
	binary.BigEndian.PutUint16(p[6:], forgedMTU)
	ip := p[icmpHead:]
	ip[0] = 4<<4 | ipHead/4
	binary.BigEndian.PutUint16(ip[2:], 1280) // its length
	ip[6] = 0x40                             // do not fragment
	ip[8], ip[9] = 64, unix.IPPROTO_UDP
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:ipHead]))
	udp := ip[ipHead:]
	binary.BigEndian.PutUint16(udp[0:], port)
	binary.BigEndian.PutUint16(udp[2:], port)
	binary.BigEndian.PutUint16(udp[4:], 1280-ipHead)
	binary.BigEndian.PutUint16(p[2:], checksum(p))
	return p
}

// checksum is that of the Internet (RFC 1071), over an even number of bytes.
func checksum(p []byte) uint16 {
	var sum uint32
	for i := 0; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
