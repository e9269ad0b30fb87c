package hostile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/test/budget"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// A decoder decodes its input, whatever that is.
type decoder func([]byte)

// ignoring makes a decoder of a function whose results do not matter.
func ignoring[T any](f func([]byte) (T, error)) decoder {
	return func(p []byte) { _, _ = f(p) }
}

// body makes a decoder of one for a frame's body.
func body[T any](f func(uint8, []byte) (T, error)) decoder {
	return func(p []byte) { _, _ = f(0, p); _, _ = f(0xff, p) }
}

// TestDecodersStayInTheirBudget: no decoder allocates more than 64 KiB and four
// times the length of its input, whatever lengths are announced in it.
func TestDecodersStayInTheirBudget(t *testing.T) {
	c := newCluster(t)
	store := c.store(c.ca, trust.Identity{Cluster: c.id, Node: nodeUUID(9)}, c.ca.Certificate().NotBefore)
	decoders := map[string]decoder{
		"wire.Reader": func(p []byte) {
			r := wire.NewReader(bytes.NewReader(p))
			for {
				h, body, err := r.Next()
				if err != nil {
					return
				}
				switch f, werr := wire.ParseWrite(h.Flags, body); {
				case h.Type == wire.TypeWrite && werr == nil:
					err = r.Discard(int(f.Length))
				}
				if err != nil {
					return
				}
			}
		},
		"Hello": body(wire.ParseHello), "HelloRefuse": body(wire.ParseHelloRefuse), "Connect": body(wire.ParseConnect),
		"Accept": body(wire.ParseAccept), "Stream": body(wire.ParseStream), "Refuse": body(wire.ParseRefuse),
		"Probe": body(wire.ParseProbe), "Bye": body(wire.ParseBye),
		"Lease": body(wire.ParseLease), "Credit": body(wire.ParseCredit), "Close": body(wire.ParseClose), "Register": body(wire.ParseRegister),
		"Registered": body(wire.ParseRegistered), "Unregister": body(wire.ParseUnregister), "Unregistered": body(wire.ParseUnregistered),
		"Write": body(wire.ParseWrite), "Read": body(wire.ParseRead), "ReadData": body(wire.ParseReadData), "Done": body(wire.ParseDone),
		"Fail": body(wire.ParseFail), "Signal": body(wire.ParseSignal), "Atomic": body(wire.ParseAtomic), "Result": body(wire.ParseResult),
		"Mark": body(wire.ParseMark), "Marked": body(wire.ParseMarked), "Wait": body(wire.ParseWait), "Waited": body(wire.ParseWaited),
		"Path": body(wire.ParsePath), "NoPath": body(wire.ParseNoPath), "RMAPath": body(wire.ParseRMAPath), "NoRMAPath": body(wire.ParseNoRMAPath),
		"RMAPassed": body(wire.ParseRMAPassed), "End": body(wire.ParseEnd),
		"PeerSignal": body(wire.ParsePeerSignal), "PeerSignaled": body(wire.ParsePeerSignaled),
		"Heartbeat": ignoring(wire.ParseHeartbeat), "HeartbeatAck": ignoring(wire.ParseHeartbeatAck),

		"trust.ParseCredentials": ignoring(trust.ParseCredentials), "trust.LoadCA": ignoring(trust.LoadCA),
		"trust.DecodeKeyring": ignoring(trust.DecodeKeyring),
		"trust.ParseToken":    func(p []byte) { _, _ = trust.ParseToken(string(p)) },
		"trust.ParseTokenID":  func(p []byte) { _, _ = trust.ParseTokenID(string(p)) },
		"trust.ParseURI":      func(p []byte) { _, _ = trust.ParseURI(string(p)) },
		"control.VerifyLease": func(p []byte) { _, _ = control.VerifyLease(store, p) },
		"control.VerifyProof": func(p []byte) {
			_ = control.VerifyProof(store, nodeUUID(9), 1, addr.Incarnation{}, nil, p) // it proves nothing
		},
		"trust.RequestPin":  ignoring(trust.RequestPin),
		"trust.ParseIssued": ignoring(trust.ParseIssued),
		"gossip.DecodeMeta": ignoring(gossip.DecodeMeta),
		"state.ParseLease":  ignoring(state.ParseLease),
		"state.Unseal":      func(p []byte) { _, _ = state.Unseal("identity", p) },
	}
	inputs := hostileInputs(t)
	for name, decode := range decoders {
		for _, p := range inputs {
			budget.Hold(t, name, p, decode)
		}
	}
}

// TestDecodersOfTextStayInTheirBudget: text of users and files costs its length
// times a constant of the libraries that parse it.
func TestDecodersOfTextStayInTheirBudget(t *testing.T) {
	decoders := map[string]decoder{
		"history.Decode":         ignoring(history.Decode),
		"faults.Decode":          ignoring(faults.Decode),
		"failpoint.Parse":        ignoring(failpoint.Parse),
		"scenario.Decode":        func(p []byte) { _, _ = scenario.Decode("x.yaml", p) },
		"trust.DecodeTokenStore": ignoring(trust.DecodeTokenStore),
	}
	inputs := hostileInputs(t)
	for _, bomb := range []string{"[", "{", "[{},", `{"a":`, `["`, "[[],", "- ", "a: ", "a:\n- ", "{a: ", "? ", "&a [*a, ", "!!binary ", `{"at":1,"src":"lab",`, "1e999999999,"} {
		for _, n := range []int{1, 100, 10000, 60000} {
			inputs = append(inputs, []byte(strings.Repeat(bomb, n)), []byte("["+strings.Repeat(bomb, n)+"]"))
		}
	}
	for name, decode := range decoders {
		for _, p := range inputs {
			budget.HoldTimes(t, name, p, budget.TextFactor, decode)
		}
	}
}

// hostileInputs returns the committed vectors of the wire formats, the same cut
// off and with every length in them made larger, and noise.
func hostileInputs(t *testing.T) [][]byte {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var inputs [][]byte
	for _, pattern := range []string{"../../wire/testdata/v1/*.hex", "../../../membership/control/testdata/v2/*.hex"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) < 20 {
			t.Fatalf("%s: %d vectors, %v", pattern, len(names), err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			inputs = append(inputs, p, p[:len(p)/2])
			for range 4 { // a bomb: a length in the middle becomes the largest
				bomb := bytes.Clone(p)
				for i := random.IntN(len(bomb)); i < min(len(bomb), i+4); i++ {
					bomb[i] = 0xff
				}
				inputs = append(inputs, bomb)
			}
		}
	}
	for _, n := range []int{0, 1, 8, 64, 200, 4096, 1 << 16, 1 << 20} {
		for _, fill := range []byte{0, 1, 0x30, 0x7f, 0x80, 0xff, 'a', '\n'} {
			inputs = append(inputs, bytes.Repeat([]byte{fill}, n))
		}
		noise := make([]byte, n)
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		inputs = append(inputs, noise)
	}
	for _, length := range []uint32{1 << 16, 1 << 24, 1 << 31, 1<<32 - 1} { // announced at every place that may be one
		for at := range 12 {
			p := make([]byte, 64)
			binary.BigEndian.PutUint32(p[at:], length)
			q := make([]byte, 64)
			binary.LittleEndian.PutUint32(q[at:], length)
			inputs = append(inputs, p, q)
		}
	}
	return inputs
}

// TestConfigurationBombs: a configuration file that grows when it is read, or
// that is larger than any, is refused.
func TestConfigurationBombs(t *testing.T) {
	dir := t.TempDir()
	aliases := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for name := 'b'; name <= 'k'; name++ {
		aliases += string(name) + ": &" + string(name) + " [" + strings.Repeat("*"+string(name-1)+",", 8) + "*" + string(name-1) + "]\n"
	}
	for name, text := range map[string]string{
		"aliases of aliases":  aliases,
		"deep nesting":        strings.Repeat("[", 4000),
		"deep maps":           strings.Repeat("{a: ", 4000),
		"one long line":       strings.Repeat("a", 4<<20),
		"many lines":          strings.Repeat("name: x\n", 1<<19),
		"many lines that fit": strings.Repeat("name: x\n", 8000),
		"maps in a line":      strings.Repeat("a: ", 20000),
		"keys of keys":        "[" + strings.Repeat("? ", 30000) + "]",
		"tags of tags":        strings.Repeat("!!binary ", 7000),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "c.yaml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			const most = 64 << 20
			got := budget.Allocated(most, func() { _, err = daemon.Load(path, nil, nil) })
			if err == nil {
				t.Error("accepted")
			}
			if got > most {
				t.Errorf("%d MiB allocated for %d bytes", got>>20, len(text))
			}
		})
	}
}
