package rma

import "github.com/fabricd/fabricd/internal/status"

// Announce adds a window that the peer reports as registered. The arguments come from the peer and
// are not trusted. The error is status.Invalid if no registration could have them, status.InUse if
// they overlap a window that is still announced, status.NoMemory if the space has Max windows.
func (s *Space[M]) Announce(off, n int64, prot Prot) error {
	var none M
	_, err := s.Register(none, n, off, prot, MapFixed)
	return err
}

// Withdraw removes the window [off, off+n) that the peer has unregistered. The space forgets it at
// once, so that the peer may announce the range again; references to it stay harmless. The error is
// status.Invalid unless exactly this window was announced.
func (s *Space[M]) Withdraw(off, n int64) error {
	w := s.At(off)
	if w == nil || w.Length != n || w.state != registered {
		return status.Invalid
	}
	s.remove(w)
	return nil
}
