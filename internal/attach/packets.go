package attach

import "os"

// Packets is one end of the carrier of a session's packets. Each packet arrives whole,
// in its order, with at most one descriptor. One goroutine receives; Close may be called
// from any, and more than once.
type Packets interface {
	// Send sends p with f, nil for none, which stays the caller's. It waits for room.
	Send(p []byte, f *os.File) error
	// TrySend is Send that returns status.Again instead of waiting, for one caller at a
	// time.
	TrySend(p []byte, f *os.File) error
	// Recv receives one packet into p and at most one descriptor, which is the caller's.
	// A packet that p has no room for is status.Protocol. Behind the last packet of an end
	// that was closed it returns io.EOF.
	Recv(p []byte) (n int, f *os.File, err error)
	// Close ends the calls that wait, at both ends.
	Close() error
}
