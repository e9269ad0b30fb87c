//go:build !linux || portable

package path

import (
	"errors"

	"golang.org/x/sys/unix"
)

var errAbsent = errors.New("the kernel of this system does not say what has arrived over a socket")

// Absent returns why the kernel of this system does not say of a socket what a path's node
// has to know; nil: it does.
func Absent() error { return errAbsent }

const hungUp = unix.POLLERR | unix.POLLHUP

// A tcpInfo is what is asked of a kernel that says it.
type tcpInfo struct {
	State                                 uint8
	Unacked, Last_data_sent, Rtt          uint32
	Total_retrans, Segs_in, Notsent_bytes uint32
	Bytes_acked, Bytes_received           uint64
}

func infoOf(uintptr) (*tcpInfo, error)    { return nil, errAbsent }
func unread(uintptr) (int, error)         { return 0, errAbsent }
func unacknowledged(uintptr) (int, error) { return 0, errAbsent }
func poke(uintptr)                        {}
