package path

import "time"

// A Traffic is the kernel's counts for a path's socket, TLS's own bytes included.
type Traffic struct {
	Sent, Received uint64        // bytes that the peer has acknowledged, and that have arrived
	RoundTrip      time.Duration // smoothed, of the kernels

	Unsent      uint64        // bytes written that wait for room at the peer
	Waiting     time.Duration // for how long, if nothing is on its way
	Unread      uint64        // bytes that have arrived and were not read
	Retransmits uint64        // packets sent again
}

// TrafficOf returns the traffic of s, zeros if the kernel does not report it.
func TrafficOf(s *Held) (t Traffic) {
	if info := s.info(); info != nil {
		t = Traffic{Sent: info.Bytes_acked, Received: info.Bytes_received, RoundTrip: time.Duration(info.Rtt) * time.Microsecond,
			Unsent: uint64(info.Notsent_bytes), Unread: s.unread(), Retransmits: uint64(info.Total_retrans)}
		if t.Unsent > 0 && info.Unacked == 0 {
			t.Waiting = time.Duration(info.Last_data_sent) * time.Millisecond
		}
	}
	return t
}

// Moved returns how many bytes have been written to the socket, and how many have arrived,
// since the last call: the sum of all calls never falls. Callers take turns.
func (h *Held) Moved() (sent, received uint64) {
	// As info.
	_ = h.control(func(fd uintptr) {
		info, err := infoOf(fd)
		queued, qerr := unacknowledged(fd)
		if err != nil || qerr != nil {
			return
		}
		// Bytes acknowledged between the two are missing until the next call.
		before, arrived := h.sent, h.received
		h.sent, h.received = max(before, info.Bytes_acked+uint64(queued)), max(arrived, info.Bytes_received)
		sent, received = h.sent-before, h.received-arrived
	})
	return sent, received
}

// unread returns how many bytes have arrived and are not read yet.
func (h *Held) unread() (n uint64) {
	// As info.
	_ = h.control(func(fd uintptr) {
		if got, err := unread(fd); err == nil && got > 0 {
			n = uint64(got)
		}
	})
	return n
}

// info returns the kernel's tcp_info of the socket; nil if there is none.
func (h *Held) info() (info *tcpInfo) {
	// It fails only when the socket is closed: then there is no info.
	_ = h.control(func(fd uintptr) {
		if got, err := infoOf(fd); err == nil {
			info = got
		}
	})
	return info
}
