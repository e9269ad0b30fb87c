package report

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// A page is HTML under construction.
type page struct{ strings.Builder }

// f adds text; strings and what prints as one are escaped.
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

// clean takes out what XML does not take.
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
	switch {
	case d >= 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d >= time.Microsecond:
		return d.Round(10 * time.Nanosecond).String()
	}
	return d.String()
}

// amount prints bytes a second.
func amount(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB/s", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB/s", n>>10)
	}
	return fmt.Sprintf("%d B/s", n)
}

// head opens a page.
func (p *page) head(title string) {
	p.f("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"+
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"+
		"<meta name=\"color-scheme\" content=\"light dark\">\n<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n", title, raw(style))
}

func (p *page) foot() { p.f("</body>\n</html>\n") }

// verdict shows a word with a sign, so that it does not need its colour.
func (p *page) verdict(word string) {
	sign := map[string]string{"green": "✓", "held": "✓", "broken": "✗", "violated": "✗", "harness": "!", "not exercised": "–", "met": "✓", "missed": "✗", "no sample": "–"}[word]
	class := map[string]string{"green": "good", "held": "good", "broken": "bad", "violated": "bad", "harness": "warn", "not exercised": "mute", "met": "good", "missed": "bad", "no sample": "mute"}[word]
	p.f("<span class=\"v %s\">%s %s</span>", class, sign, word)
}

// style has colours that people with any kind of colour vision can tell apart
// (Okabe and Ito), in both schemes, and signs and patterns beside them.
const style = `:root{--bg:#fff;--fg:#1b1b1b;--mute:#5f6368;--line:#c9ccd1;--soft:#f3f4f6;--good:#00694f;--bad:#b23f00;--warn:#7a5a00;
--run:#0072b2;--run2:#56b4e9;--onrun:#fff;--onrun2:#10222e;--stop:#e69f00;--fault:#d55e00;--faultbg:#d55e0026;--added:#009e73;--removed:#d55e00;--reset:#cc79a7;--bar:#0072b2;--q:#d55e00}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e8eaed;--mute:#a0a6ad;--line:#43484e;--soft:#1f2226;--good:#35c49a;--bad:#ff9a5c;--warn:#f0c34a;
--run:#3d9bd6;--run2:#1f5f8a;--onrun:#06131c;--onrun2:#e8eaed;--stop:#f0b429;--fault:#ff8c42;--faultbg:#ff8c4233;--added:#35c49a;--removed:#ff8c42;--reset:#e29bc4;--bar:#3d9bd6;--q:#ff8c42}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
p{margin:.4rem 0}table{border-collapse:collapse;width:100%;margin:.5rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--mute)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:var(--soft);padding:.6rem .8rem;overflow:auto;border-radius:4px}
.wide{overflow-x:auto}.v{font-weight:600;white-space:nowrap}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.mute{color:var(--mute)}
.figs{display:flex;flex-wrap:wrap;gap:1rem}.figs figure{margin:0;flex:1 1 30rem;min-width:20rem}figcaption{color:var(--mute)}
svg{display:block;max-width:100%;height:auto}svg text{fill:var(--fg);font:11px system-ui,sans-serif}svg .t{fill:var(--mute)}svg .g{stroke:var(--line);stroke-width:1}
svg .run{fill:var(--run)}svg .run2{fill:var(--run2)}svg text.onrun{fill:var(--onrun)}svg text.onrun2{fill:var(--onrun2)}
svg .stop{fill:url(#hatch);stroke:var(--stop);stroke-width:1.5}svg .hatch{stroke:var(--stop);stroke-width:3}
svg .fault{fill:var(--faultbg);stroke:var(--fault);stroke-width:1;stroke-dasharray:3 2}svg .way{fill:var(--fault)}
svg .added{fill:var(--added)}svg .removed{fill:var(--removed)}svg .reset{stroke:var(--reset);stroke-width:2.5;fill:none}svg .end{stroke:var(--fg);stroke-width:2}
svg .bar{fill:var(--bar)}svg .q{stroke:var(--q);stroke-width:1.5;stroke-dasharray:4 3}
details{margin:.2rem 0}summary{cursor:pointer}
`
