package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// noisyAbove is the coefficient of variation, in percent, above which the
// repetitions of a test differ too much to be believed.
const noisyAbove = 10

// maxTracked is the longest duration that a histogram tells from longer ones.
const maxTracked = time.Minute

// newHistogram returns a histogram of nanoseconds with three significant
// digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(maxTracked), 3)
}

// record adds d; what lies outside of the histogram counts as its edge.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	// It fails only outside of the bounds.
	_ = h.RecordValue(int64(min(max(d, 1), maxTracked)))
}

// Percentiles is what is said of a distribution of durations, in microseconds.
type Percentiles struct {
	Min    figure `json:"min"`
	P50    figure `json:"p50"`
	P90    figure `json:"p90"`
	P95    figure `json:"p95"`
	P99    figure `json:"p99"`
	P999   figure `json:"p999"`
	P9999  figure `json:"p9999"`
	Max    figure `json:"max"`
	Avg    figure `json:"avg"`
	Stddev figure `json:"stddev"`
}

// percentiles summarizes h, every duration divided by div: 2 for half round
// trips.
func percentiles(h *hdrhistogram.Histogram, div float64) Percentiles {
	us := func(ns float64) figure { return figure(ns / 1e3 / div) }
	at := func(p float64) figure { return us(float64(h.ValueAtPercentile(p))) }
	return Percentiles{
		Min: us(float64(h.Min())), P50: at(50), P90: at(90), P95: at(95), P99: at(99), P999: at(99.9), P9999: at(99.99),
		Max: us(float64(h.Max())), Avg: us(h.Mean()), Stddev: us(h.StdDev()),
	}
}

// setLatency puts p into the row.
func (r *Row) setLatency(p Percentiles) {
	r.LatMin, r.LatP50, r.LatP90, r.LatP95, r.LatP99 = p.Min, p.P50, p.P90, p.P95, p.P99
	r.LatP999, r.LatP9999, r.LatMax, r.LatAvg, r.LatStddev = p.P999, p.P9999, p.Max, p.Avg, p.Stddev
}

// median returns the middle of v, between two the mean; NaN of nothing.
func median(v []figure) figure {
	if len(v) == 0 {
		return absent
	}
	s := slices.Sorted(slices.Values(v))
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// variation returns the coefficient of variation of v in percent: the sample
// standard deviation over the mean. It is 0 for fewer than two.
func variation(v []figure) figure {
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

// A sample is what one repetition measured.
type sample struct {
	lat     *hdrhistogram.Histogram // nanoseconds per operation, whole round trips; nil of bandwidth
	elapsed time.Duration           // of all operations
	ops     int64
	bytes   int64 // payload, in one direction
	errors  int64
	warmup  int64
	cpu     time.Duration // user and system time of this process
	mallocs int64
	// switches are those of threads, of this process and of others that work for
	// the side.
	switches int64
	spent    bool  // cpu, mallocs and switches were measured
	wire     int64 // bytes of packets, both directions; 0: not counted
	calls    int64 // system calls, of a repetition of its own that is not timed; 0: not counted
	counted  int64 // operations of that one

	fairness figure // between the pairs; 0: there is one
}

// A reduction turns the samples of a test into its row and result.
type reduction struct {
	bandwidth bool // the figure is bandwidth, otherwise the median latency
	rate      bool // the figure is operations per second
	half      bool // latencies are shown as half round trips
	both      bool // the payload goes both ways
}

// figure returns the number that stands for one repetition.
func (k reduction) figure(s sample) figure {
	switch {
	case k.bandwidth:
		return figure(float64(s.bytes) / 1e6 / s.elapsed.Seconds())
	case k.rate:
		return figure(float64(s.ops) / s.elapsed.Seconds())
	}
	return percentiles(s.lat, k.div()).P50
}

func (k reduction) name() string {
	switch {
	case k.bandwidth:
		return bandwidthFigure
	case k.rate:
		return rateFigure
	}
	return latencyFigure
}

// The columns that stand for a row.
const (
	latencyFigure   = "lat_p50_us"
	bandwidthFigure = "bw_avg_mbps_dec"
	rateFigure      = "msg_rate_per_s"
	falseFigure     = "false_removals_per_node_hour"
)

// timesAll reports whether operations are timed together and not one by one.
func (k reduction) timesAll() bool { return k.bandwidth || k.rate }

func (k reduction) div() float64 {
	if k.half {
		return 2
	}
	return 1
}

// ways returns how many ways the payload goes.
func (k reduction) ways() int {
	if k.both {
		return 2
	}
	return 1
}

// reduce fills the measured part of row, which says already what was measured.
func (k reduction) reduce(row Row, samples []sample) Result {
	var total sample
	metered, spent := true, true
	var figures, rates, shares []figure
	for _, s := range samples {
		figures = append(figures, k.figure(s))
		rates = append(rates, figure(float64(s.ops)/s.elapsed.Seconds()))
		total.ops += s.ops
		total.bytes += s.bytes
		total.errors += s.errors
		total.cpu += s.cpu
		total.mallocs += s.mallocs
		total.switches += s.switches
		spent = spent && s.spent
		total.wire += s.wire
		total.calls += s.calls
		total.counted += s.counted
		metered = metered && s.wire > 0
		if s.fairness > 0 {
			shares = append(shares, s.fairness)
		}
		total.warmup = s.warmup
	}
	row.Iters, row.Warmup, row.Errors, row.Reps = total.ops, total.warmup, total.errors, int64(len(samples))
	row.Rate = median(rates)
	if spent && total.bytes > 0 {
		row.CPUPerGB = figure(total.cpu.Seconds() / (float64(total.bytes) / 1e9))
	}
	if spent && total.ops > 0 {
		row.Allocs = figure(float64(total.mallocs) / float64(total.ops))
		row.Switches = figure(float64(total.switches) / float64(total.ops))
	}
	if payload := total.bytes * int64(k.ways()); metered && payload > 0 {
		row.WireBytes = figure(float64(total.wire) / float64(payload))
	}
	if total.calls > 0 {
		row.Syscalls = figure(float64(total.calls) / float64(total.counted))
	}
	row.Fairness = median(shares)
	row.CV = variation(figures)
	row.Noise = row.CV > noisyAbove
	res := Result{Figure: k.name(), Min: slices.Min(figures), Median: median(figures), Max: slices.Max(figures), PerRep: figures}
	switch {
	case k.bandwidth:
		row.BWAvg, row.BWPeak = res.Median, res.Max
		row.BWMiB = res.Median * 1e6 / (1 << 20)
	case k.rate:
		bytesPerOp := float64(total.bytes) / float64(max(total.ops, 1))
		row.BWAvg, row.BWPeak = res.Median*figure(bytesPerOp/1e6), res.Max*figure(bytesPerOp/1e6)
		row.BWMiB = row.BWAvg * 1e6 / (1 << 20)
	default:
		all := newHistogram()
		for _, s := range samples {
			all.Merge(s.lat)
		}
		res.hist = all
		row.setLatency(percentiles(all, k.div()))
		if k.half {
			rtt := percentiles(all, 1)
			res.RTT = &rtt
		}
	}
	res.Row = row
	return res
}

// A Ratio compares a test with its anchor, measured in turns in the same run.
type Ratio struct {
	Test    string   `json:"test"`
	Size    int64    `json:"size_bytes"`
	Figure  string   `json:"figure"` // the column that is compared
	Anchor  string   `json:"anchor"`
	Ours    figure   `json:"ours"`  // median of the repetitions
	Raw     figure   `json:"raw"`   // the same of the anchor
	Ratio   figure   `json:"ratio"` // ours/raw: median of the repetitions' ratios
	Min     figure   `json:"ratio_min"`
	Max     figure   `json:"ratio_max"`
	PerRep  []figure `json:"ratio_per_rep"`
	AtMost  *figure  `json:"target_at_most,omitempty"`
	AtLeast *figure  `json:"target_at_least,omitempty"`
	Reached *bool    `json:"reached,omitempty"` // nil without a target
}

// compareRatio compares ours with the anchor, repetition by repetition.
func compareRatio(ours, raw Result) Ratio {
	q := Ratio{Test: ours.Test, Size: ours.Size, Figure: ours.Figure, Anchor: raw.Provider, Ours: ours.Median, Raw: raw.Median,
		Ratio: absent, Min: absent, Max: absent}
	for i := range min(len(ours.PerRep), len(raw.PerRep)) {
		q.PerRep = append(q.PerRep, ours.PerRep[i]/raw.PerRep[i])
	}
	if len(q.PerRep) > 0 {
		q.Ratio, q.Min, q.Max = median(q.PerRep), slices.Min(q.PerRep), slices.Max(q.PerRep)
	}
	return q.judge()
}

// The targets for a QUIC link beside quic-go alone.
const (
	latencyTarget     = figure(1.15) // messages of latencyTargetSize, half round trip: at most
	latencyTargetSize = 64
	bulkTarget        = figure(0.95) // messages of bulkTargetSize and more, bandwidth: at least
	bulkTargetSize    = 64 << 10
)

// judge sets the target that the ratio has, if any, and whether it is reached.
func (q Ratio) judge() Ratio {
	if q.Anchor != rawProvider || !q.Ratio.measured() {
		return q
	}
	var reached bool
	switch {
	case q.Test == "msg_lat" && q.Size == latencyTargetSize:
		target := latencyTarget
		q.AtMost, reached = &target, q.Ratio <= target
	case q.Test == "msg_bw" && q.Size >= bulkTargetSize:
		target := bulkTarget
		q.AtLeast, reached = &target, q.Ratio >= target
	default:
		return q
	}
	q.Reached = &reached
	return q
}

// A Check is a target that is not a ratio.
type Check struct {
	What    string `json:"what"`
	Value   figure `json:"value"`
	Unit    string `json:"unit"`
	AtMost  figure `json:"target_at_most"`
	Reached bool   `json:"reached"`
}

// atMost compares value with its target.
func atMost(what string, value figure, unit string, target figure) Check {
	return Check{What: what, Value: value, Unit: unit, AtMost: target, Reached: value <= target}
}

// A Spread is what the repetitions of a figure were.
type Spread struct {
	Min    figure   `json:"min"`
	Median figure   `json:"median"`
	Max    figure   `json:"max"`
	PerRep []figure `json:"per_rep,omitempty"`
}

func spreadOf(v []figure) Spread {
	if len(v) == 0 {
		return Spread{absent, absent, absent, nil}
	}
	return Spread{slices.Min(v), median(v), slices.Max(v), v}
}

func (s Spread) String() string {
	switch {
	case !s.Median.measured():
		return "-"
	case len(s.PerRep) == 1:
		return short(s.Median)
	}
	return fmt.Sprintf("%s/%s/%s", short(s.Min), short(s.Median), short(s.Max))
}
