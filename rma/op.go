package rma

import (
	"math"

	"github.com/fabricd/fabricd/internal/status"
)

// knownFlags are the flags that SCIF defines.
const knownFlags = UseCPU | UseCache | Sync | Ordered

// CheckFlags returns status.Invalid for flags that are not zero and contain none that SCIF defines.
// Unknown flags together with a known one pass, as in SCIF.
func CheckFlags(f Flags) error {
	if f != 0 && f&knownFlags == 0 {
		return status.Invalid
	}
	return nil
}

// CheckPut returns status.Invalid unless the word of p is aligned and More is not negative. It does
// not check for windows.
func CheckPut(p Put) error {
	if p.More < 0 || p.Word%8 != 0 {
		return status.Invalid
	}
	return nil
}

// CheckAtomic returns status.Invalid unless a's operation is known, its width is 4 or 8 and its
// offset a multiple of the width. It does not check for a window.
func CheckAtomic(a Atomic) error {
	if a.Op < AtomicAdd || a.Op > AtomicMax {
		return status.Invalid
	}
	if a.Width != 4 && a.Width != 8 || a.Offset%int64(a.Width) != 0 {
		return status.Invalid
	}
	return nil
}

// Apply returns the result of a on the word old. Only the low Width bytes of old, Operand and
// Compare count, and only those of the result may be set. a has passed CheckAtomic.
func Apply(old uint64, a Atomic) uint64 {
	if a.Width == 4 {
		old &= math.MaxUint32
		a.Operand &= math.MaxUint32
		a.Compare &= math.MaxUint32
		return apply(old, a) & math.MaxUint32 // only an add can carry out
	}
	return apply(old, a)
}

func apply(old uint64, a Atomic) uint64 {
	switch a.Op {
	case AtomicAdd:
		return old + a.Operand
	case AtomicAnd:
		return old & a.Operand
	case AtomicOr:
		return old | a.Operand
	case AtomicXor:
		return old ^ a.Operand
	case AtomicSwap:
		return a.Operand
	case AtomicCAS:
		if old == a.Compare {
			return a.Operand
		}
		return old
	case AtomicMin:
		return min(old, a.Operand)
	case AtomicMax:
		return max(old, a.Operand)
	}
	panic("BUG: rma: Apply of an unchecked atomic")
}
