package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// formats are the values of --format of what measures between nodes.
var formats = []string{"table", "csv", "json", "ucx", "osu", "hdr"}

// ucxHeader is that of `ucx_perftest -v`, whose rows have no sizes: a line of
// comment before each test and size has them.
const ucxHeader = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"

// writeUCX prints the results as ucx_perftest does: microseconds, MiB and
// operations a second.
func writeUCX(w io.Writer, d *Document) error {
	t := &text{w: w}
	t.f("%s\n", ucxHeader)
	t.f("%s", d.Chaos.remark())
	for _, r := range d.Results {
		p50, avg := r.LatP50, r.LatAvg
		if !p50.measured() {
			p50 = operationTime(r)
			avg = p50
		}
		mib, perSecond := r.BWMiB, r.Rate
		if !mib.measured() {
			mib = figure(float64(r.Size) * float64(r.Rate) / (1 << 20))
		}
		t.f("# %s %s %d\n", r.Test, r.Provider, r.Size)
		t.f("%d,%.3f,%.3f,%.3f,%.2f,%.2f,%.0f,%.0f\n", r.Iters, p50, avg, avg, mib, mib, perSecond, perSecond)
	}
	return t.err
}

// writeOSU prints the results as the OSU micro-benchmarks do, a table for each
// test and provider.
func writeOSU(w io.Writer, d *Document) error {
	t := &text{w: w}
	t.f("%s", d.Chaos.remark())
	for i, g := range sweeps(d.Results) {
		if i > 0 {
			t.f("\n")
		}
		t.f("# OSU-style %s, %s\n", g[0].Test, g[0].Provider)
		switch g[0].Figure {
		case bandwidthFigure:
			t.f("# %-8s%20s\n", "Size", "Bandwidth (MB/s)")
		case rateFigure:
			t.f("# %-8s%20s%20s\n", "Size", "MB/s", "Messages/s")
		default:
			t.f("# %-8s%20s\n", "Size", "Latency (us)")
		}
		for _, r := range g {
			switch r.Figure {
			case bandwidthFigure:
				t.f("%-10d%20.2f\n", r.Size, r.BWAvg)
			case rateFigure:
				t.f("%-10d%20.2f%20.2f\n", r.Size, r.BWAvg, r.Rate)
			default:
				t.f("%-10d%20.2f\n", r.Size, r.LatAvg)
			}
		}
	}
	return t.err
}

// writeHDR prints the distributions as an HdrHistogram log, one line for each
// result that has one, tagged with what it is; values are nanoseconds of whole
// operations.
func writeHDR(w io.Writer, d *Document) error {
	began, err := time.Parse(time.RFC3339, d.Started)
	if err != nil {
		return fmt.Errorf("when the run began: %w", err)
	}
	log := hdrhistogram.NewHistogramLogWriter(w)
	if _, err := io.WriteString(w, d.Chaos.remark()); err != nil {
		return err
	}
	if err := first(log.OutputLogFormatVersion(), log.OutputStartTime(began.UnixMilli()), log.OutputLegend()); err != nil {
		return err
	}
	options := hdrhistogram.DefaultHistogramLogOptions()
	for _, r := range d.Results {
		if r.hist == nil {
			continue
		}
		r.hist.SetStartTimeMs(began.UnixMilli())
		r.hist.SetEndTimeMs(began.UnixMilli())
		r.hist.SetTag(strings.Join([]string{r.Test, r.Provider, fmt.Sprint(r.Size), fmt.Sprint(r.Pairs)}, "/"))
		if err := log.OutputIntervalHistogramWithLogOptions(r.hist, options); err != nil {
			return err
		}
	}
	return nil
}

// A text writes formatted text; it keeps the first error.
type text struct {
	w   io.Writer
	err error
}

func (t *text) f(format string, args ...any) {
	if _, err := fmt.Fprintf(t.w, format, args...); t.err == nil {
		t.err = err
	}
}
