package gossip

import (
	"bytes"
	"context"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
)

// The seals of the vectors.
var (
	testSeal  = seal{keys: [][]byte{testKey}, label: testCluster.String()}
	testNonce = []byte("vector nonce")
	// testSecret is one that a session would have given.
	testSecret = []byte("what the two ends of a session know")
	stranger   = key(9, 1) // the second implementation as a member
	versions   = []byte{1, 5, 2, 0, 0, 0}
)

// A field is one of a message of SPEC.md.
type field struct {
	typ      string // bytes, int or bool
	optional bool
}

type layout struct {
	number byte
	name   string
	where  string
	fields map[string]field // nil: not of MessagePack, or not said
}

// specification reads the tables of messages and of push-pull's entries.
func specification(t *testing.T) (all map[byte]layout, entry map[string]field) {
	t.Helper()
	b, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	all = map[byte]layout{}
	row := regexp.MustCompile(`(?m)^\| (\d+) \| ([a-z-]+) \| ([PS ]+) \| (.*) \|$`)
	for _, m := range row.FindAllStringSubmatch(string(b), -1) {
		n, _ := strconv.ParseUint(m[1], 10, 8)
		l := layout{number: byte(n), name: m[2], where: m[3]}
		for _, f := range regexp.MustCompile(`([A-Z]\w*)(\??) (int|bytes|bool)`).FindAllStringSubmatch(m[4], -1) {
			if l.fields == nil {
				l.fields = map[string]field{}
			}
			l.fields[f[1]] = field{typ: f[3], optional: f[2] != ""}
		}
		all[l.number] = l
	}
	entry = map[string]field{}
	row = regexp.MustCompile(`(?m)^\| ([A-Z]\w*) \| (int|bytes|bool) \| .*\|$`)
	for _, m := range row.FindAllStringSubmatch(string(b), -1) {
		entry[m[1]] = field{typ: m[2]}
	}
	if len(all) < 10 || len(entry) < 5 {
		t.Fatalf("SPEC.md: %d messages and %d fields of an entry found: the tables are not read right", len(all), len(entry))
	}
	return all, entry
}

// fits compares a received message with a table of SPEC.md.
func fits(got map[string]any, want map[string]field) error {
	for name, v := range got {
		f, ok := want[name]
		if !ok {
			return fmt.Errorf("field %s is not in SPEC.md", name)
		}
		typ := map[bool]string{true: "bytes"}[v == nil]
		switch v.(type) {
		case []byte:
			typ = "bytes"
		case uint64:
			typ = "int"
		case bool:
			typ = "bool"
		}
		if typ != f.typ {
			return fmt.Errorf("field %s is %s, in SPEC.md %s", name, typ, f.typ)
		}
	}
	for name, f := range want {
		if _, ok := got[name]; !ok && !f.optional {
			return fmt.Errorf("field %s is missing", name)
		}
	}
	return nil
}

// A wiretap keeps the packets that the members send.
type wiretap struct {
	mu      sync.Mutex // guards the fields below
	packets [][]byte
	streams map[string][]byte // by "from to"
}

func (w *wiretap) take(from, to string, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.HasSuffix(from, ":7947") && strings.HasSuffix(to, ":7947") {
		w.packets = append(w.packets, bytes.Clone(data))
		return
	}
	w.streams[from+" "+to] = append(w.streams[from+" "+to], data...)
}

// opened returns all messages, by "P" and "S".
func (w *wiretap) opened(t *testing.T) map[string][]message {
	t.Helper()
	out := map[string][]message{}
	for _, b := range w.packets {
		list, err := testSeal.openPacket(b)
		if err != nil {
			t.Errorf("packet %x: %v", b, err)
		}
		if len(b) > 1405 {
			t.Errorf("packet of %d bytes, SPEC.md says 1405 at most", len(b))
		}
		out["P"] = append(out["P"], list...)
	}
	for way, b := range w.streams {
		if strings.HasPrefix(way, hostIP(8)) {
			continue // a packet of garble
		}
		if from, _, _ := strings.Cut(way, " "); !strings.HasSuffix(from, ":7947") {
			rest, err := testSeal.cutHeader(b)
			if err != nil {
				t.Errorf("stream %s: %v", way, err)
				continue
			}
			b = rest
		}
		plain, err := testSeal.readFrame(bytes.NewReader(b))
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			continue // cut off by the partition
		}
		list, err2 := messages(plain)
		if err != nil || err2 != nil {
			t.Errorf("stream %s: %v, %v", way, err, err2)
		}
		out["S"] = append(out["S"], list...)
	}
	return out
}

// Everything that members send in an eventful incarnation is as SPEC.md has it, and
// every message that it lists as sent is seen.
func TestSpecificationDescribesTheWire(t *testing.T) {
	all, entry := specification(t)
	tap := &wiretap{streams: map[string][]byte{}}
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		b.net.Capture(tap.take)
		defer b.net.Capture(nil)
		live(b)
		garble(b)
	})
	seen := map[string]bool{}
	for where, list := range tap.opened(t) {
		for _, m := range list {
			seen[fmt.Sprint(m.number, where)] = true
			if m.number == 12 || m.number == 7 {
				continue
			}
			l, ok := all[m.number]
			if !ok || !strings.Contains(l.where, where) {
				t.Errorf("message %d in %s is not in SPEC.md: %v", m.number, where, m.maps)
				continue
			}
			if err := fits(m.maps[0], l.fields); err != nil {
				t.Errorf("%s: %v", l.name, err)
			}
			for _, e := range m.maps[1:] {
				if err := fits(e, entry); err != nil {
					t.Errorf("entry of %s: %v", l.name, err)
				}
			}
		}
	}
	for n, l := range all {
		for _, where := range strings.Fields(l.where) {
			if sent := l.name != "compressed" && l.name != "error"; seen[fmt.Sprint(n, where)] != sent {
				t.Errorf("%s in %s: seen %v, in SPEC.md it is sent: %v", l.name, where, !sent, sent)
			}
		}
	}
	if !seen["12P"] {
		t.Error("no packet with a checksum was seen")
	}
}

// live lets four members meet, one of them die, one leave, and the last two
// lose so many packets that they probe each other over streams.
func live(b *bench) {
	list := []*Gossip{b.start(1, 1), b.start(2, 1), b.start(3, 1), b.start(4, 1)}
	b.within(5*time.Second, "all meet", func() bool { return complete(list) })
	if err := list[1].SendLossReport(list[0].Self(), testSecret, 1); err != nil {
		b.t.Error(err)
	}
	b.kill(4, list[3])
	b.within(30*time.Second, "the dead one is gone", func() bool { return complete(list[:3]) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := list[2].Leave(ctx); err != nil {
		b.t.Error(err)
	}
	list[2].Close()
	b.within(5*time.Second, "the leaver is gone", func() bool { return complete(list[:2]) })
	calm := netsim.Rules{Delay: 250 * time.Microsecond}
	b.net.SetDefaultRules(netsim.Rules{Delay: 250 * time.Microsecond, Loss: 0.8})
	time.Sleep(20 * time.Second)
	b.net.SetDefaultRules(calm)
	time.Sleep(5 * time.Second)
}

// garble sends member 1 a stream that does not open, and expects no answer.
func garble(b *bench) {
	c, err := b.net.Dial(b.t.Context(), hostIP(8), address(1))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	bad := testSeal.frame(testNonce, []byte{6})
	bad[len(bad)-1]++
	c.Write(append(testSeal.header(), bad...))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		b.t.Errorf("a stream that does not open is answered: %d bytes, %v", n, err)
	}
}

// The second implementation, with nothing but SPEC.md, joins, is believed, is probed and answers,
// reads others' messages, and leaves.
func TestSecondImplementationTakesPart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		g := b.start(1, 1)
		g2 := b.start(2, 1)
		b.within(5*time.Second, "both meet", func() bool { return complete([]*Gossip{g, g2}) })
		s := b.second()
		var done sync.WaitGroup
		done.Go(s.answer)
		joined := s.join(vector(t, "stream-push-pull"))
		b.within(time.Second, "the second implementation is a member", func() bool { return slices.Contains(names(g.Members()), stranger.String()) })
		for _, want := range []string{key(1, 1).String(), key(2, 1).String()} {
			if !slices.Contains(joined, want) {
				t.Errorf("the answer to push-pull names %q, want %s too", joined, want)
			}
		}
		time.Sleep(10 * time.Second) // many probe intervals
		if !slices.Contains(names(g2.Members()), stranger.String()) {
			t.Error("it answers every ping and was given up all the same")
		}
		s.mu.Lock()
		pings, acks, own := s.pings, s.acks, s.own
		s.mu.Unlock()
		if pings < 10 || acks != 1 || !own {
			t.Errorf("it had %d pings, %d acks for its one, received about itself: %v", pings, acks, own)
		}
		s.send(vector(t, "packet-loss-report"))
		var got []LossReport
		b.within(time.Second, "the first knows that nothing of it arrives", func() bool {
			got = append(got, g.TakeLossReports()...)
			return len(got) > 0
		})
		if len(got) != 1 || got[0].From != stranger || got[0].Number != 7 || !got[0].Proves(testSecret) || len(g2.TakeLossReports()) > 0 {
			t.Errorf("loss reports: %+v, want one, of %v alone", got, stranger)
		}
		s.send(vector(t, "packet-dead"))
		b.within(2*time.Second, "both know that it has left", func() bool {
			return !slices.Contains(append(names(g.Members()), names(g2.Members())...), stranger.String())
		})
		for _, gone := range [][]string{newestOf(g, stranger), newestOf(g2, stranger)} {
			if len(gone) != 1 || gone[0] != "gone leaving=true" {
				t.Errorf("the last word about it is %q, want that it left", gone)
			}
		}
		s.packets.Close()
		done.Wait()
	})
}

// newestOf returns the newest report about k that g has not taken yet.
func newestOf(g *Gossip, k Key) (list []string) {
	for _, r := range g.Take() {
		if r.Member.Key() == k {
			list = append(list, fmt.Sprintf("%v leaving=%v", r.Kind, r.Member.Meta.Leaving))
		}
	}
	return list
}

// A second is a member of the second implementation.
type second struct {
	b       *bench
	packets net.PacketConn

	mu    sync.Mutex // guards the fields below
	nonce byte
	pings int  // received
	acks  int  // received for the ping of the vectors
	own   bool // an alive message about it came by
}

func (b *bench) second() *second {
	packets, err := b.net.ListenPacket(address(9))
	if err != nil {
		b.t.Fatal(err)
	}
	return &second{b: b, packets: packets}
}

// join sends a push-pull and the ping, and returns the members that the answer names.
func (s *second) join(stream []byte) (names []string) {
	s.b.t.Helper()
	c, err := s.b.net.Dial(s.b.t.Context(), hostIP(9), address(1))
	if err != nil {
		s.b.t.Fatal(err)
	}
	defer c.Close()
	c.Write(stream)
	plain, err := testSeal.readFrame(c)
	if err != nil {
		s.b.t.Fatal(err)
	}
	list, err := messages(plain)
	if err != nil || list[0].number != 6 {
		s.b.t.Fatalf("answer to push-pull: %v, %v", list, err)
	}
	for _, e := range list[0].maps[1:] {
		name, _ := e["Name"].([]byte)
		names = append(names, string(name))
	}
	s.send(vector(s.b.t, "packet-ping"))
	s.send(vector(s.b.t, "packet-alive-leaving"))
	return names
}

func (s *second) send(packet []byte) {
	at, _ := net.ResolveUDPAddr("udp", address(1))
	s.packets.WriteTo(packet, at)
}

// answer reads packets until the socket is closed.
func (s *second) answer() {
	buf := make([]byte, 2048)
	for {
		n, from, err := s.packets.ReadFrom(buf)
		if err != nil {
			return
		}
		list, err := testSeal.openPacket(buf[:n])
		if err != nil {
			s.b.t.Errorf("packet from %v: %v", from, err)
		}
		for _, m := range list {
			s.handle(m, from)
		}
	}
}

func (s *second) handle(m message, from net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.number == 0 && m.text("Node") == stranger.String():
		s.pings++
		s.nonce++
		seq, _ := m.maps[0]["SeqNo"].(uint64)
		ack := appendMap([]byte{2}, pair{"SeqNo", int(seq)}, pair{"Payload", nil})
		s.packets.WriteTo(testSeal.packet(append(bytes.Clone(testNonce[:11]), s.nonce), ack), from)
	case m.number == 2 && m.maps[0]["SeqNo"] == uint64(pingSeq):
		s.acks++
	case m.number == 4 && m.text("Node") == stranger.String():
		s.own = true
	}
}

const pingSeq = 0x01020304

//go:embed testdata/v1/*.hex
var vectors embed.FS

func vector(t *testing.T, name string) []byte {
	t.Helper()
	text, err := vectors.ReadFile("testdata/v1/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// The second implementation makes the vectors; that a member understands them,
// TestSecondImplementationTakesPart shows.
func TestVectors(t *testing.T) {
	self, first := []byte(stranger.String()), key(1, 1)
	ip := []byte{10, 0, 0, 9}
	said := meta(9)
	said.Cluster = testCluster
	said.Addresses, said.Providers = []string{"10.0.0.9:7946"}, []string{"quic"}
	staying, err := said.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	said.Leaving = true
	leaving, err := said.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	state := appendMap([]byte{6}, pair{"Nodes", 1}, pair{"UserStateLen", 0}, pair{"Join", true})
	state = appendMap(state, pair{"Name", self}, pair{"Addr", ip}, pair{"Port", 7947}, pair{"Meta", staying},
		pair{"Incarnation", 1}, pair{"State", 0}, pair{"Vsn", versions})
	golden := map[string][]byte{
		"meta": staying,
		"packet-ping": testSeal.packet(testNonce, appendMap([]byte{0}, pair{"SeqNo", pingSeq},
			pair{"Node", []byte(key(1, 1).String())}, pair{"SourceAddr", ip}, pair{"SourcePort", 7947}, pair{"SourceNode", self})),
		"packet-alive-leaving": testSeal.packet(testNonce, appendMap([]byte{4}, pair{"Incarnation", 2}, pair{"Node", self},
			pair{"Addr", ip}, pair{"Port", 7947}, pair{"Meta", leaving}, pair{"Vsn", versions})),
		"packet-dead": testSeal.packet(testNonce, appendMap([]byte{5}, pair{"Incarnation", 2}, pair{"Node", self}, pair{"From", self})),
		"packet-loss-report": testSeal.packet(testNonce, append([]byte{8}, provedLossReport(testSecret, slices.Concat([]byte{1, 1},
			stranger.UUID[:], []byte{0, 0, 0, 0, 0, 0, 0, byte(stranger.Epoch)},
			first.UUID[:], []byte{0, 0, 0, 0, 0, 0, 0, byte(first.Epoch)}, []byte{0, 0, 0, 0, 0, 0, 0, 7}))...)),
		"stream-push-pull": append(testSeal.header(), testSeal.frame(testNonce, state)...),
	}
	files, err := vectors.ReadDir("testdata/v1")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(golden) {
		t.Errorf("%d vectors for %d of the test", len(files), len(golden))
	}
	for name, want := range golden {
		if got := vector(t, name); !bytes.Equal(got, want) {
			t.Errorf("%s is\n%x, the second implementation makes\n%x", name, got, want)
		}
	}
	if m, err := DecodeMeta(vector(t, "meta")); err != nil || m.Incarnation != meta(9).Incarnation || m.Cluster != testCluster {
		t.Errorf("the vector of meta is decoded as %+v, %v", m, err)
	}
}

// The keys seal in their order, and every one of them opens.
func TestVectorOpensUnderAnyKey(t *testing.T) {
	s := testSeal
	s.keys = [][]byte{bytes.Repeat([]byte{7}, 32), testKey}
	list, err := s.openPacket(vector(t, "packet-ping"))
	if err != nil || len(list) != 1 || list[0].number != 0 {
		t.Errorf("opened %v, %v", list, err)
	}
	s.keys = s.keys[:1]
	if _, err := s.openPacket(vector(t, "packet-ping")); err == nil {
		t.Error("a key that is not in the ring opened it")
	}
}
