// Package chart draws the pictures of this module's pages: curves over a common scale, and
// ranges, as SVG that needs no script and takes its colours from [Style].
package chart

import "math"

// A Scale maps values from Low to High onto places from From to To; values beyond end at
// the edge. Logarithmic scales have a Low above 0.
type Scale struct {
	Low, High float64
	From, To  float64
	Log       bool
}

// At returns the place of a value.
func (s Scale) At(v float64) float64 {
	low, high := s.Low, s.High
	v = min(max(v, low), high)
	if s.Log {
		low, high, v = math.Log10(low), math.Log10(high), math.Log10(v)
	}
	if high <= low {
		return s.From
	}
	return s.From + (v-low)/(high-low)*(s.To-s.From)
}

// Zero returns a linear scale from 0 to a round value that is at least most.
func Zero(most, from, to float64) Scale {
	step := Step(most, 4)
	return Scale{High: max(math.Ceil(most/step)*step, step), From: from, To: to}
}

// Decades returns a logarithmic scale of whole decades around values above 0.
func Decades(least, most, from, to float64) Scale {
	low := math.Pow(10, math.Floor(math.Log10(least)))
	high := math.Pow(10, math.Ceil(math.Log10(most)))
	return Scale{Low: low, High: max(high, 10*low), From: from, To: to, Log: true}
}

// Ticks returns the values that a scale is labelled with: at most about six.
func (s Scale) Ticks() []float64 {
	var all []float64
	if !s.Log {
		step := Step(s.High, 4)
		for i := 0; float64(i)*step <= s.High*(1+1e-9); i++ {
			all = append(all, float64(i)*step)
		}
		return all
	}
	decades := math.Round(math.Log10(s.High / s.Low))
	every := max(math.Ceil(decades/5), 1)
	for e := 0.0; e <= decades; e += every {
		all = append(all, s.Low*math.Pow(10, e))
	}
	return all
}

// Step returns the least of 1, 2 or 5 times a power of ten of which at most so many reach
// a length above 0.
func Step(length float64, most int) float64 {
	if !(length > 0) {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(length/float64(most))))
	for _, n := range []float64{1, 2, 5} {
		if length/(step*n) <= float64(most) {
			return step * n
		}
	}
	return step * 10
}
