package fabric

import (
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// TestEveryErrorNamesItsEndsAndItsCause holds the text of every call with every
// code that a peer or a node can answer: the call, both ends and the cause are
// in it, on one line, and it names no internals.
func TestEveryErrorNamesItsEndsAndItsCause(t *testing.T) {
	local, remote := Addr{Node: 1, Port: 1088}, Addr{Node: 2, Port: 2050}
	calls := []string{"attach", "open", "close", "bind", "listen", "connect", "accept", "send", "recv", "poll", "register", "unregister", "mmap",
		"munmap", "writeto", "readfrom", "vwriteto", "vreadfrom", "atomic", "putsignal", "vputsignal", "word", "acquire", "release", "fence_mark", "fence_wait", "fence_signal", "get_nodeids"}
	for code := status.Invalid; code <= status.Canceled; code++ {
		for _, call := range calls {
			text := (&OpError{call, local, remote, code}).Error()
			if !strings.HasPrefix(text, call+" 1:1088->2:2050: "+code.Error()) {
				t.Errorf("%q does not begin with the call, its ends and %q", text, code.Error())
			}
			if strings.ContainsAny(text, "\n") || strings.Contains(text, "%!") || strings.Contains(strings.ToLower(text), "internal") {
				t.Errorf("%q says nothing to its reader", text)
			}
		}
	}
}

// TestHintsSayWhatToDo has the hints that are in no other test.
func TestHintsSayWhatToDo(t *testing.T) {
	local, remote := Addr{Node: 1, Port: 1088}, Addr{Node: 2, Port: 2050}
	for _, tt := range []struct {
		err  *OpError
		want string
	}{
		{&OpError{"attach", Addr{Node: addr.NoNode}, Addr{}, status.NoDevice}, "attach: no such node, or it is not reachable (does fabricd run on this machine? its socket's path is in $FABRIC_SOCKET)"},
		{&OpError{"listen", local, Addr{}, status.Invalid}, "listen 1:1088: invalid argument (the endpoint must be bound and the backlog at least 1)"},
		{&OpError{"connect", local, remote, status.Invalid}, "connect 1:1088->2:2050: invalid argument (an endpoint whose connection ended cannot connect again: open a new one)"},
		{&OpError{"register", local, remote, status.Invalid}, "register 1:1088->2:2050: invalid argument (memory, offset and length must be whole pages of 4096 bytes, aligned, and cut no window)"},
		{&OpError{"register", local, remote, status.InUse}, "register 1:1088->2:2050: offset range already in use (a window, or one that is still in use after Unregister, has these offsets)"},
		{&OpError{"register", local, remote, status.NoMemory}, "register 1:1088->2:2050: out of memory or over quota (the quota of window memory is used up)"},
		{&OpError{"mmap", local, remote, status.NotSupp}, "mmap 1:1088->2:2050: operation not supported (mapping needs both ends on one node and a range inside one window; a Mirror works across nodes)"},
		{&OpError{"vwriteto", local, remote, status.Access}, "vwriteto 1:1088->2:2050: permission denied (a window's protection does not allow this direction)"},
		{&OpError{"atomic", local, remote, status.Invalid}, "atomic 1:1088->2:2050: invalid argument (a word's offset must be a multiple of its width)"},
		{&OpError{"atomic", local, remote, status.Access}, "atomic 1:1088->2:2050: permission denied (a window's protection does not allow this direction)"},
		{&OpError{"vputsignal", local, remote, status.Invalid}, "vputsignal 1:1088->2:2050: invalid argument (there must be a byte to write, and the word's offset must be a multiple of 8)"},
		{&OpError{"word", Addr{Node: addr.NoNode}, Addr{}, status.NoAddress}, "word: offset range not registered (the word must lie in the memory)"},
		{&OpError{"word", Addr{Node: addr.NoNode}, Addr{}, status.Access}, "word: permission denied (the mapping was made for reading)"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
