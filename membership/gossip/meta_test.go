package gossip

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"

	"github.com/fabricd/fabricd/fabric/addr"
)

var fullMeta = Meta{
	Cluster:     addr.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
	Incarnation: addr.Incarnation{Node: 0x0102, Generation: 0x03040506},
	Term:        0x0708090A0B0C0D0E,
	Host:        true,
	Leaving:     true,
	Addresses:   []string{"10.0.0.1:7946", "[fe80::1]:7946"},
	Providers:   []string{"quic", "tcp"},
}

// The vector is a promise to members already deployed.
const fullMetaHex = "0103" + "0102030405060708090a0b0c0d0e0f10" + "0102" + "03040506" + "0708090a0b0c0d0e" +
	"02" + "0d31302e302e302e313a37393436" + "0e5b666538303a3a315d3a37393436" +
	"02" + "0471756963" + "03746370"

func TestMetaVector(t *testing.T) {
	b, err := fullMeta.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(b); got != fullMetaHex {
		t.Errorf("encoded\n%s, want\n%s", got, fullMetaHex)
	}
	m, err := DecodeMeta(b)
	if err != nil || !reflect.DeepEqual(m, fullMeta) {
		t.Errorf("decoded %+v, %v, want %+v", m, err, fullMeta)
	}
}

func TestServingIsAFlagOfItsOwn(t *testing.T) {
	b, err := Meta{Host: true, Serving: true}.Append(nil)
	if err != nil || b[1] != 0x06 {
		t.Errorf("flags %#x, %v, want 0x06", b[1], err)
	}
	if m, err := DecodeMeta(b); err != nil || !m.Serving || !m.Host || m.Leaving {
		t.Errorf("decoded %+v, %v", m, err)
	}
}

func TestMalformedMetaIsRefused(t *testing.T) {
	good, _ := fullMeta.Append(nil)
	for n := range len(good) {
		if _, err := DecodeMeta(good[:n]); !errors.Is(err, ErrMeta) {
			t.Errorf("first %d bytes: error %v, want ErrMeta", n, err)
		}
	}
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		want   string
	}{
		{"trailing byte", func(b []byte) []byte { return append(b, 0) }, "after the end"},
		{"version", func(b []byte) []byte { b[0] = 9; return b }, "version 9, this fabricd reads 1"},
		{"flags", func(b []byte) []byte { b[1] = 0x80; return b }, "unknown flags"},
		{"addresses", func(b []byte) []byte { b[32] = MaxAddresses + 1; return b }, "addresses"},
		{"control character", func(b []byte) []byte { b[34] = '\n'; return b }, "addresses"},
		{"too long", func(b []byte) []byte { return append(b, make([]byte, MaxMeta)...) }, "bytes"},
	} {
		_, err := DecodeMeta(c.change(bytes.Clone(good)))
		if !errors.Is(err, ErrMeta) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want ErrMeta that says %q", c.name, err, c.want)
		}
	}
}

func TestMetaLimits(t *testing.T) {
	long := strings.Repeat("x", maxAddress)
	for name, m := range map[string]Meta{
		"many addresses": {Addresses: make([]string, MaxAddresses+1)},
		"many providers": {Providers: make([]string, MaxProviders+1)},
		"empty address":  {Addresses: []string{""}},
		"long address":   {Addresses: []string{long + "x"}},
		"space":          {Providers: []string{"a b"}},
		"sum":            {Addresses: []string{long, long, long}},
	} {
		prefix := []byte("kept")
		b, err := m.Append(prefix)
		if !errors.Is(err, ErrMeta) || string(b) != "kept" {
			t.Errorf("%s: Append returned %q, %v, want the prefix and ErrMeta", name, b, err)
		}
	}
}

func FuzzDecodeMeta(f *testing.F) {
	full, _ := fullMeta.Append(nil)
	empty, _ := Meta{}.Append(nil)
	f.Add(full)
	f.Add(empty)
	f.Add(full[:33])
	serving, _ := Meta{Host: true, Serving: true}.Append(nil)
	f.Add(serving)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMeta(b)
		if err != nil {
			return
		}
		again, err := m.Append(nil)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x decodes to %+v, which encodes to %x, %v", b, m, again, err)
		}
	})
}

func TestMemberNames(t *testing.T) {
	k := Key{addr.UUID{0xAB}, 18446744073709551615}
	if got, err := ParseKey(k.String()); err != nil || got != k {
		t.Errorf("ParseKey(%q) = %v, %v", k, got, err)
	}
	u := k.UUID.String()
	for _, s := range []string{"", u, u + ".", u + ".01", u + ".+1", u + ".x", u + ".18446744073709551616",
		strings.ToUpper(u) + ".1", "node." + "1", u + ".1.2"} {
		if k, err := ParseKey(s); err == nil {
			t.Errorf("ParseKey(%q) = %v, want an error", s, k)
		}
	}
}

func TestStrangeNodesAreNotAlive(t *testing.T) {
	g := &Gossip{cfg: &Config{Cluster: testCluster, Proven: func(Key) bool { return true }}, self: key(1, 1), members: newRegister(10)}
	good := meta(2)
	good.Cluster = testCluster
	encoded, _ := good.Append(nil)
	foreign, _ := Meta{Cluster: addr.UUID{0xC2}}.Append(nil)
	node := func(name string, meta []byte, ip net.IP) *memberlist.Node {
		return &memberlist.Node{Name: name, Meta: meta, Addr: ip, Port: 7947, PMin: 1, PMax: 5, PCur: 2}
	}
	newer := node(key(2, 1).String(), encoded, net.IPv4(10, 0, 0, 2))
	newer.PMin, newer.PCur = 3, 3
	ip := net.IPv4(10, 0, 0, 2)
	if err := (delegate{g}).NotifyAlive(node(key(2, 1).String(), encoded, ip)); err != nil {
		t.Errorf("a good node is refused: %v", err)
	}
	for name, n := range map[string]*memberlist.Node{
		"other versions":  newer,
		"foreign cluster": node(key(2, 1).String(), foreign, ip),
		"bad name":        node("mallory", encoded, ip),
		"no metadata":     node(key(2, 1).String(), nil, ip),
		"bad metadata":    node(key(2, 1).String(), encoded[:20], ip),
		"no address":      node(key(2, 1).String(), encoded, nil),
		"address zero":    node(key(2, 1).String(), encoded, net.IPv4zero),
	} {
		if err := (delegate{g}).NotifyAlive(n); err == nil {
			t.Errorf("%s: believed", name)
		}
	}
}
