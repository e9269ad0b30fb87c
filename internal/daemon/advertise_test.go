package daemon

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestAdvertisedIsWhatOthersReach(t *testing.T) {
	all, loopback := netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.1")
	for _, test := range []struct {
		name string
		c    NetworkConfig
		join []string
		want string
	}{
		{"as configured", NetworkConfig{Bind: all, Advertise: "fabric.example"}, nil, "fabric.example"},
		{"as bound", NetworkConfig{Bind: loopback}, []string{"192.0.2.1:1"}, "127.0.0.1"},
	} {
		got, err := advertised(t.Context(), test.c, test.join)
		if err != nil || got != test.want {
			t.Errorf("%s: got %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

// TestAdvertisedIsTheRouteToTheMembers takes every address of this machine for a
// member: the kernel reaches its own addresses from these, so each is its own
// answer, wherever it stands in the machine's list.
func TestAdvertisedIsTheRouteToTheMembers(t *testing.T) {
	c := NetworkConfig{Bind: netip.IPv4Unspecified()}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range interfaces {
		own := netip.MustParsePrefix(a.String()).Addr()
		if !own.Is4() || !own.IsGlobalUnicast() {
			continue
		}
		// A name that nobody has is passed over.
		got, err := advertised(t.Context(), c, []string{"no-such-name.invalid:1", net.JoinHostPort(own.String(), "7700")})
		if err != nil || got != own.String() {
			t.Errorf("towards %v: got %q, %v, want itself", own, got, err)
		}
	}
	// Members on this machine say nothing of what others reach.
	alone, err := advertised(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := advertised(t.Context(), c, []string{"127.0.0.1:7700"}); err != nil || got != alone {
		t.Errorf("with a member on loopback: got %q, %v, want %q", got, err, alone)
	}
}

func TestPlacesOfNames(t *testing.T) {
	got, err := addressesOf(t.Context(), "localhost", 1, 2)
	if want := (addresses{data: "localhost:1", gossip: "127.0.0.1:2"}); err != nil || got != want && got.gossip != "[::1]:2" {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err = addressesOf(t.Context(), "10.1.2.3", 1, 2); err != nil || got != (addresses{"10.1.2.3:1", "10.1.2.3:2"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = addressesOf(t.Context(), "no-such-name.invalid", 1, 2)
	if lines := configError(t, err); len(lines) != 1 || !strings.HasPrefix(lines[0], `advertise: "no-such-name.invalid": cannot be looked up`) {
		t.Errorf("got %q, want one line about advertise", lines)
	}
}
