package report

import (
	"fmt"
	"html"
	"html/template"
	"strings"
	"time"
)

// A picture is HTML or SVG under construction.
type picture struct{ strings.Builder }

// f adds text; strings and values that print as one are escaped.
func (p *picture) f(format string, args ...any) {
	for i, a := range args {
		switch v := a.(type) {
		case template.HTML, int, int64, uint64, float64:
		default:
			args[i] = html.EscapeString(fmt.Sprint(v))
		}
	}
	fmt.Fprintf(&p.Builder, format, args...)
}

// html returns the picture as a part of a page.
func (p *picture) html() template.HTML { return template.HTML(p.String()) }

// dur prints nanoseconds with three digits.
func dur(ns int64) string {
	d := time.Duration(ns)
	switch size := d.Abs(); {
	case size >= 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case size >= time.Second:
		return d.Round(time.Millisecond).String()
	case size >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case size >= time.Microsecond:
		return d.Round(10 * time.Nanosecond).String()
	}
	return d.String()
}

// amount prints bytes a second.
func amount(n int64) string {
	switch {
	case n >= 10e9:
		return fmt.Sprintf("%.3g GB/s", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.3g MB/s", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.3g kB/s", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B/s", n)
}
