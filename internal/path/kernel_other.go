//go:build !linux || portable

package path

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

var errAbsent = errors.New("the kernel of this system does not report what has arrived over a socket")

// Absent returns why this system's kernel does not report the socket state that a path's
// node needs; nil: it does.
func Absent() error { return errAbsent }

const hungUp = unix.POLLERR | unix.POLLHUP

// A tcpInfo has the fields that are read where the kernel reports them.
type tcpInfo struct {
	State                                 uint8
	Unacked, Last_data_sent, Rtt          uint32
	Total_retrans, Segs_in, Notsent_bytes uint32
	Bytes_acked, Bytes_received           uint64
}

func infoOf(uintptr) (*tcpInfo, error)               { return nil, errAbsent }
func unread(uintptr) (int, error)                    { return 0, errAbsent }
func unacknowledged(uintptr) (int, error)            { return 0, errAbsent }
func poke(uintptr)                                   {}
func lock(uintptr, net.Addr, net.Addr) (bool, error) { return false, errAbsent }
