//go:build !portable

package path

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Offsets that the filter reads, in the TCP header and in the IP header.
const (
	portsAt   = 0 // the sender's port, and this end's
	flagsAt   = 13
	flagSYN   = 0x02
	ipHeader  = 1<<32 - 0x100000 // SKF_NET_OFF of linux/filter.h
	source4At = 12
	source6At = 8
)

// lock bounds fd, a connected socket, to its connection, for good: an application that
// disconnects it gets no other connection by connect or listen, and no answer from any address.
// No process can take the filter off. It reports false where the kernel lets only processes with
// CAP_NET_ADMIN attach one, as some do. A socket of Multipath TCP takes none.
func lock(fd uintptr, local, remote net.Addr) (bool, error) {
	own, _ := local.(*net.TCPAddr) // of a nil one there are no packets
	peer, _ := remote.(*net.TCPAddr)
	code := filter(own.AddrPort().Port(), peer.AddrPort())
	err := unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	if err == nil {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1)
	}
	if err != nil {
		return false, fmt.Errorf("the path's socket cannot be locked to its peer: %w", err)
	}
	return true, nil
}

// filter lets in packets from remote to the own port that begin no connection. Without a SYN
// there is no further connection, not even with remote, which would outlive the node's end of
// the path. The addresses keep out the RST of another host, which would report a closed port.
//
// The kernel runs it behind IP: its offset 0 is the TCP header.
func filter(own uint16, remote netip.AddrPort) (code []unix.SockFilter) {
	check := func(size uint16, at, mask, want uint32) {
		code = append(code, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_ABS | size, K: at},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: want, Jt: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}) // drops it
	}
	check(unix.BPF_W, portsAt, ^uint32(0), uint32(remote.Port())<<16|uint32(own))
	check(unix.BPF_B, flagsAt, flagSYN, 0)
	ip, version, at := remote.Addr().Unmap(), uint32(6), uint32(source6At)
	if ip.Is4() {
		version, at = 4, source4At
	}
	check(unix.BPF_B, ipHeader, 0xf0, version<<4)
	for b := ip.AsSlice(); len(b) > 0; b, at = b[4:], at+4 {
		check(unix.BPF_W, ipHeader+at, ^uint32(0), binary.BigEndian.Uint32(b))
	}
	return append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: ^uint32(0)})
}
