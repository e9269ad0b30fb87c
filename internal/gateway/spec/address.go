package spec

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// maxPath is the longest path that the address of a Unix socket holds.
const maxPath = 107

// address checks a TCP address or the path of a Unix socket, which may have "unix:"
// before it, and returns it without that. Ports are leastPort and above.
func address(text, what string, leastPort uint64) (string, error) {
	path := strings.TrimPrefix(text, "unix:")
	if IsPath(path) {
		if len(path) > maxPath || strings.ContainsAny(path, ",=\x00") {
			return "", fmt.Errorf("%s: %.120q: want a path of at most %d bytes without ',' and '='", what, path, maxPath)
		}
		return path, nil
	}
	host, port, err := net.SplitHostPort(text)
	n, perr := strconv.ParseUint(port, 10, 16)
	_, ip := netip.ParseAddr(host)
	switch {
	case text != "" && strings.Trim(text, "0123456789") == "": // a port alone, out of its range
		return "", fmt.Errorf("%s: %.120q: want a port from %d to 65535", what, text, leastPort)
	case err != nil || path != text || strings.ContainsAny(text, ",="):
		return "", fmt.Errorf("%s: %.120q: want host:port or the path of a Unix socket, like localhost:5432 or /run/db.sock", what, text)
	case perr != nil || n < leastPort:
		return "", fmt.Errorf("%s: %.120q: want a port from %d to 65535", what, text, leastPort)
	case host == "" && leastPort == 0: // all addresses of the machine
	case ip != nil && !addr.ValidHost(host):
		return "", fmt.Errorf("%s: %.120q: want an IP address or a host name before the port", what, text)
	}
	return text, nil
}

// Port returns the port that a service's name is, if it is the number of one.
func Port(service string) (addr.Port, bool) {
	n, err := strconv.ParseUint(service, 10, 16)
	return addr.Port(n), err == nil && n > 0
}

// checkService reports whether an Expose can serve a name.
func checkService(name string) error {
	if _, ok := Port(name); !ok && !addr.ValidService(name) {
		return fmt.Errorf("name: %.120q: want up to %d letters, digits, '.', '-' and '_', or a port from 1 to 65535", name, addr.MaxService)
	}
	return nil
}

// checkAddress returns an error unless text is an address of the fabric.
func checkAddress(text string) error {
	_, err := addr.ParseTarget(text)
	return err
}
