package report

import (
	"fmt"
	"html"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/chart"
)

// A page is HTML under construction.
type page struct{ strings.Builder }

// f adds text; strings and values that print as one are escaped.
func (p *page) f(format string, args ...any) {
	for i, a := range args {
		switch v := a.(type) {
		case raw:
		case int, int64, uint64, float64:
		case string:
			args[i] = html.EscapeString(clean(v))
		default:
			args[i] = html.EscapeString(clean(fmt.Sprint(v)))
		}
	}
	fmt.Fprintf(&p.Builder, format, args...)
}

// raw is text that is HTML already.
type raw string

// clean takes out characters that XML does not allow.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == 0xFFFE || r == 0xFFFF {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

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

// head opens a page.
func (p *page) head(title string) {
	p.f("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"+
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"+
		"<title>%s</title>\n<style>\n%s%s</style>\n</head>\n<body>\n", title, raw(chart.Style), raw(style))
}

func (p *page) foot() { p.f("</body>\n</html>\n") }

// verdict shows a word with a sign, so that it does not need its colour.
func (p *page) verdict(word string) {
	sign := map[string]string{"green": "✓", "held": "✓", "broken": "✗", "violated": "✗", "harness": "!", "not exercised": "–", "met": "✓", "missed": "✗", "no sample": "–"}[word]
	class := map[string]string{"green": "good", "held": "good", "broken": "bad", "violated": "bad", "harness": "warn", "not exercised": "mute", "met": "good", "missed": "bad", "no sample": "mute"}[word]
	p.f("<span class=\"v %s\">%s %s</span>", class, sign, word)
}

// style has the rules of a timeline beside [chart.Style], and the widths of columns.
const style = `svg .run{fill:var(--s1)}svg .run2{fill:var(--s1);fill-opacity:.55}svg text.onrun,svg text.onrun2{fill:#fff}
svg .stop{fill:url(#hatch);stroke:var(--s5);stroke-width:1.5}svg .hatch{stroke:var(--s5);stroke-width:3}
svg .fault{fill:var(--shade);stroke:var(--s2);stroke-width:1;stroke-dasharray:3 2}
svg .added{fill:var(--s3)}svg .removed{fill:var(--s2)}svg .reset{stroke:var(--s4);stroke-width:2.5;fill:none}svg .end{stroke:var(--fg);stroke-width:2}
th.range{width:26%}td.set{white-space:nowrap}
@media screen and (prefers-color-scheme:dark){svg text.onrun,svg text.onrun2{fill:#06131c}svg .run2{fill-opacity:.75}}
`
