package server

import "github.com/fabricd/fabricd/internal/guard"

// guarded wraps fn so that a panic in it ends only the application's session, not the node.
func (s *session) guarded(fn func()) func() {
	return func() {
		defer guard.Recover(s.broke)
		fn()
	}
}

// broke ends the session after a panic: its reader sees the closed socket.
func (s *session) broke(err error, stack []byte) {
	s.log.Error().Err(err).Bytes("stack", stack).Msg("an application's session ended because serving it failed")
	s.conn.Close()
}
