package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

var update = flag.Bool("update", false, "write testdata again")

// formatsExample is a run whose figures never change.
func formatsExample() *Document {
	lat, bw, per := newRow(), newRow(), newRow()
	lat.Test, lat.Provider, lat.Dir, lat.Size, lat.Iters, lat.Rate, lat.LatP50, lat.LatAvg = "msg_lat", "quic", "echo", 64, 1000, 40000, 12.5, 13
	bw.Test, bw.Provider, bw.Dir, bw.Size, bw.Iters, bw.Rate, bw.BWAvg, bw.BWMiB = "msg_bw", "quic", "send", 65536, 500, 2000, 131.072, 125
	per.Test, per.Provider, per.Dir, per.Size, per.Iters, per.Rate, per.BWAvg, per.BWMiB = "msg_rate", "quic", "send", 8, 900, 1e6, 8, 7.629
	h := newHistogram()
	for us := 20; us < 40; us++ {
		record(h, time.Duration(us)*time.Microsecond)
	}
	again := lat
	again.Size, again.LatP50, again.LatAvg = 128, 12.75, 13.5
	d := &Document{Schema: schemaVersion, RunID: "run", Started: "2026-01-02T03:04:05Z", Machine: Machine{CPU: "a processor", Cores: 2, Kernel: "6", Go: "go1", Load: absent}}
	d.Results = []Result{
		{Row: lat, Figure: latencyFigure, Min: 12, Median: 12.5, Max: 13, hist: h}, {Row: again, Figure: latencyFigure, Min: 12.5, Median: 12.75, Max: 13},
		{Row: bw, Figure: bandwidthFigure, Min: 131, Median: 131.072, Max: 132}, {Row: per, Figure: rateFigure, Min: 9e5, Median: 1e6, Max: 1.1e6},
	}
	d.Cliffs, d.CliffPairs = findCliffs(d.Results)
	return d
}

func TestFormatsAreTheGoldenOnes(t *testing.T) {
	for _, format := range formats {
		if format == "json" || format == "csv" || format == "hdr" {
			continue // their schema has tests of its own
		}
		var got bytes.Buffer
		if err := (&app{stdout: &got}).report(formatsExample(), format); err != nil {
			t.Fatal(err)
		}
		// The revision of the program is in the table's first line.
		text := []byte(strings.Replace(got.String(), revision(), "REVISION", 1))
		file := filepath.Join("testdata", "run."+format)
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text, want) {
			t.Errorf("--format %s prints\n%s\nwant\n%s", format, text, want)
		}
	}
}

func TestHistogramLogIsReadByHdrHistogram(t *testing.T) {
	var text bytes.Buffer
	if err := writeHDR(&text, formatsExample()); err != nil {
		t.Fatal(err)
	}
	h, err := hdrhistogram.NewHistogramLogReader(&text).NextIntervalHistogram()
	if err != nil || h == nil || h.TotalCount() != 20 || h.Tag() != "msg_lat/quic/64/1" {
		t.Errorf("read %+v, %v; want 20 values of msg_lat", h, err)
	}
}
