package main

import (
	"fmt"
	"slices"
	"strconv"
)

// A scale is a unit and its size in the unit of measurement.
type scale struct {
	of   figure
	name string
}

// scales maps each unit of measurement to its scales, the smallest first. Figures in other units
// are printed unscaled.
var scales = map[string][]scale{
	micros:    {{1e-3, "ns"}, {1, "µs"}, {1e3, "ms"}, {1e6, "s"}},
	millis:    {{1e-3, "µs"}, {1, "ms"}, {1e3, "s"}},
	megabytes: {{1e-3, "kB/s"}, {1, "MB/s"}, {1e3, "GB/s"}},
	perSecond: {{1, "/s"}, {1e3, "k/s"}, {1e6, "M/s"}},
	kibibytes: {{1, "KiB"}, {1 << 10, "MiB"}, {1 << 20, "GiB"}},
	cpuPerOp:  {{1e-3, "ns/op"}, {1, "µs/op"}, {1e3, "ms/op"}, {1e6, "s/op"}},
}

// scaleOf returns the largest scale of a unit that f reaches.
func scaleOf(f figure, unit string) scale {
	all := scales[unit]
	if len(all) == 0 {
		return scale{1, unit}
	}
	best := all[0]
	for _, s := range all {
		if f >= s.of {
			best = s
		}
	}
	return best
}

// quantity prints the median of v with its unit, and in brackets the least and the most.
func quantity(v []figure, unit string) string {
	if v = measuredOf(v); len(v) == 0 {
		return "-"
	}
	s := scaleOf(median(v), unit)
	text := short(median(v)/s.of) + " " + s.name
	if len(v) > 1 {
		text += fmt.Sprintf(" (%s–%s)", short(slices.Min(v)/s.of), short(slices.Max(v)/s.of))
	}
	return text
}

// exactly prints a bound without rounding.
func exactly(f figure, unit string) string {
	s := scaleOf(f, unit)
	return strconv.FormatFloat(float64(f/s.of), 'g', -1, 64) + " " + s.name
}

// times prints a ratio.
func times(f figure) string {
	if !f.measured() {
		return "-"
	}
	return short(f) + "×"
}

// short prints a figure with three digits, if it has enough decimals.
func short(f figure) string {
	switch {
	case !f.measured():
		return "-"
	case f == 0:
		return "0"
	case f > 0 && f < 0.0001:
		return "<0.0001"
	case f >= 100:
		return fmt.Sprintf("%.0f", float64(f))
	case f >= 10:
		return fmt.Sprintf("%.1f", float64(f))
	case f > 0 && f < 0.01:
		return fmt.Sprintf("%.4f", float64(f))
	}
	return fmt.Sprintf("%.2f", float64(f))
}
