package chaos

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// TestForgedMessagesAreWhole: a forged message has the checksums of a real one, and
// quotes a packet that the node has sent.
func TestForgedMessagesAreWhole(t *testing.T) {
	from, to := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.4")
	p := tooBig(from, to, 7700)
	if checksum(p) != 0 || checksum(p[8:28]) != 0 {
		t.Errorf("checksums %x and %x, want 0 over what contains them", checksum(p), checksum(p[8:28]))
	}
	if p[0] != 3 || p[1] != 4 || binary.BigEndian.Uint16(p[6:]) != forgedMTU {
		t.Errorf("it is type %d, code %d, %d bytes", p[0], p[1], binary.BigEndian.Uint16(p[6:]))
	}
	src, _ := netip.AddrFromSlice(p[20:24])
	dst, _ := netip.AddrFromSlice(p[24:28])
	if src != from || dst != to || p[17] != 17 || binary.BigEndian.Uint16(p[28:]) != 7700 || binary.BigEndian.Uint16(p[30:]) != 7700 {
		t.Errorf("it speaks of % x", p[8:])
	}
}
