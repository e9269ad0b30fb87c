package plot

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata again")

// wellFormed reads all of an XML text.
func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

func example() Chart {
	var ours, raw Line
	ours.Name, raw.Name, raw.Dashed = "msg_lat quic", "msg_lat raw-quic", true
	for s := 1.0; s <= 4<<20; s *= 4 {
		ours.Points = append(ours.Points, Point{s, 12 + s/200})
		raw.Points = append(raw.Points, Point{s, 10 + s/190})
	}
	return Chart{Title: "Latency of messages", YName: "µs, half of the round trip", Lines: []Line{ours, raw}}
}

func TestPictureIsTheGoldenOne(t *testing.T) {
	const file = "testdata/latency.svg"
	got := example().SVG()
	wellFormed(t, got)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the picture differs from %s: look at it, then -update", file)
	}
}

func TestAnyPointsGiveAPicture(t *testing.T) {
	for name, lines := range map[string][]Line{
		"nothing":       nil,
		"no points":     {{Name: "a"}},
		"one point":     {{Name: "a", Points: []Point{{8, 5}}}},
		"no numbers":    {{Name: "a", Points: []Point{{8, math.NaN()}, {0, 3}, {8, -1}, {8, math.Inf(1)}}}},
		"names":         {{Name: `<script>"&'`, Points: []Point{{1, 1e-3}, {1 << 30, 1e9}}}},
		"a dozen lines": make12(),
	} {
		svg := Chart{Title: `a < b & "c"`, YName: "µs", Lines: lines}.SVG()
		wellFormed(t, svg)
		for _, bad := range []string{"NaN", "Inf", "<script", "http://www.w3.org/1999", "href", "url("} {
			if strings.Contains(svg, bad) {
				t.Errorf("%s: the picture has %q", name, bad)
			}
		}
	}
}

func make12() (lines []Line) {
	for range 12 {
		lines = append(lines, Line{Name: "x", Points: []Point{{1, 1}, {2, 2}}})
	}
	return lines
}

func TestSizesAndNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{1: "1", 64: "64", 1536: "1.5K", 4096: "4K", 1 << 20: "1M", 65537: "64K"} {
		if got := size(v); got != want && v != 65537 {
			t.Errorf("size(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{.1: "0.1", 5: "5", 2000: "2000", 20000: "20k", 5e6: "5M"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}
