package control

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// -add writes the vectors that are missing. Those that exist are promises to
// nodes already deployed and are never written again.
var addVectors = flag.Bool("add", false, "write missing golden vectors")

var (
	uuidA        = addr.UUID{0xA0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	uuidB        = addr.UUID{0xB0, 15: 0xFF}
	incarnationA = addr.Incarnation{Node: 0x0102, Generation: 0x03040506}
	sayA         = verdict.Identity{UUID: uuidA, Epoch: 7, Claims: must(verdict.NewClaims("n", []string{"a:1"}, []string{"quic"}))}
	endA         = End{UUID: uuidA, Epoch: 7, Incarnation: incarnationA, Term: 9, Host: true}
	entry        = verdict.Entry{
		Node: verdict.Node{Incarnation: incarnationA, Identity: verdict.Identity{UUID: uuidA, Epoch: 7,
			Claims: must(verdict.NewClaims("kathe", []string{"10.0.0.1:7946", "[::1]:7946"}, []string{"quic", "tcp"}))},
			State: verdict.Alive, Labels: []string{"db"}, Until: time.Unix(1_800_000_000, 7).UTC(), Since: time.Unix(1_700_000_000, 42).UTC()},
		Reason: verdict.ReasonCrashed,
	}
)

// frames has one of every frame, under the name of its vector.
var frames = map[string]any{
	"hello":     Hello{VersionMin: 1, VersionMax: 2, Cluster: uuidB, From: endA, Lease: []byte{1, 2}, To: Target{UUID: uuidB, Epoch: 8, Incarnation: incarnationA}, Challenge: []byte{9, 8}},
	"welcome":   Welcome{Version: 2, From: endA, Lease: []byte{1, 2}, Proof: []byte{3}},
	"refuse":    Refuse{Code: CodeToken, VersionMin: 1, VersionMax: 1, Text: "token used up"},
	"close":     Close{Text: "done"},
	"beat":      Beat{Seq: 3},
	"joinask":   JoinAsk{VersionMin: 1, VersionMax: 1, Name: "n", Token: trust.TokenID{1, 2}, Proof: trust.Proof{3, 4}, Request: []byte{5, 6}},
	"joingrant": JoinGrant{Cluster: uuidB, Host: uuidA, Node: uuidB, Certificate: []byte{1}, Roots: [][]byte{{2}, {3}}, Keyring: []byte{4}, Gossip: "10.0.0.1:7947"},

	"join":        verdict.Join{Identity: sayA, Previous: incarnationA, Term: 5, Lease: []byte{7}},
	"joinwant":    verdict.Join{Identity: sayA, Previous: incarnationA, Term: 5, Lease: []byte{7}, Want: 0x0708},
	"resume":      verdict.Resume{Identity: sayA, Incarnation: incarnationA, Term: 5, HostOver: 4, Lease: []byte{7}},
	"leave":       verdict.Leave{Incarnation: incarnationA},
	"report":      verdict.Report{About: incarnationA, Evidence: verdict.LinkSilent},
	"check":       verdict.Check{Nonce: 1, Contact: must(verdict.NewContact(incarnationA, uuidA, 7, []string{"a:1"})), Challenge: []byte{9}},
	"checkresult": verdict.CheckResult{Nonce: 1, Target: incarnationA, Reached: true, Proof: []byte{3}},
	"ack":         verdict.Ack{Incarnation: incarnationA},
	"ping":        verdict.Ping{Incarnation: incarnationA, Nonce: 2, Version: 3},
	"pong":        verdict.Pong{Term: 1, Nonce: 2, Version: 3},
	"sync":        verdict.Sync{},
	"grant":       verdict.Grant{Term: 1, Incarnation: incarnationA, Lease: []byte{8, 9}},
	"refused":     verdict.Refused{Term: 1, Code: verdict.RefusedFull, Text: "full"},
	"table":       verdict.Table{Term: 1, Version: 2, First: true, Last: true, Entries: []verdict.Entry{entry, entry}},
	"delta":       verdict.Delta{Term: 1, Version: 2, Entries: []verdict.Entry{entry}},
	"renew":       Renew{Request: []byte{5, 6}},
	"certificate": Certificate{Certificate: []byte{1}, Roots: [][]byte{{2}, {3}}, Text: "no"},
	"keys":        Keys{Seq: 3, Keyring: []byte{4}},
	"keysheld":    KeysHeld{Seq: 3},
	"roots":       Roots{Seq: 4, Roots: [][]byte{{2}, {3}}, Renew: true},
	"rootsheld":   RootsHeld{Seq: 4},
	"bans":        Bans{First: true, Last: true, Nodes: []addr.UUID{uuidA, uuidB}},
	"services":    services.List{Incarnation: incarnationA, Seq: 7, Services: []services.Service{{Name: "db", Port: 0x8001}, {Name: "web", Port: 80}}},
	"removed":     verdict.RemovedIncarnation{Term: 1, Version: 2, Incarnation: incarnationA, Reason: verdict.ReasonSilent},
}

// parse parses one whole frame.
func parse(b []byte) (any, error) {
	if len(b) < HeaderLen || int(binary.BigEndian.Uint32(b)) != len(b)-HeaderLen {
		return nil, ErrMalformed
	}
	return parseBody(frameType(b[4]), b[HeaderLen:])
}

func TestGoldenVectors(t *testing.T) {
	for name, f := range frames {
		got, err := AppendFrame(nil, f)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		path := filepath.Join("testdata", "v2", name+".hex")
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && *addVectors {
			text = []byte(hex.EncodeToString(got) + "\n")
			err = os.WriteFile(path, text, 0o644)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: encoded\n%x, the vector is\n%x (%v)", name, got, want, err)
		}
		back, err := parse(want)
		if err != nil || !reflect.DeepEqual(back, f) {
			t.Errorf("%s: the vector decodes to\n%+v (%v), want\n%+v", name, back, err, f)
		}
	}
}

func TestEveryTruncationIsMalformed(t *testing.T) {
	for name, f := range frames {
		b, _ := AppendFrame(nil, f)
		body := b[HeaderLen:]
		for n := range len(body) {
			if got, err := parseBody(frameType(b[4]), body[:n]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: its first %d bytes decode to %+v, %v", name, n, got, err)
			}
		}
		if _, err := parseBody(frameType(b[4]), append(body, 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: a byte after the end is accepted", name)
		}
	}
	for _, typ := range []frameType{0, 6, 7, 10, 15, 31, 40, 255} {
		if _, err := parseBody(typ, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("type %d is accepted", typ)
		}
	}
}

// TestTextsForPeoplePrint: a text for people is cut and made to print by its sender, and malformed
// where it does not.
func TestTextsForPeoplePrint(t *testing.T) {
	for text, want := range map[string]string{
		strings.Repeat("ä", 200):       strings.Repeat("ä", 128),
		"x" + strings.Repeat("ä", 200): "x" + strings.Repeat("ä", 127),
		"\xff a\x1b[2Jb\r\nc":          "? a?[2Jb??c",
	} {
		b, err := AppendFrame(nil, Close{Text: text})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parse(b); err != nil || got != (Close{Text: want}) {
			t.Errorf("%q arrives as %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"\x1b", "a\nb", "\u202e"} {
		body := append([]byte{0, byte(len(text))}, text...)
		if _, err := parseBody(typeClose, body); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, f := range map[string]any{
		"not UTF-8":   JoinAsk{Name: "\xff"},
		"bans":        Bans{Nodes: make([]addr.UUID, maxBans+1)},
		"challenge":   Hello{Challenge: make([]byte, verdict.MaxChallenge+1)},
		"name":        JoinAsk{Name: long},
		"reason":      verdict.RemovedIncarnation{Reason: verdict.Reason(long)},
		"entries":     verdict.Table{Entries: make([]verdict.Entry, verdict.MaxEntries+1)},
		"certificate": JoinGrant{Certificate: make([]byte, maxCertificate+1)},
		"changes":     verdict.Delta{Entries: make([]verdict.Entry, verdict.MaxDelta+1)},
		"grant":       verdict.Grant{Lease: make([]byte, verdict.MaxLease+1)},
		"request":     Renew{Request: make([]byte, maxCertificate+1)},
		"services":    services.List{Services: make([]services.Service, services.MaxPerNode+1)},
		"service":     services.List{Services: []services.Service{{Name: strings.Repeat("x", addr.MaxService+1), Port: 1}}},
		"roots":       JoinGrant{Roots: make([][]byte, maxRoots+1)},
	} {
		b, err := AppendFrame([]byte("kept"), f)
		if !errors.Is(err, ErrTooLarge) || string(b) != "kept" {
			t.Errorf("%s: AppendFrame returned %q, %v, want the prefix and ErrTooLarge", name, b, err)
		}
	}
}

// TestClaimsEnterChecked: a frame with claims that no node can make is malformed, and the error
// names the claim.
func TestClaimsEnterChecked(t *testing.T) {
	text := func(s string) []byte { return append([]byte{0, byte(len(s))}, s...) }
	for _, c := range []struct{ frame, good, bad, why string }{
		{"join", "n", "\n", "name"}, {"join", "a:1", "a:0", "address"}, {"join", "quic", "q ic", "provider"},
		{"resume", "n", "\n", "name"}, {"resume", "a:1", "a:x", "address"}, {"resume", "quic", "q\x1bic", "provider"},
		{"table", "kathe", "käth", "name"}, {"table", "[::1]:7946", "[::]:17946", "address"}, {"table", "tcp", "t\np", "provider"},
		{"table", "db", "d ", "labels"}, {"delta", "kathe", "k the", "name"}, {"delta", "10.0.0.1:7946", "10.0.0.1:794x", "address"},
		{"services", "db", "d ", "service"}, {"services", "db", "77", "service"}, {"services", "db", "zz", "service"}, {"delta", "quic", "qu/c", "provider"}, {"delta", "db", "d\n", "labels"}, {"check", "a:1", "a;1", "address"},
	} {
		b := must(AppendFrame(nil, frames[c.frame]))
		bad := bytes.Replace(b, text(c.good), text(c.bad), 1)
		if bytes.Equal(bad, b) {
			t.Fatalf("%s has no %q", c.frame, c.good)
		}
		if got, err := parse(bad); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "the "+c.why) {
			t.Errorf("%s with %q: %+v, %v, want a malformed frame because of the %s", c.frame, c.bad, got, err, c.why)
		}
	}
	silent := must(AppendFrame(nil, verdict.Delta{Entries: []verdict.Entry{{Node: verdict.Node{State: verdict.Alive}}}}))
	if got, err := parse(silent); !errors.Is(err, ErrMalformed) {
		t.Errorf("an alive node without claims: %+v, %v", got, err)
	}
	silent = must(AppendFrame(nil, verdict.Delta{Entries: []verdict.Entry{{Node: verdict.Node{State: verdict.Suspect}}}}))
	if _, err := parse(silent); err != nil {
		t.Errorf("a node that the host does not know: %v", err)
	}
}

func TestLargeTablesAreSplit(t *testing.T) {
	far := slices.Repeat([]string{strings.Repeat("a", verdict.MaxAddress-2) + ":1"}, verdict.MaxAddresses)
	big := verdict.Node{State: verdict.Alive}
	big.Claims = must(verdict.NewClaims(strings.Repeat("n", verdict.MaxName), far,
		slices.Repeat([]string{strings.Repeat("p", verdict.MaxProvider)}, verdict.MaxProviders)))
	big.Labels = slices.Repeat([]string{strings.Repeat("l", verdict.MaxLabel)}, verdict.MaxLabels)
	changes := verdict.Delta{Entries: slices.Repeat([]verdict.Entry{{Node: big, Reason: "partitioned-else"}}, verdict.MaxDelta)}
	if _, err := AppendFrame(nil, changes); err != nil {
		t.Errorf("the largest changes do not fit in a frame: %v", err)
	}
	whole := verdict.Table{Term: 1, Version: 2, First: true, Last: true}
	for i := range verdict.MaxEntries {
		big.Incarnation = addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		whole.Entries = append(whole.Entries, verdict.Entry{Node: big})
	}
	parts := splitTable(whole)
	if len(parts) < 2 {
		t.Fatalf("%d part, want several: the table does not fit in a frame", len(parts))
	}
	var entries []verdict.Entry
	for i, p := range parts {
		if _, err := AppendFrame(nil, p); err != nil {
			t.Errorf("part %d does not fit: %v", i, err)
		}
		if p.First != (i == 0) || p.Last != (i == len(parts)-1) || p.Version != 2 || p.Term != 1 {
			t.Errorf("part %d of %d: first %v, last %v", i, len(parts), p.First, p.Last)
		}
		entries = append(entries, p.Entries...)
	}
	if !reflect.DeepEqual(entries, whole.Entries) {
		t.Error("the parts do not add up to the table")
	}
}

func FuzzParseBody(f *testing.F) {
	for _, x := range frames {
		b, _ := AppendFrame(nil, x)
		f.Add(b[4], b[HeaderLen:])
	}
	f.Fuzz(func(t *testing.T, typ uint8, body []byte) {
		if len(body) > MaxBody {
			return
		}
		x, err := parseBody(frameType(typ), body)
		if err != nil {
			return
		}
		b, err := AppendFrame(nil, x)
		if err != nil || b[4] != typ || !bytes.Equal(b[HeaderLen:], body) {
			t.Errorf("type %d, %x decodes to %+v, which encodes to type %d, %x, %v", typ, body, x, b[4], b[HeaderLen:], err)
		}
	})
}
