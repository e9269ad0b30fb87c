package fence

// A Tracker records the operations of one endpoint in the order in which they began. They end in
// any order. The zero Tracker is ready to use. It is not safe for concurrent use.
type Tracker struct {
	begun uint64              // operations begun so far; the last one's number
	done  uint64              // every number up to done has ended
	early map[uint64]struct{} // numbers above done that have ended

	// Invariant: done <= begun, every number in early is above done+1 and at most begun. early
	// holds no more than the operations that are open above the oldest open one; the caller of
	// Begin bounds those.
}

// Begin records a new operation and returns its number, counted from 1.
func (t *Tracker) Begin() (seq uint64) {
	t.begun++
	return t.begun
}

// End records that operation seq has ended, whether it succeeded or not. It
// reports false, and changes nothing, if seq was never begun or has ended
// already: numbers may come from a peer.
func (t *Tracker) End(seq uint64) bool {
	if !t.Open(seq) {
		return false
	}
	if seq != t.done+1 {
		if t.early == nil {
			t.early = make(map[uint64]struct{})
		}
		t.early[seq] = struct{}{}
		return true
	}
	t.done = seq
	t.absorb()
	return true
}

// absorb advances done over the operations that ended early.
func (t *Tracker) absorb() {
	for len(t.early) > 0 {
		if _, ok := t.early[t.done+1]; !ok {
			return
		}
		t.done++
		delete(t.early, t.done)
	}
}

// Open reports whether operation seq has begun and not ended.
func (t *Tracker) Open(seq uint64) bool {
	if seq <= t.done || seq > t.begun {
		return false
	}
	_, ended := t.early[seq]
	return !ended
}

// Begun returns how many operations have begun.
func (t *Tracker) Begun() uint64 { return t.begun }

// Done returns the highest number up to which every operation has ended.
func (t *Tracker) Done() uint64 { return t.done }

// Mark returns a mark, a Mark's Seq, that covers every operation begun so far.
func (t *Tracker) Mark() (seq uint64) { return t.begun }

// Reached reports whether every operation that the mark covers has ended. A mark above every
// operation begun so far is reached once that many have begun and ended.
func (t *Tracker) Reached(mark uint64) bool { return mark <= t.done }
