package main

import (
	"bytes"
	"math"
	"slices"
	"strconv"
)

// A figure is a measured number; NaN if it was not measured.
type figure float64

var absent = figure(math.NaN())

func (f figure) measured() bool { return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) }

// MarshalJSON writes three decimals, and null for an unmeasured figure.
func (f figure) MarshalJSON() ([]byte, error) {
	if !f.measured() {
		return []byte("null"), nil
	}
	return []byte(strconv.FormatFloat(math.Round(float64(f)*1000)/1000, 'f', -1, 64)), nil
}

// UnmarshalJSON reads the output of MarshalJSON.
func (f *figure) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*f = absent
		return nil
	}
	v, err := strconv.ParseFloat(string(b), 64)
	*f = figure(v)
	return err
}

// measuredOf returns the figures of v that were measured.
func measuredOf(v []figure) []figure {
	return slices.DeleteFunc(slices.Clone(v), func(f figure) bool { return !f.measured() })
}

// median returns the middle of the measured figures of v, the mean of two middle ones; absent if
// there are none.
func median(v []figure) figure {
	s := slices.Sorted(slices.Values(measuredOf(v)))
	if len(s) == 0 {
		return absent
	}
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// quantile returns the value that a share q of v does not exceed; absent if v is empty.
func quantile(v []figure, q float64) figure {
	s := slices.Sorted(slices.Values(measuredOf(v)))
	if len(s) == 0 {
		return absent
	}
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// variation returns the coefficient of variation of v in percent: the sample
// standard deviation over the mean. It is 0 for fewer than two.
func variation(v []figure) figure {
	v = measuredOf(v)
	if len(v) < 2 {
		return 0
	}
	mean, sum := 0.0, 0.0
	for _, x := range v {
		mean += float64(x) / float64(len(v))
	}
	for _, x := range v {
		sum += (float64(x) - mean) * (float64(x) - mean)
	}
	if mean == 0 {
		return 0
	}
	return figure(100 * math.Sqrt(sum/float64(len(v)-1)) / mean)
}
