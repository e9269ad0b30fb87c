package verdict

import (
	"testing"
	"time"
)

// sentOn returns the changes of the table that were sent on a session, in order, and
// fails if a version is left out.
func sentOn(t *testing.T, out []Action, s SessionID, version uint64) (all []Message) {
	t.Helper()
	for _, a := range out {
		send, ok := a.(Send)
		if !ok || send.Session != s {
			continue
		}
		var v uint64
		switch m := send.Message.(type) {
		case Delta:
			v = m.Version
		case RemovedIncarnation:
			v = m.Version
		default:
			continue
		}
		if version++; v != version {
			t.Fatalf("version %d is sent as %+v", version, send.Message)
		}
		all = append(all, send.Message)
	}
	return all
}

// TestAJoinStormIsSentInAFewMessages: each of many joins in a short time is sent to a
// member once, and many of them in one message.
func TestAJoinStormIsSentInAFewMessages(t *testing.T) {
	b := newBench(t)
	b.join(1, 1)
	b.wait(time.Second, 1)
	version := b.h.version
	var out []Action
	const joins = 150
	for i := range joins {
		b.in(SessionID(2+i), joinOf(byte(2+i)))
		out = append(out, b.sync()...)
		out = append(out, b.wait(2*time.Millisecond)...)
	}
	out = append(out, b.wait(changesEvery)...)
	sent := sentOn(t, out, 1, version)
	entries := 0
	for _, m := range sent {
		entries += len(m.(Delta).Entries)
	}
	if most := int(joins*2*time.Millisecond/changesEvery) + 3; entries != joins || len(sent) > most {
		t.Errorf("%d joins are sent in %d messages of %d entries, want at most %d", joins, len(sent), entries, most)
	}
}

// TestAShortIncarnationIsSent: an incarnation that is over before its beginning was due to be sent is
// sent as begun, and then as over, at once.
func TestAShortIncarnationIsSent(t *testing.T) {
	b := newBench(t)
	b.join(1, 1)
	b.wait(time.Second, 1)
	version := b.h.version
	b.join(2, 2) // is sent at once
	out := b.out
	b.now = b.now.Add(time.Millisecond)
	short := b.join(3, 3)
	out = append(out, b.out...)
	b.now = b.now.Add(time.Millisecond)
	out = append(out, b.in(3, Leave{short})...)
	out = append(out, b.sync()...)
	sent := sentOn(t, out, 1, version)
	if len(sent) != 3 {
		t.Fatalf("sent: %+v", sent)
	}
	added, ok := sent[1].(Delta)
	removed, gone := sent[2].(RemovedIncarnation)
	if !ok || !gone || len(added.Entries) != 1 || added.Entries[0].Node.Incarnation != short || removed.Incarnation != short {
		t.Errorf("sent: %+v, want the beginning and the end of %v", sent[1:], short)
	}
}
