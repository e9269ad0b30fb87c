package path

import (
	"time"

	"golang.org/x/sys/unix"
)

// A Traffic is what the kernel has counted of a path's socket, TLS's own bytes included.
type Traffic struct {
	Sent, Received uint64        // bytes that the peer has acknowledged, and that have arrived
	RoundTrip      time.Duration // smoothed, of the kernels
}

// TrafficOf returns the traffic of s, zeros if the kernel does not say.
func TrafficOf(s *Held) (t Traffic) {
	if info := infoOf(s); info != nil {
		t = Traffic{info.Bytes_acked, info.Bytes_received, time.Duration(info.Rtt) * time.Microsecond}
	}
	return t
}

// infoOf returns what the kernel says of s; nil if it does not.
func infoOf(s *Held) (info *unix.TCPInfo) {
	// It fails only when the socket is closed: then there is nothing to say.
	_ = s.control(func(fd uintptr) {
		got, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			info = got
		}
	})
	return info
}
