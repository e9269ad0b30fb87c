package fence

import "github.com/fabricd/fabricd/internal/status"

// signalAlign is the alignment that scif_fence_signal requires of an offset. The eight bytes are
// stored as one word only if they are aligned to eight.
const signalAlign = 4

// ParseSide returns the side in the flags of a fence: exactly InitSelf or exactly InitPeer.
// Anything else is status.Invalid.
func ParseSide(flags uint32) (Side, error) {
	if flags != uint32(InitSelf) && flags != uint32(InitPeer) {
		return 0, status.Invalid
	}
	return Side(flags), nil
}

// CheckSignal returns status.Invalid unless s selects exactly one side, one or both places and
// nothing else, and the offsets of those places are multiples of four. It does not check for
// windows.
func CheckSignal(s Signal) error {
	if _, err := ParseSide(uint32(s.By)); err != nil {
		return err
	}
	if s.Where == 0 || s.Where&^(SignalLocal|SignalRemote) != 0 {
		return status.Invalid
	}
	if s.Where&SignalLocal != 0 && s.LocalOffset%signalAlign != 0 {
		return status.Invalid
	}
	if s.Where&SignalRemote != 0 && s.RemoteOffset%signalAlign != 0 {
		return status.Invalid
	}
	return nil
}

// Swap returns s as seen by the peer: sides and places change roles.
func (s Signal) Swap() Signal {
	out := Signal{
		By:           s.By.Other(),
		LocalOffset:  s.RemoteOffset,
		LocalValue:   s.RemoteValue,
		RemoteOffset: s.LocalOffset,
		RemoteValue:  s.LocalValue,
	}
	if s.Where&SignalLocal != 0 {
		out.Where |= SignalRemote
	}
	if s.Where&SignalRemote != 0 {
		out.Where |= SignalLocal
	}
	return out
}

// Other returns the other side.
func (s Side) Other() Side {
	if s == InitSelf {
		return InitPeer
	}
	return InitSelf
}
