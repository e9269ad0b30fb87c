package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// freePortAttempts bounds the search for a number that is free for both UDP
// and TCP. One attempt nearly always does.
const freePortAttempts = 16

// A portPair is one port number, for datagrams and for streams.
type portPair struct {
	packets *net.UDPConn
	streams *net.TCPListener
}

// address returns the pair's own address.
func (p portPair) address() netip.AddrPort {
	a := p.streams.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func (p portPair) close() {
	if p.packets != nil {
		p.packets.Close()
	}
	if p.streams != nil {
		p.streams.Close()
	}
}

// listenPair opens UDP and TCP at port of the address; port 0 finds a number
// that is free for both. field names the setting, for problems.
func listenPair(field string, at netip.Addr, port uint16) (portPair, error) {
	attempts := 1
	if port == 0 {
		attempts = freePortAttempts
	}
	var pair portPair
	var err error
	for range attempts {
		if pair, err = tryPair(netip.AddrPortFrom(at, port)); err == nil {
			return pair, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return portPair{}, listenProblem(field, strconv.Itoa(int(port)), "bind", at, err)
}

func tryPair(at netip.AddrPort) (portPair, error) {
	streams, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return portPair{}, err
	}
	port := streams.Addr().(*net.TCPAddr).AddrPort().Port()
	packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), port)))
	if err != nil {
		streams.Close()
		return portPair{}, err
	}
	return portPair{packets, streams}, nil
}

// listenProblem returns in one line why a port cannot be had. value is that of the setting field, and
// host the setting of the address.
func listenProblem(field, value, host string, at netip.Addr, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return problem(field, value, fmt.Sprintf("is taken on %v by another program; want a free port, or 0 to choose one", at), err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return problem(host, at.String(), "is no address of this machine", err)
	case errors.Is(err, syscall.EACCES):
		return problem(field, value, "needs privilege; want a port from 1024", err)
	}
	return problem(field, value, fmt.Sprintf("cannot listen on %v: %v", at, syscallCause(err)), err)
}
