package main

import (
	"math"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// near reports whether got is within what three significant digits allow.
func near(got, want figure) bool {
	return math.Abs(float64(got-want)) <= 0.001*math.Abs(float64(want))
}

// ramp is 1 µs to 10 ms in steps of 1 µs.
func ramp() *hdrhistogram.Histogram {
	h := newHistogram()
	for us := 1; us <= 10_000; us++ {
		record(h, time.Duration(us)*time.Microsecond)
	}
	return h
}

func TestPercentilesOfKnownData(t *testing.T) {
	for _, tt := range []struct {
		name string
		div  float64
	}{{"whole", 1}, {"half round trip", 2}} {
		p := percentiles(ramp(), tt.div)
		for _, c := range []struct {
			name      string
			got, want figure
		}{
			{"min", p.Min, 1}, {"p50", p.P50, 5000}, {"p90", p.P90, 9000}, {"p95", p.P95, 9500}, {"p99", p.P99, 9900},
			{"p99.9", p.P999, 9990}, {"p99.99", p.P9999, 9999}, {"max", p.Max, 10000}, {"avg", p.Avg, 5000.5}, {"stddev", p.Stddev, 2886.75},
		} {
			if want := c.want / figure(tt.div); !near(c.got, want) {
				t.Errorf("%s: %s = %v, want %v", tt.name, c.name, c.got, want)
			}
		}
	}
}

func TestDurationsOutsideTheHistogramCountAsItsEdge(t *testing.T) {
	h := newHistogram()
	record(h, 0)
	record(h, time.Hour)
	if h.TotalCount() != 2 || h.Min() != 1 || !near(figure(h.Max()), figure(maxTracked)) {
		t.Errorf("count %d, min %d, max %d; want 2, 1 ns, %v", h.TotalCount(), h.Min(), h.Max(), maxTracked)
	}
}

func TestMedianAndVariation(t *testing.T) {
	for _, tt := range []struct {
		v          []figure
		median, cv figure
	}{
		{[]figure{7}, 7, 0},
		{[]figure{3, 1, 2}, 2, 50},
		{[]figure{4, 1, 3, 2}, 2.5, 51.640},
		{[]figure{10, 10, 10}, 10, 0},
		{[]figure{0, 0}, 0, 0},
		{[]figure{2, 4, 4, 4, 5, 5, 7, 9}, 4.5, 42.762},
	} {
		if got := median(tt.v); got != tt.median {
			t.Errorf("median(%v) = %v, want %v", tt.v, got, tt.median)
		}
		if got := variation(tt.v); !near(got, tt.cv) {
			t.Errorf("variation(%v) = %v, want %v", tt.v, got, tt.cv)
		}
	}
	if median(nil).measured() {
		t.Error("the median of nothing is measured")
	}
}

// latencySample is one repetition in which every operation took d.
func latencySample(d time.Duration) sample {
	h := newHistogram()
	for range 100 {
		record(h, d)
	}
	return sample{lat: h, ops: 100, bytes: 6400, elapsed: 100 * d, warmup: 5, cpu: time.Millisecond, mallocs: 1400, switches: 250, spent: true}
}

func TestReduceLatency(t *testing.T) {
	res := reduction{half: true}.reduce(newRow(), []sample{
		latencySample(20 * time.Microsecond), latencySample(30 * time.Microsecond), latencySample(22 * time.Microsecond),
	})
	if !near(res.Min, 10) || !near(res.Median, 11) || !near(res.Max, 15) || res.Figure != "lat_p50_us" {
		t.Errorf("%s %v/%v/%v, want lat_p50_us 10/11/15", res.Figure, res.Min, res.Median, res.Max)
	}
	if !near(res.LatP50, 11) || !near(res.LatMax, 15) || res.RTT == nil || !near(res.RTT.P50, 22) || !near(res.RTT.Max, 30) {
		t.Errorf("half round trips p50 %v max %v, round trips %+v; want 11, 15 and 22, 30", res.LatP50, res.LatMax, res.RTT)
	}
	if res.Iters != 300 || res.Warmup != 5 || res.Reps != 3 || res.Allocs != 14 || res.Switches != 2.5 {
		t.Errorf("iters %d, warmup %d, reps %d, allocs %v, switches %v; want 300, 5, 3, 14, 2.5", res.Iters, res.Warmup, res.Reps, res.Allocs, res.Switches)
	}
	if !near(res.CV, variation([]figure{10, 15, 11})) || !res.Noise {
		t.Errorf("cv %v noise %v, want %v true", res.CV, res.Noise, variation([]figure{10, 15, 11}))
	}
	if res.BWAvg.measured() || res.Syscalls.measured() {
		t.Errorf("bandwidth %v and syscalls %v were not measured", res.BWAvg, res.Syscalls)
	}
}

func TestReduceBandwidth(t *testing.T) {
	var samples []sample
	for _, ms := range []int64{1000, 500, 980} {
		samples = append(samples, sample{ops: 100, bytes: 100 << 20, elapsed: time.Duration(ms) * time.Millisecond, errors: 1, cpu: time.Second, spent: true})
	}
	res := reduction{bandwidth: true}.reduce(newRow(), samples)
	if !near(res.BWAvg, 106.998) || !near(res.BWPeak, 209.715) || !near(res.BWMiB, 102.041) || !near(res.Rate, 102.041) {
		t.Errorf("avg %v peak %v MiB %v rate %v", res.BWAvg, res.BWPeak, res.BWMiB, res.Rate)
	}
	if !near(res.CPUPerGB, 9.5367) || res.Errors != 3 || res.RTT != nil || res.LatP50.measured() {
		t.Errorf("cpu %v errors %d rtt %v p50 %v", res.CPUPerGB, res.Errors, res.RTT, res.LatP50)
	}
}

func TestRatioIsThatOfTheRepetitions(t *testing.T) {
	result := func(test, provider string, size int64, reps ...figure) Result {
		r := newRow()
		r.Test, r.Provider, r.Size = test, provider, size
		return Result{Row: r, Figure: "f", Median: median(reps), PerRep: reps}
	}
	yes, no := true, false
	for _, tt := range []struct {
		name      string
		ours, raw Result
		ratio     figure
		reached   *bool
	}{
		{"latency reached", result("msg_lat", "quic", 64, 11, 22, 33), result("msg_lat", rawProvider, 64, 10, 20, 20), 1.1, &yes},
		{"latency missed", result("msg_lat", "quic", 64, 12, 12), result("msg_lat", rawProvider, 64, 10, 10), 1.2, &no},
		{"latency at the edge", result("msg_lat", "quic", 64, 115), result("msg_lat", rawProvider, 64, 100), 1.15, &yes},
		{"other size", result("msg_lat", "quic", 65, 12), result("msg_lat", rawProvider, 65, 10), 1.2, nil},
		{"bulk reached", result("msg_bw", "quic", 1<<20, 96), result("msg_bw", rawProvider, 1<<20, 100), 0.96, &yes},
		{"bulk missed", result("msg_bw", "quic", 1<<20, 94), result("msg_bw", rawProvider, 1<<20, 100), 0.94, &no},
		{"small bandwidth", result("msg_bw", "quic", 64, 50), result("msg_bw", rawProvider, 64, 100), 0.5, nil},
		{"other test", result("rma_read_lat", "quic", 64, 2), result("rma_read_lat", rawProvider, 64, 1), 2, nil},
		{"nothing measured", result("msg_lat", "quic", 64), result("msg_lat", rawProvider, 64), absent, nil},
		{"anchor stood still", result("msg_bw", "quic", 1<<20, 1), result("msg_bw", rawProvider, 1<<20, 0), absent, nil},
	} {
		q := compareRatio(tt.ours, tt.raw)
		if q.Ratio.measured() != tt.ratio.measured() || tt.ratio.measured() && !near(q.Ratio, tt.ratio) {
			t.Errorf("%s: ratio %v, want %v", tt.name, q.Ratio, tt.ratio)
		}
		switch {
		case (q.Reached == nil) != (tt.reached == nil):
			t.Errorf("%s: has a target: %v, want %v", tt.name, q.Reached != nil, tt.reached != nil)
		case q.Reached != nil && *q.Reached != *tt.reached:
			t.Errorf("%s: reached %v, want %v", tt.name, *q.Reached, *tt.reached)
		}
	}
}

func TestBudget(t *testing.T) {
	for _, tt := range []struct {
		name          string
		b             budget
		size          int64
		iters, warmup int64
	}{
		{"defaults", budget{warmup: -1}, 64, 10_000, 1000},
		{"defaults at the edge", budget{warmup: -1}, 64 << 10, 10_000, 1000},
		{"defaults, large", budget{warmup: -1}, 64<<10 + 1, 9999, 999},
		{"defaults, 1 MiB", budget{warmup: -1}, 1 << 20, 625, 62},
		{"defaults, 64 MiB", budget{warmup: -1}, 64 << 20, 100, 10},
		{"given, 1 MiB", budget{iters: 2000, warmup: -1}, 1 << 20, 125, 12},
		{"given few, 1 MiB", budget{iters: 5, warmup: -1}, 1 << 20, 5, 1},
		{"given", budget{iters: 5, warmup: 0}, 64, 5, 0},
		{"few", budget{iters: 5, warmup: -1}, 64, 5, 1},
		{"many", budget{iters: 1_000_000, warmup: -1}, 64, 1_000_000, 1000},
		{"a duration needs a warm-up", budget{duration: time.Second}, 64, 10_000, 1},
	} {
		if iters, warmup := tt.b.plan(tt.size); iters != tt.iters || warmup != tt.warmup {
			t.Errorf("%s: %d and %d, want %d and %d", tt.name, iters, warmup, tt.iters, tt.warmup)
		}
	}
	b := budget{duration: time.Second}
	if got := b.fit(64, 100, time.Millisecond); got != 100_000 {
		t.Errorf("100 in 1 ms: %d fit into 1 s, want 100000", got)
	}
	if got := b.fit(64, 1, time.Hour); got != 10 {
		t.Errorf("1 in 1 h: %d, want at least 10", got)
	}
	if got := b.fit(64, 1000, 0); got != maxIters {
		t.Errorf("1000 in no time: %d, want at most %d", got, maxIters)
	}
}

// The warm-up takes a tenth of the repetition, unless somebody says how long it is.
func TestMore(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    budget
		took time.Duration // what 1000 took
		want int64
	}{
		{"of 1 us", budget{warmup: -1}, time.Millisecond, 5000},
		{"of 5 us", budget{warmup: -1}, 5 * time.Millisecond, 0},
		{"as long as given", budget{warmup: -1, duration: 40 * time.Millisecond}, time.Millisecond, 4000},
		{"as long as given, which is over", budget{warmup: -1, duration: 10 * time.Millisecond}, time.Millisecond, 0},
		{"as many as given", budget{warmup: -1, iters: 20}, time.Microsecond, 0},
		{"a warm-up that is given", budget{warmup: 1000}, time.Millisecond, 0},
	} {
		if got := tt.b.more(64, 1000, tt.took); got != tt.want {
			t.Errorf("%s: %d more operations, want %d", tt.name, got, tt.want)
		}
	}
}

// Unless somebody says how many or how long, a repetition takes leastTime at least.
func TestCount(t *testing.T) {
	for _, tt := range []struct {
		name    string
		b       budget
		took    time.Duration // what 1000 took
		want    int64
		planned int64
	}{
		{"of 100 ns", budget{}, 100 * time.Microsecond, 500_000, 10_000},
		{"of 5 us", budget{}, 5 * time.Millisecond, 10_000, 10_000},
		{"of 1 ms", budget{}, time.Second, 625, 625},
		{"as many as given", budget{iters: 20}, 100 * time.Microsecond, 20, 20},
		{"as long as given", budget{duration: time.Millisecond}, 100 * time.Microsecond, 10_000, 10_000},
		{"as long as given, and less than planned", budget{duration: time.Millisecond}, time.Millisecond, 1000, 10_000},
	} {
		if got := tt.b.count(64, tt.planned, 1000, tt.took); got != tt.want {
			t.Errorf("%s: %d operations, want %d", tt.name, got, tt.want)
		}
	}
}

func TestUnderWay(t *testing.T) {
	for size, want := range map[int64]int64{1: 1024, 64: 1024, 4096: 1024, 8192: 512, 64 << 10: 64, 1 << 20: 64, 64 << 20: 64} {
		if got := underWay(size); got != want {
			t.Errorf("%d of %d bytes under way, want %d", got, size, want)
		}
	}
}
