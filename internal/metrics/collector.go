// Package metrics has the metrics of one node, for Prometheus. Nothing is counted for them
// alone: they are read from a snapshot of the node when they are asked for.
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/observe"
)

// Bounds of requests: scrapes beyond them do not wait, they are refused.
const (
	scrapesAtOnce = 4
	scrapeTime    = 5 * time.Second
)

// Handler serves the metrics of the node in the snapshots, with those of its
// process and of Go.
func Handler(snapshot func() observe.Snapshot, log zerolog.Logger) http.Handler {
	return promhttp.HandlerFor(Registry(snapshot), promhttp.HandlerOpts{
		ErrorLog: errorLog{log}, MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTime, ErrorHandling: promhttp.HTTPErrorOnError,
	})
}

// Registry returns the registry that Handler serves.
func Registry(snapshot func() observe.Snapshot) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{snapshot}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// errorLog logs the library's errors.
type errorLog struct{ log zerolog.Logger }

func (l errorLog) Println(v ...any) {
	l.log.Debug().Str("op", "metrics").Any("detail", v).Msg("scrape")
}

// A collector makes metrics of snapshots.
type collector struct{ snapshot func() observe.Snapshot }

// Describe sends every metric that there may be.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range all {
		to <- m.desc
	}
}

// Collect sends the metrics of one snapshot.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.snapshot()
	for _, m := range all {
		m.collect(&s, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
		})
	}
	for _, h := range histograms {
		to <- h.metric(h.of(&s))
	}
}

// A metric is one of a node: collect sends each of its values with its labels.
type metric struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	collect func(s *observe.Snapshot, send func(value float64, labels ...string))
}

func gauge(name, help string, collect func(*observe.Snapshot, func(float64, ...string)), labels ...string) metric {
	return metric{prometheus.NewDesc("fabricd_"+name, help, labels, nil), prometheus.GaugeValue, collect}
}

func counter(name, help string, collect func(*observe.Snapshot, func(float64, ...string)), labels ...string) metric {
	return metric{prometheus.NewDesc("fabricd_"+name, help, labels, nil), prometheus.CounterValue, collect}
}

// one collects a metric without labels.
func one(value func(*observe.Snapshot) float64) func(*observe.Snapshot, func(float64, ...string)) {
	return func(s *observe.Snapshot, send func(float64, ...string)) { send(value(s)) }
}

// byName collects a value for each name of a fixed list.
func byName(values func(*observe.Snapshot) map[string]uint64) func(*observe.Snapshot, func(float64, ...string)) {
	return func(s *observe.Snapshot, send func(float64, ...string)) {
		for name, v := range values(s) {
			send(float64(v), name)
		}
	}
}

// A histogram is one of durations that the engine has counted.
type histogram struct {
	desc *prometheus.Desc
	of   func(*observe.Snapshot) engine.Histogram
}

func (h histogram) metric(v engine.Histogram) prometheus.Metric {
	buckets, sum := make(map[float64]uint64, len(v.Bounds)), uint64(0)
	for i, b := range v.Bounds {
		sum += v.Buckets[i]
		buckets[b.Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(h.desc, v.Count, v.Sum.Seconds(), buckets)
}

func peer(l engine.LinkInfo) string { return strconv.Itoa(int(l.Node)) }

func is(cond bool) float64 {
	if cond {
		return 1
	}
	return 0
}

// unix returns t in seconds; 0 for no time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
