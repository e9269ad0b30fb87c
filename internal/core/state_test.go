package core

import (
	"errors"
	"syscall"
	"testing"
)

// TestCallByState writes scif.md's table out by errno; an empty cell is ok.
func TestCallByState(t *testing.T) {
	const (
		ok         = syscall.Errno(0)
		inval      = syscall.EINVAL
		isconn     = syscall.EISCONN
		notconn    = syscall.ENOTCONN
		reset      = syscall.ECONNRESET
		opnotsupp  = syscall.EOPNOTSUPP
		badf       = syscall.EBADF
		wantStates = 7
	)
	for _, row := range []struct {
		name string
		call Call
		want [wantStates]syscall.Errno // unbound, bound, listening, connecting, connected, disconnected, closed
	}{
		{"bind", CallBind, [...]syscall.Errno{ok, inval, isconn, isconn, isconn, isconn, badf}},
		{"listen", CallListen, [...]syscall.Errno{inval, ok, isconn, isconn, isconn, inval, badf}},
		{"connect", CallConnect, [...]syscall.Errno{ok, ok, opnotsupp, isconn, isconn, inval, badf}},
		{"accept", CallAccept, [...]syscall.Errno{inval, inval, ok, inval, inval, inval, badf}},
		{"send", CallSend, [...]syscall.Errno{notconn, notconn, notconn, notconn, ok, reset, badf}},
		{"recv", CallRecv, [...]syscall.Errno{notconn, notconn, notconn, notconn, ok, ok, badf}},
		{"memory", CallMemory, [...]syscall.Errno{notconn, notconn, notconn, notconn, ok, reset, badf}},
	} {
		for s := Unbound; s <= Closed; s++ {
			err := Check(row.call, s)
			if want := row.want[s]; want == ok && err != nil || want != ok && !errors.Is(err, want) {
				t.Errorf("%s in state %v: %v, want %v", row.name, s, err, want)
			}
		}
	}
	if int(states) != wantStates || int(calls) != 7 {
		t.Errorf("%d states and %d calls, the table has %d and 7", states, calls, wantStates)
	}
}

func TestStatesHaveNames(t *testing.T) {
	want := map[State]string{Unbound: "unbound", Bound: "bound", Listening: "listening",
		Connecting: "connecting", Connected: "connected", Disconnected: "disconnected", Closed: "closed"}
	for s, name := range want {
		if s.String() != name {
			t.Errorf("state %d is called %q, want %q", s, s, name)
		}
	}
}
