package report

import (
	"math"

	"github.com/fabricd/fabricd/internal/lab/check"
)

// bins is how many bars a histogram has.
const bins = 40

// drawHistogram draws how the samples of a time are spread, on a logarithmic
// scale from the least to the largest.
func drawHistogram(f check.Figure) string {
	const w, h, base = 560, 170, 130
	var p page
	p.f("<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s: %d samples, p50 %s, p99 %s, max %s\">\n",
		w, h, string(f.Name), f.Count, dur(f.P50), dur(f.P99), dur(f.Max))
	low, high := math.Log10(float64(max(f.Min, 1000))), math.Log10(float64(max(f.Max, 1000)))
	if high-low < 0.3 { // a factor of two at least
		middle := (low + high) / 2
		low, high = middle-0.15, middle+0.15
	}
	x := func(v int64) float64 {
		return 10 + (math.Log10(float64(max(v, 1000)))-low)/(high-low)*(w-20)
	}
	var count [bins]int
	most := 1
	for _, v := range f.Samples {
		i := min(max(int((x(v)-10)/(w-20)*bins), 0), bins-1)
		count[i]++
		most = max(most, count[i])
	}
	for i, n := range count {
		if n > 0 {
			height := math.Max(float64(n)/float64(most)*(base-24), 1.5)
			p.f("<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%d samples</title></rect>\n",
				10+float64(i)*(w-20)/bins+0.5, base-height, float64(w-20)/bins-1, height, n)
		}
	}
	p.f("<line class=\"g\" x1=\"10\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n", base, w-10, base)
	for e := math.Floor(low); e <= high; e++ {
		for _, m := range []float64{1, 2, 5} {
			v := int64(m * math.Pow(10, e))
			if l := math.Log10(float64(v)); l >= low && l <= high && (m == 1 || high-low < 2) {
				p.f("<text class=\"t\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x(v), base+14, dur(v))
			}
		}
	}
	for i, q := range []struct {
		name string
		at   int64
	}{{"p50", f.P50}, {"p99", f.P99}, {"max", f.Max}} {
		anchor := "start"
		if x(q.at) > w/2 {
			anchor = "end"
		}
		p.f("<line class=\"q\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s %s</text>\n",
			x(q.at), 4+i*11, x(q.at), base, x(q.at)+map[bool]float64{true: 3, false: -3}[anchor == "start"], 12+i*11, anchor, q.name, dur(q.at))
	}
	p.f("</svg>\n")
	return p.String()
}
