package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// SOCKS version 5, RFC 1928: as much of it as CONNECT without authentication takes.
const (
	socksVersion  = 5
	socksNoAuth   = 0x00
	socksNoMethod = 0xff
	socksConnect  = 1
	socksIPv4     = 1
	socksName     = 3
	socksIPv6     = 4
)

// Answers to a request.
const (
	socksOK            = 0
	socksFailed        = 1
	socksNotAllowed    = 2
	socksUnreachable   = 4
	socksRefused       = 5
	socksNoCommand     = 7
	socksNoAddressType = 8
)

// A socksError is a request that is not served, and the answer to it.
type socksError struct {
	answer byte
	error
}

// socksGreeting reads the first message of a client. It reports whether the client does
// without authentication.
//
//	+---------+-------+-------------+
//	| version | count | methods ... |
//	+---------+-------+-------------+
func socksGreeting(r io.Reader) (bool, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return false, err
	}
	if head[0] != socksVersion {
		return false, fmt.Errorf("not SOCKS version 5: the first byte is %#x", head[0])
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(r, methods); err != nil {
		return false, err
	}
	return slices.Contains(methods, socksNoAuth), nil
}

// socksRequest reads a request and returns the "host:port" that it asks for. The error is
// a socksError if it can be answered.
//
//	+---------+---------+---+--------------+---------+------+
//	| version | command | 0 | address type | address | port |
//	+---------+---------+---+--------------+---------+------+
func socksRequest(r io.Reader) (string, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	if head[0] != socksVersion || head[2] != 0 {
		return "", errors.New("not a request of SOCKS version 5")
	}
	host, err := socksHost(r, head[3])
	if err != nil {
		return "", err
	}
	var port [2]byte
	if _, err := io.ReadFull(r, port[:]); err != nil {
		return "", err
	}
	if head[1] != socksConnect { // behind the address, so that no byte is left unread
		return "", socksError{socksNoCommand, fmt.Errorf("command %d: only CONNECT is served", head[1])}
	}
	return net.JoinHostPort(host, strconv.Itoa(int(binary.BigEndian.Uint16(port[:])))), nil
}

// socksHost reads an address.
func socksHost(r io.Reader, kind byte) (string, error) {
	size := map[byte]int{socksIPv4: 4, socksIPv6: 16}[kind]
	switch kind {
	case socksIPv4, socksIPv6:
	case socksName:
		var length [1]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return "", err
		}
		size = int(length[0])
	default:
		return "", socksError{socksNoAddressType, fmt.Errorf("address type %d", kind)}
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return "", err
	}
	if kind == socksName {
		return string(text), nil
	}
	ip, _ := netip.AddrFromSlice(text) // 4 or 16 bytes are one
	return ip.String(), nil
}

// socksAnswer is the answer to a request. The address that the protocol has in it is not
// known: a connection of the fabric has none of IP.
func socksAnswer(code byte) []byte {
	return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}
}
