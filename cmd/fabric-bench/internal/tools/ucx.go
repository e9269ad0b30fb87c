package tools

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A UCXTest is one run of ucx_perftest.
type UCXTest struct {
	Transport  string // UCX_TLS: posix or tcp
	Name       string // of the test, such as tag_lat
	Size       int64  // bytes
	Iterations int64
	Warmup     int64
}

// UCX is the result of one run of ucx_perftest.
type UCX struct {
	Iterations int64
	P50        float64 // latency in microseconds; of *_lat half of the round trip
	Latency    float64 // the same, averaged over the run
	MiB        float64 // per second, over the run
	Rate       float64 // operations per second, over the run
}

// Pair returns the two ends of the run.
func (t UCXTest) Pair(port int) Pair {
	const program = "ucx_perftest"
	settings := []string{"env", "UCX_TLS=" + t.Transport, "UCX_NET_DEVICES=lo", "UCX_LOG_LEVEL=error", "UCX_WARN_UNUSED_ENV_VARS=n", program}
	args := []string{"-p", strconv.Itoa(port), "-t", t.Name, "-s", decimal(t.Size), "-n", decimal(t.Iterations), "-w", decimal(t.Warmup), "-f", "-v"}
	return Pair{Program: program, Port: port, Server: slices.Concat(settings, args), Client: slices.Concat(settings, []string{"127.0.0.1"}, args)}
}

// ucxColumns is the header of the CSV that `ucx_perftest -v` prints.
const ucxColumns = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"

// ParseUCX reads the output of `ucx_perftest -f -v`: the last row after the header.
func ParseUCX(text string) (UCX, error) {
	_, rows, ok := strings.Cut(text, ucxColumns)
	if !ok {
		return UCX{}, errors.New("ucx_perftest: its output has not the header that is known")
	}
	lines := strings.Split(strings.TrimSpace(rows), "\n")
	cells := strings.Split(lines[len(lines)-1], ",")
	if len(cells) != strings.Count(ucxColumns, ",")+1 {
		return UCX{}, fmt.Errorf("ucx_perftest: a row of %d columns", len(cells))
	}
	values := make([]float64, len(cells))
	for i, cell := range cells {
		v, err := positive(strings.TrimSpace(cell))
		if err != nil {
			return UCX{}, fmt.Errorf("ucx_perftest: column %d: %w", i+1, err)
		}
		values[i] = v
	}
	return UCX{Iterations: int64(values[0]), P50: values[1], Latency: values[3], MiB: values[5], Rate: values[7]}, nil
}

// positive reads a finite number that is not negative.
func positive(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, err
	}
	if !(v >= 0 && v < 1e18) {
		return 0, fmt.Errorf("%q is out of range", s)
	}
	return v, nil
}
