package chart

import (
	"encoding/xml"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestScalesMapOntoTheirPlaces(t *testing.T) {
	linear := Zero(930, 100, 0)
	if linear.High != 1000 || linear.At(0) != 100 || linear.At(500) != 50 || linear.At(5000) != 0 {
		t.Errorf("%+v", linear)
	}
	log := Decades(3, 4000, 0, 400)
	if log.Low != 1 || log.High != 10000 || log.At(10) != 100 || log.At(0) != 0 || log.At(1e9) != 400 {
		t.Errorf("%+v", log)
	}
	if got := log.Ticks(); !slices.Equal(got, []float64{1, 10, 100, 1000, 10000}) {
		t.Errorf("ticks %v", got)
	}
	if got := Zero(0, 0, 1); got.High != 1 || got.At(0) != 0 {
		t.Errorf("a scale of nothing: %+v", got)
	}
	if one := Decades(10, 10, 0, 1); one.High != 100 {
		t.Errorf("a scale of one value: %+v", one)
	}
}

func TestStepsAreRoundAndFew(t *testing.T) {
	for _, length := range []float64{1e-9, 0.3, 1, 7, 12, 99, 1e6, 3.7e12} {
		step := Step(length, 12)
		lead := step / math.Pow(10, math.Floor(math.Log10(step)+1e-9))
		if n := length / step; n > 12.001 || n < 2 || !slices.ContainsFunc([]float64{1, 2, 5}, func(v float64) bool { return math.Abs(v-lead) < 1e-6 }) {
			t.Errorf("a step of %v for %v", step, length)
		}
	}
}

// panel has a gap, a lonely value, a shade and text that is no markup.
func panel() *Panel {
	nan := math.NaN()
	return &Panel{About: `a "b" <c>`, Height: 100, X: Scale{High: 5, From: Left, To: Width - Right}, Marks: []Mark{{1, "<1 s>"}},
		Series: []Series{{Class: "s1", X: []float64{0, 1, 2, 3, 4}, Y: []float64{1, 2, nan, 3, nan}}},
		Shades: []Shade{{From: 1, To: 2, Title: "<cut>"}}, Label: func(float64) string { return "<v>" }}
}

func TestAPanelIsXMLAndHasGaps(t *testing.T) {
	p := panel()
	for _, log := range []bool{false, true} {
		p.Log = log
		text := p.SVG()
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
		}
		if strings.Count(text, "<polyline") != 1 || strings.Count(text, "<circle") != 1 || strings.Contains(text, "NaN") || strings.Contains(text, "<cut>") {
			t.Errorf("log %v:\n%s", log, text)
		}
	}
	p.Series[0].Y = []float64{math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	if p.SVG() != "" {
		t.Error("a panel without a value is drawn")
	}
}

// TestColumnsStandOnEachOther: the second series begins where the first ends.
func TestColumnsStandOnEachOther(t *testing.T) {
	p := &Panel{Height: 108, X: Scale{High: 2, From: Left, To: Width - Right}, Stack: true, Label: func(float64) string { return "" },
		Series: []Series{{Class: "s1", X: []float64{0, 1}, Y: []float64{1, 0}}, {Class: "s2", X: []float64{0, 1}, Y: []float64{3, 0}}}}
	text := p.SVG()
	for _, want := range []string{`y="83.0" width="535.0" height="25.0"`, `y="8.0" width="535.0" height="75.0"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Count(text, "<rect") != 2 {
		t.Errorf("columns of nothing:\n%s", text)
	}
}

// TestColoursCanBeRead holds text and signs to a contrast in both schemes, and
// the colours that distinguish things to a difference in lightness.
func TestColoursCanBeRead(t *testing.T) {
	schemes := regexp.MustCompile(`:root\{([^}]*)\}`).FindAllStringSubmatch(Style, -1)
	if len(schemes) != 2 {
		t.Fatalf("%d schemes", len(schemes))
	}
	for i, scheme := range schemes {
		colour := map[string]float64{}
		for _, m := range regexp.MustCompile(`--(\w+):#([0-9a-f]{3,6})[;\s]?`).FindAllStringSubmatch(scheme[1]+";", -1) {
			colour[m[1]] = luminance(m[2])
		}
		for _, pair := range []struct {
			a, b  string
			least float64
		}{
			{"fg", "bg", 7}, {"mute", "bg", 4.5}, {"good", "bg", 4.5}, {"bad", "bg", 4.5}, {"warn", "bg", 4.5}, {"fg", "soft", 7}, {"mute", "soft", 4.5},
			{"s1", "bg", 3}, {"s2", "bg", 3}, {"s3", "bg", 2.9}, {"s4", "bg", 3}, {"s5", "bg", 2.9},
		} {
			a, b := colour[pair.a], colour[pair.b]
			if c := (math.Max(a, b) + 0.05) / (math.Min(a, b) + 0.05); c < pair.least {
				t.Errorf("scheme %d: %s on %s has a contrast of %.1f, want %.1f", i, pair.a, pair.b, c, pair.least)
			}
		}
	}
}

// luminance returns the relative luminance of a colour, as WCAG has it.
func luminance(hex string) float64 {
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	v, _ := strconv.ParseUint(hex, 16, 32)
	part := func(shift int) float64 {
		c := float64(v>>shift&0xff) / 255
		if c <= 0.03928 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}
