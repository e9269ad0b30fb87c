package server

import (
	"errors"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// A restEnd is an endpoint that keeps a path's last bytes, up to room, and nothing else. As the
// engine's it gives up all of them with an error.
type restEnd struct {
	attach.NodeEndpoint
	room, kept int
}

func (e *restEnd) PathRest(b []byte) error {
	if b == nil || e.kept+len(b) > e.room {
		e.kept = 0
		return status.Invalid
	}
	e.kept += len(b)
	return nil
}

// TestARestThatAQuotaRefusesIsGivenUp: a session leaves its node as many bytes of its paths as its
// limit allows, all of them together. A rest that is refused, by the limit or by the node, is
// given up whole at both, and another path's rest is kept.
func TestARestThatAQuotaRefusesIsGivenUp(t *testing.T) {
	user := newAccount("the user", Limits{}.withDefaults(4), nil)
	s := &session{account: newSessionAccount(Limits{PathRests: 100}.withDefaults(1), user)}
	first, second := &restEnd{room: 70}, &restEnd{room: 70}
	ends := map[*restEnd]*endpoint{first: {s: s, ep: first}, second: {s: s, ep: second}}
	for i, step := range []struct {
		of            *restEnd
		bytes         int
		want          error
		first, second int // kept behind it
	}{
		{first, 40, nil, 40, 0},
		{second, 30, nil, 40, 30},
		{second, 30, nil, 40, 60},
		{first, 1, status.NoMemory, 0, 60}, // of 100
		{first, 40, nil, 40, 60},
		{second, 1, status.NoMemory, 40, 0},
		{first, 31, status.Invalid, 0, 0}, // of the room of 70
		{first, 70, nil, 70, 0},
		{second, 30, nil, 70, 30},
	} {
		r := &request{ep: ends[step.of], in: &proto.PathRestBody{Bytes: make([]byte, step.bytes)}}
		if _, err := doPathRest(t.Context(), s, r); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v, want %v", i, err, step.want)
		}
		used := s.account.used[pathRests]
		if first.kept != step.first || second.kept != step.second || used != int64(step.first+step.second) || user.used[pathRests] != used {
			t.Errorf("step %d: %d and %d bytes are kept, %d charged to the session and %d to its user; want %d and %d, and both",
				i, first.kept, second.kept, used, user.used[pathRests], step.first, step.second)
		}
	}
}
