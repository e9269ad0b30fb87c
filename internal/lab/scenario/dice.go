package scenario

import "math/bits"

// dice are a source of random numbers of its own kind, so that the result of a seed
// does not change with the standard library: splitmix64.
type dice struct{ state uint64 }

// newDice returns the dice for one purpose.
func newDice(seed uint64, what string, numbers ...uint64) *dice {
	d := &dice{seed}
	for _, c := range []byte(what) {
		d.state = d.next() ^ uint64(c)
	}
	for _, n := range numbers {
		d.state = d.next() ^ n
	}
	return d
}

// next returns 64 random bits.
func (d *dice) next() uint64 {
	d.state += 0x9E3779B97F4A7C15
	z := d.state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// below returns a number from 0 to n-1; n is at least 1.
func (d *dice) below(n int) int {
	high, _ := bits.Mul64(d.next(), uint64(n))
	return int(high)
}

// grain is the smallest step in which times are drawn.
const grain = Duration(1000) // ns

// span draws a time from a range, its ends included, in microseconds.
func (d *dice) span(s Span) Duration {
	v := d.next() // always, so that a fixed time draws as much as a range
	steps := uint64((s.To - s.From) / grain)
	if steps == 0 {
		return s.From
	}
	high, _ := bits.Mul64(v, steps+1)
	return s.From + Duration(high)*grain
}
