package sim

import (
	"maps"
	"slices"
)

// once returns f for its first call: later ones do nothing.
func once[T any](f func(T)) func(T) {
	over := false
	return func(x T) {
		if !over {
			over = true
			f(x)
		}
	}
}

// must returns x, which is always there in an honest simulation.
func must[T any](x T, err error) T {
	if err != nil {
		panic("BUG: sim: " + err.Error())
	}
	return x
}

// without returns a list without x. The list itself stays as it is for its reader.
func without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(o T) bool { return o == x })
}

func sortedKeys[K ~uint16 | ~uint32 | ~uint64 | ~int, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

// A sequence restores the order of what arrives.
type sequence[T any] struct {
	sent  uint64 // by the writing end
	next  uint64
	early map[uint64]T
}

// arrive takes x, the item n. take is called for each that is next; it reports false for
// an item that was here before.
func (s *sequence[T]) arrive(n uint64, x T, take func(T)) bool {
	if n < s.next {
		return false
	}
	if n > s.next {
		if s.early == nil {
			s.early = make(map[uint64]T)
		}
		s.early[n] = x
		return false
	}
	for ok := true; ok; x, ok = s.early[s.next] {
		delete(s.early, s.next)
		s.next++
		take(x)
	}
	return true
}

// waiters are functions that wait for a change.
type waiters []func()

// wake runs them behind the current step of p, and none of them again.
func (w *waiters) wake(p *proc) {
	all := *w
	*w = nil
	for _, f := range all {
		p.hand(f)
	}
}
