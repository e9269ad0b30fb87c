package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// schemaVersion is the first column of every row. It changes when the meaning
// or the order of a column does.
const schemaVersion = "fabric-bench/1"

// A Row is one measured test: one size, one provider. The order of its fields
// is the order of the columns, their tags are the names in CSV and JSON, and
// the names carry the units. A figure that was not measured is empty in CSV and
// null in JSON.
type Row struct {
	Schema   string `json:"schema"`
	RunID    string `json:"run_id"` // the same in all rows of a run
	Git      string `json:"git"`    // revision of this program
	Host     string `json:"host"`
	CPU      string `json:"cpu"` // model and how many are used
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Provider string `json:"provider"` // what carries the bytes; raw-… is an anchor
	Security string `json:"security"`
	Test     string `json:"test"`
	Dir      string `json:"dir"` // which way the payload goes
	Size     int64  `json:"size_bytes"`
	Pairs    int64  `json:"pairs"`
	Conns    int64  `json:"conns"`
	Window   int64  `json:"window"` // operations under way at once; 0: as many as the transport takes
	Iters    int64  `json:"iters"`  // timed operations of all repetitions
	Warmup   int64  `json:"warmup"` // untimed operations before each repetition
	Errors   int64  `json:"errors"` // operations whose bytes were wrong

	// Of all repetitions together. Half round trips in *_lat.
	LatMin    figure `json:"lat_min_us"`
	LatP50    figure `json:"lat_p50_us"`
	LatP90    figure `json:"lat_p90_us"`
	LatP95    figure `json:"lat_p95_us"`
	LatP99    figure `json:"lat_p99_us"`
	LatP999   figure `json:"lat_p999_us"`
	LatP9999  figure `json:"lat_p9999_us"`
	LatMax    figure `json:"lat_max_us"`
	LatAvg    figure `json:"lat_avg_us"`
	LatStddev figure `json:"lat_stddev_us"`

	BWAvg  figure `json:"bw_avg_mbps_dec"`  // 10⁶ bytes per second, median of the repetitions
	BWPeak figure `json:"bw_peak_mbps_dec"` // the best repetition's
	BWMiB  figure `json:"bw_avg_mib_s"`     // bw_avg_mbps_dec in 2²⁰ bytes per second
	Rate   figure `json:"msg_rate_per_s"`   // median of the repetitions

	CPUPerGB figure `json:"cpu_s_per_gb"`    // of this process, which has both ends unless there is a peer
	Allocs   figure `json:"allocs_per_op"`   // the same
	Syscalls figure `json:"syscalls_per_op"` // the same; absent where the kernel does not count them, see the notes
	// Packets of the initiator's link, in both directions, with retransmissions
	// and heartbeats and without the headers of UDP and IP, for each byte of
	// payload. Absent without a wire.
	WireBytes figure `json:"wire_bytes_per_payload_byte"`

	Rep       int64  `json:"rep"`    // 0: all repetitions together
	Reps      int64  `json:"reps"`   // how many there were
	CV        figure `json:"cv_pct"` // coefficient of variation between the repetitions
	Validated bool   `json:"validated"`
	Noise     bool   `json:"noise_flag"` // cv_pct is above 10

	ConnBytes figure `json:"mem_bytes_per_conn"` // of both ends: conn_scale
	Fairness  figure `json:"fairness_jain"`      // between the pairs, 1 is equal
	P99Ratio  figure `json:"p99_ratio"`          // of conn_mixed: p99 beside bulk / p99 alone; of fail_blast: p99 while a node dies / p99 before

	// Of threads that gave up their processor or lost it, in this process and in
	// those that work for it.
	Switches    figure `json:"ctx_switches_per_op"`
	WindowBytes figure `json:"mem_bytes_per_window"`         // of both ends, without the window's own pages: window_scale
	FalseRate   figure `json:"false_removals_per_node_hour"` // how often a node saw one go that was well: false_positive_rate
}

// A figure is a measured number, kept to three decimals; NaN if it was not
// measured.
type figure float64

var absent = figure(math.NaN())

func (f figure) measured() bool { return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) }

func (f figure) String() string {
	if !f.measured() {
		return ""
	}
	return strconv.FormatFloat(math.Round(float64(f)*1000)/1000, 'f', -1, 64)
}

func parseFigure(s string) (figure, error) {
	if s == "" {
		return absent, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	return figure(v), err
}

// MarshalJSON writes null for what was not measured.
func (f figure) MarshalJSON() ([]byte, error) {
	if !f.measured() {
		return []byte("null"), nil
	}
	return []byte(f.String()), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *figure) UnmarshalJSON(b []byte) (err error) {
	if bytes.Equal(b, []byte("null")) {
		*f = absent
		return nil
	}
	*f, err = parseFigure(string(b))
	return err
}

// newRow returns a row in which nothing was measured.
func newRow() Row {
	r := Row{Schema: schemaVersion, Pairs: 1, Conns: 1}
	for i := range numColumns {
		if f, ok := r.column(i).(*figure); ok {
			*f = absent
		}
	}
	return r
}

var (
	rowType    = reflect.TypeFor[Row]()
	numColumns = rowType.NumField()
)

// columns returns the names of the columns in their order.
func columns() []string {
	names := make([]string, numColumns)
	for i := range names {
		names[i] = rowType.Field(i).Tag.Get("json")
	}
	return names
}

// column returns a pointer to the i-th field.
func (r *Row) column(i int) any { return reflect.ValueOf(r).Elem().Field(i).Addr().Interface() }

// record returns the row's cells.
func (r Row) record() []string {
	cells := make([]string, numColumns)
	for i := range cells {
		switch v := r.column(i).(type) {
		case *string:
			cells[i] = *v
		case *int64:
			cells[i] = strconv.FormatInt(*v, 10)
		case *figure:
			cells[i] = v.String()
		case *bool:
			cells[i] = strconv.FormatBool(*v)
		}
	}
	return cells
}

// parseRecord returns the row with these cells.
func parseRecord(cells []string) (Row, error) {
	var r Row
	if len(cells) != numColumns {
		return r, fmt.Errorf("a row of %d cells, want %d", len(cells), numColumns)
	}
	for i, cell := range cells {
		var err error
		switch v := r.column(i).(type) {
		case *string:
			*v = cell
		case *int64:
			*v, err = strconv.ParseInt(cell, 10, 64)
		case *figure:
			*v, err = parseFigure(cell)
		case *bool:
			*v, err = strconv.ParseBool(cell)
		}
		if err != nil {
			return r, fmt.Errorf("column %s: %w", columns()[i], err)
		}
	}
	return r, nil
}

// writeCSV writes a header and the rows.
func writeCSV(w io.Writer, rows []Row) error {
	out := csv.NewWriter(w)
	if err := out.Write(columns()); err != nil {
		return err
	}
	for _, r := range rows {
		if err := out.Write(r.record()); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// readCSV reads what writeCSV writes.
func readCSV(in io.Reader) ([]Row, error) {
	records, err := csv.NewReader(in).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) == 0 || !slices.Equal(records[0], columns()) {
		return nil, fmt.Errorf("the header is not that of schema %s", schemaVersion)
	}
	rows := make([]Row, 0, len(records)-1)
	for i, cells := range records[1:] {
		r, err := parseRecord(cells)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// A Document is the JSON form of a run.
type Document struct {
	Schema  string   `json:"schema"`
	RunID   string   `json:"run_id"`
	Started string   `json:"started"` // RFC 3339
	Command []string `json:"command"`
	Chaos   *Chaos   `json:"chaos,omitempty"` // nil: nothing was broken on purpose
	Results []Result `json:"results"`
	Ratios  []Ratio  `json:"ratios"`
	Losses  []Loss   `json:"losses,omitempty"` // of fail_detect: one per kill
	// Complete is set when no event of the losses was missing or too many.
	Complete bool    `json:"losses_complete,omitempty"`
	Calms    []Calm  `json:"calms,omitempty"`  // of false_positive_rate: one per repetition of each side
	Idle     []Idle  `json:"idle,omitempty"`   // of idle: one per daemon
	Checks   []Check `json:"checks,omitempty"` // targets that are no ratios
	// Cliffs are the neighbouring sizes between which time more than doubles
	// beyond the ratio of the sizes; CliffPairs is how many were compared.
	Cliffs     []Cliff `json:"cliffs,omitempty"`
	CliffPairs int     `json:"cliff_pairs,omitempty"`
	Machine    Machine `json:"machine"`
	// Notes say why figures are absent.
	Notes []string `json:"notes,omitempty"`
}

// A Result is a row and what does not fit into one.
type Result struct {
	Row
	RTT    *Percentiles `json:"rtt_us,omitempty"` // of *_lat: whole round trips
	Figure string       `json:"figure"`           // name of the column that stands for the row
	Min    figure       `json:"figure_min"`       // of the repetitions
	Median figure       `json:"figure_median"`
	Max    figure       `json:"figure_max"`
	PerRep []figure     `json:"figure_per_rep"`

	hist *hdrhistogram.Histogram // of all repetitions, nanoseconds of whole operations; nil of bandwidth
}

func writeJSON(w io.Writer, d any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(d)
}

func readJSON(in io.Reader) (*Document, error) {
	var d Document
	if err := json.NewDecoder(in).Decode(&d); err != nil {
		return nil, err
	}
	if d.Schema != schemaVersion {
		return nil, fmt.Errorf("schema %q, want %q", d.Schema, schemaVersion)
	}
	return &d, nil
}
