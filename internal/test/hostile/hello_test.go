package hostile

import (
	"math"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

// TestHelloThatLies has a member with a good certificate make false claims about
// itself. It is refused with the code of the specification and a reason that
// names the lie, in HelloRefuse and in the end of the session.
func TestHelloThatLies(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	t.Run("claims", func(t *testing.T) { testLies(t, r) })
	r.talk(a, b)
}

func testLies(t *testing.T, r *rig) {
	for name, c := range map[string]struct {
		lie    func(*wire.Hello)
		code   status.Code
		close  uint64
		reason string
	}{
		"uuid of another":         {func(h *wire.Hello) { h.FromUUID = nodeUUID(honestID) }, status.Access, transport.CodeWrongCluster, nodeUUID(evilID).String()},
		"ID of another":           {func(h *wire.Hello) { h.From = addr.Incarnation{Node: honestID, Generation: 1}; h.FromEpoch = 1 }, status.Access, transport.CodeWrongCluster, "leased to"},
		"the host":                {func(h *wire.Hello) { h.From.Node = addr.Host }, status.Access, transport.CodeWrongCluster, "host certificate"},
		"the victim":              {func(h *wire.Hello) { h.From = addr.Incarnation{Node: victimID, Generation: 1} }, status.NoDevice, transport.CodeIDMismatch, "node table"},
		"reserved ID":             {func(h *wire.Hello) { h.From.Node = addr.NoNode }, status.NoDevice, transport.CodeIDMismatch, "node table"},
		"old generation":          {func(h *wire.Hello) { h.From.Generation-- }, status.Reset, transport.CodeFenced, "is over"},
		"generation 0":            {func(h *wire.Hello) { h.From.Generation = 0 }, status.Reset, transport.CodeFenced, "is over"},
		"future generation":       {func(h *wire.Hello) { h.From.Generation = math.MaxUint32 }, status.NoDevice, transport.CodeIDMismatch, "node table"},
		"other epoch":             {func(h *wire.Hello) { h.FromEpoch++ }, status.Reset, transport.CodeFenced, "started again"},
		"other cluster":           {func(h *wire.Hello) { h.Cluster[3]++ }, status.Access, transport.CodeWrongCluster, clusterID.String()},
		"for another incarnation": {func(h *wire.Hello) { h.To.Generation++ }, status.NoDevice, transport.CodeIDMismatch, "is not here"},
		"for another node":        {func(h *wire.Hello) { h.To.Node = honestID }, status.NoDevice, transport.CodeIDMismatch, "is not here"},
		"versions to come":        {func(h *wire.Hello) { h.VersionMin, h.VersionMax = 700, 900 }, status.Version, transport.CodeVersion, "700 to 900"},
		"versions long gone":      {func(h *wire.Hello) { h.VersionMin, h.VersionMax = 0, 0 }, status.Version, transport.CodeVersion, "0 to 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lie := hello()
			c.lie(&lie)
			sess := r.dial()
			defer sess.Close(transport.CodeOK, "")
			ctrl, err := sess.OpenStream(within(t))
			if err != nil {
				t.Fatal(err)
			}
			greeting := lie.AppendTo(nil)
			if lie.VersionMin == wire.VersionMin { // of another version it says nothing more
				greeting = wire.Lease{}.AppendTo(greeting)
			}
			if _, err := ctrl.Write(greeting); err != nil {
				t.Fatal(err)
			}
			checkRefusal(t, sess, c.code, c.reason)
			if why := wantClosed(t, sess, c.close); !strings.Contains(why, c.reason) {
				t.Errorf("session closed because %q, want %q", why, c.reason)
			}
		})
	}
}

// checkRefusal checks the HelloRefuse that the victim sends, if the session's
// end does not overtake it.
func checkRefusal(t *testing.T, sess transport.Session, code status.Code, reason string) {
	t.Helper()
	stream, err := sess.AcceptStream(within(t))
	if err != nil {
		return
	}
	head, body, err := wire.NewReader(stream).Next()
	if err != nil || head.Type != wire.TypeHelloRefuse {
		t.Fatalf("answered with %v, %v", head.Type, err)
	}
	f, err := wire.ParseHelloRefuse(head.Flags, body)
	if err != nil || f.Code != code || !strings.Contains(f.Reason, reason) {
		t.Errorf("refused with %v, %q, %v; want %v and %q", f.Code, f.Reason, err, code, reason)
	}
	if f.VersionMin != wire.VersionMin || f.VersionMax != wire.VersionMax {
		t.Errorf("the refusal names versions %d to %d", f.VersionMin, f.VersionMax)
	}
}

// TestOpeningsThatAreNone begins a link with everything but a HELLO.
func TestOpeningsThatAreNone(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	answer := hello()
	answer.Answer, answer.VersionMin = true, answer.VersionMax
	t.Run("openings", func(t *testing.T) {
		for name, first := range map[string][]byte{
			"zeros":                make([]byte, 64),
			"ones":                 []byte(strings.Repeat("\xff", 64)),
			"an answer":            answer.AppendTo(nil),
			"another frame":        wire.Connect{Conn: 1, From: 1, To: 1}.AppendTo(nil),
			"a refusal":            wire.HelloRefuse{Code: status.Access, VersionMax: 1}.AppendTo(nil),
			"half a HELLO":         hello().AppendTo(nil)[:40],
			"a body of 4 GiB":      {byte(wire.TypeHello), 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
			"no lease":             hello().AppendTo(nil),
			"half a lease":         wire.Lease{Length: 9}.AppendTo(hello().AppendTo(nil))[:80],
			"less lease than said": append(wire.Lease{Length: 9}.AppendTo(hello().AppendTo(nil)), 1, 2, 3),
			"a lease of 4 GiB":     append(hello().AppendTo(nil), byte(wire.TypeLease), 0, 0, 0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff),
			"something else":       append(hello().AppendTo(nil), wire.ByeAck{}.AppendTo(nil)...),
			"versions reversed":    {byte(wire.TypeHello), 0, 0, 0, 0, 0, 0, 64, 0, 9, 0, 1},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				sess := r.dial()
				defer sess.Close(transport.CodeOK, "")
				stream, err := sess.OpenStream(within(t))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := stream.Write(append(first, make([]byte, 64)...)[:max(len(first), 8)]); err != nil {
					t.Fatal(err)
				}
				stream.Close()
				wantClosed(t, sess, transport.CodeProtocol)
			})
		}
	})
	r.talk(a, b)
}
