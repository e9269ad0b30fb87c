package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/budget"
)

// closeVersion0 seals as version 0 does, in which the last byte is the length of the padding.
func closeVersion0(plain, additional []byte) []byte {
	block, err := aes.NewCipher(testKey)
	if err != nil {
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm.Seal(append([]byte{0}, testNonce...), testNonce, plain, additional)
}

// framed puts a frame around the result of seal for a length.
func framed(length int, seal func(additional []byte) []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{10}, uint32(length))
	return append(head, seal(append(bytes.Clone(head), testSeal.label...))...)
}

// sealedPackets are packets of a member with the key that memberlist alone would
// die of, or hold far more than is its size.
func sealedPackets() map[string][]byte {
	label := []byte(testSeal.label)
	pad := append(bytes.Repeat([]byte{1}, 15), 255)
	return map[string][]byte{
		"padding of 255 bytes":   append(testSeal.header(), closeVersion0(pad, label)...),
		"version 0, nothing":     append(testSeal.header(), closeVersion0(nil, label)...),
		"nothing":                testSeal.packet(testNonce, nil),
		"a checksum":             testSeal.packet(testNonce, []byte{12, 0, 0, 0, 0}),
		"compressed":             testSeal.packet(testNonce, []byte{9, 0x80}),
		"compounds of compounds": testSeal.packet(testNonce, slices.Concat([]byte{7, 1, 0, 4}, []byte{7, 1, 0, 1}, []byte{7})),
		"half a compound":        testSeal.packet(testNonce, []byte{7, 255, 0}),
		"another message":        testSeal.packet(testNonce, []byte{99}),
	}
}

// sealedFrames are the same for streams.
func sealedFrames() map[string][]byte {
	million := appendMap([]byte{6}, pair{"Nodes", 1 << 20}, pair{"UserStateLen", 0}, pair{"Join", true})
	state := appendMap([]byte{6}, pair{"Nodes", 0}, pair{"UserStateLen", 20 << 20}, pair{"Join", true})
	pad := append(bytes.Repeat([]byte{1}, 15), 255)
	return map[string][]byte{
		"nothing":               testSeal.frame(testNonce, nil),
		"padding of 255 bytes":  framed(1+12+16+16, func(ad []byte) []byte { return closeVersion0(pad, ad) }),
		"a million members":     testSeal.frame(testNonce, million),
		"20 MiB of state":       testSeal.frame(testNonce, state),
		"text for a number":     testSeal.frame(testNonce, appendMap([]byte{6}, pair{"Nodes", []byte("x")})),
		"a map that is cut off": testSeal.frame(testNonce, []byte{6, 0x83, 0xa5, 'N'}),
		"compressed":            testSeal.frame(testNonce, []byte{9, 0x80}),
		"a user message":        testSeal.frame(testNonce, appendMap([]byte{8}, pair{"UserMsgLen", 20 << 20})),
		"in the clear":          append([]byte{10, 0, 0, 0, 60}, make([]byte, 60)...),
		"4 GiB":                 {10, 0xff, 0xff, 0xff, 0xff},
	}
}

// TestWhatAMemberSealsEndsNothing has a member with the key send messages that ended every process
// that received them, in packets, in streams and in the answer to a stream.
func TestWhatAMemberSealsEndsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one := b.start(1, 1, func(c *Config) { c.Seeds = []string{address(8)} })
		two := b.start(2, 1)
		b.within(5*time.Second, "both see each other", func() bool { return complete([]*Gossip{one, two}) })
		packets, err := b.net.ListenPacket(address(8))
		if err != nil {
			t.Fatal(err)
		}
		defer packets.Close()
		to, _ := net.ResolveUDPAddr("udp", address(1))
		for _, p := range sealedPackets() {
			packets.WriteTo(p, to)
		}
		for name, f := range sealedFrames() {
			c, err := b.net.Dial(t.Context(), hostIP(8), address(1))
			if err != nil {
				t.Fatal(err)
			}
			c.Write(append(testSeal.header(), f...))
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("%s: %d bytes of answer, %v", name, n, err)
			}
			c.Close()
		}
		answers, err := b.net.Listen(address(8))
		if err != nil {
			t.Fatal(err)
		}
		defer answers.Close()
		for name, f := range sealedFrames() {
			c, err := answers.Accept() // the first looks for its seed
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			c.Write(f)
			c.Close()
		}
		time.Sleep(5 * time.Second)
		if !complete([]*Gossip{one, two}) {
			t.Error("the members do not see each other any more")
		}
	})
}

// A length announced in a frame costs nothing before its bytes are there.
func TestFramesAreHeldToTheirSize(t *testing.T) {
	s, err := newSealer(testSeal.label, [][]byte{testKey})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range sealedFrames() {
		budget.Hold(t, name, b, func(b []byte) {
			f := frame{sealer: s, max: maxFrame}
			if n, err := f.read(bytes.NewReader(b), make([]byte, 10)); n != 0 || err == nil {
				t.Errorf("%s: %d bytes are handed on, %v", name, n, err)
			}
		})
	}
	for name, b := range sealedPackets() {
		if _, err := s.checkPacket(nil, b); err == nil {
			t.Errorf("%s: the packet is handed on", name)
		}
	}
}

// A member asks for ten thousand pings of others in a second: few are sent.
func TestPingsForOthersAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.start(1, 1)
		packets, err := b.net.ListenPacket(address(8))
		if err != nil {
			t.Fatal(err)
		}
		victim, err := b.net.ListenPacket(address(9))
		if err != nil {
			t.Fatal(err)
		}
		to, _ := net.ResolveUDPAddr("udp", address(1))
		ask := appendMap([]byte{1}, pair{"SeqNo", 5}, pair{"Target", []byte{10, 0, 0, 9}}, pair{"Port", 7947}, pair{"Node", []byte(key(9, 1).String())}, pair{"Nack", true})
		before := runtime.NumGoroutine()
		for range 100 {
			for range 100 {
				packets.WriteTo(testSeal.packet(testNonce, ask), to)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := runtime.NumGoroutine() - before; n > maxIndirect {
			t.Errorf("%d goroutines more", n)
		}
		pings := 0
		for buf := make([]byte, 2048); ; pings++ {
			victim.SetReadDeadline(time.Now().Add(time.Second))
			if _, _, err := victim.ReadFrom(buf); err != nil {
				break
			}
		}
		if pings < maxIndirect/2 || pings > 2*maxIndirect+10 {
			t.Errorf("%d pings in a second, want %d and as many at once", pings, maxIndirect)
		}
		packets.Close()
		victim.Close()
	})
}

func FuzzSealedMessages(f *testing.F) {
	s, err := newSealer(testSeal.label, [][]byte{testKey})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{7, 1, 0, 1, 0})
	f.Add(appendMap([]byte{6}, pair{"Nodes", 1}, pair{"Join", true}))
	f.Fuzz(func(t *testing.T, plain []byte) {
		_, _ = s.checkPacket(nil, testSeal.packet(testNonce, plain))
		r := frame{sealer: s, max: maxFrame}
		sealed := testSeal.frame(testNonce, plain)
		got := make([]byte, len(sealed)+1)
		if n, err := r.read(bytes.NewReader(sealed), got); err == nil && !bytes.Equal(got[:n], sealed) {
			t.Errorf("%x is handed on as %x", sealed, got[:n])
		}
	})
}

// TestStreamsOfManyNetworksKeepNobodyOut has strangers of 200 networks hold silent
// streams, more than there are slots. Two members find each other at once.
func TestStreamsOfManyNetworksKeepNobodyOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		one := b.start(1, 1)
		var streams []net.Conn
		for i := range 200 {
			c, err := b.net.Dial(t.Context(), fmt.Sprintf("172.16.%d.1", i), address(1))
			if err == nil {
				streams = append(streams, c)
			}
			if i%50 == 49 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		one.transport.mu.Lock()
		if n := one.transport.incoming.Len(); n != incoming.Total-incoming.Reserved {
			t.Errorf("strangers hold %d slots, want %d", n, incoming.Total-incoming.Reserved)
		}
		one.transport.mu.Unlock()
		two := b.start(2, 1)
		b.within(500*time.Millisecond, "the members see each other", func() bool { return complete([]*Gossip{one, two}) })
		for _, c := range streams {
			c.Close()
		}
	})
}
