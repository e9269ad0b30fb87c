package fabric

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// TestCausesAreTyped: the texts that nodes of any build send each other, and the cause of
// each.
func TestCausesAreTyped(t *testing.T) {
	for words, want := range map[string]Cause{
		attach.CauseDied: PeerDied, attach.CauseDetached: PeerDetached, attach.CauseAborted: PeerAborted,
		attach.CauseStopped(3): NodeStopped, "session closed by peer: " + attach.CauseStopped(3): NodeStopped, "the fabricd of this node is gone": NodeStopped,
		"node removed: silent": NodeLost, "link silent 2.6 s": LinkSilent, "path silent 5.1 s": PathSilent,
		"the peer's node broke the protocol": ProtocolBroken, "a full moon": OtherCause,
	} {
		var err error = &OpError{Op: "recv", Err: fmt.Errorf("more words: %w", attach.Lost(words))}
		var lost *LostError
		if !errors.As(err, &lost) || lost.Cause != want || lost.Text != words || !errors.Is(lost, syscall.ECONNRESET) {
			t.Errorf("%q is %+v, want %v", words, lost, want)
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v is no reset", err)
		}
	}
	for _, err := range []error{status.Reset, attach.ErrPeerClosed, status.Refused, attach.Lost("")} {
		var lost *LostError
		if errors.As(&OpError{Op: "recv", Err: err}, &lost) {
			t.Errorf("%v has the cause %v", err, lost)
		}
	}
	seen := map[string]bool{}
	for c := OtherCause; c <= ProtocolBroken; c++ {
		seen[c.String()] = true
	}
	if len(seen) != int(ProtocolBroken)+1 || !strings.Contains(Cause(99).String(), "99") {
		t.Errorf("names of causes: %v", seen)
	}
}
