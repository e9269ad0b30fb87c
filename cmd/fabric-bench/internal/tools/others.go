package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A PingPong is the result of one run of fi_pingpong.
type PingPong struct {
	Micros float64 // per transfer: half of the round trip
	MB     float64 // 10⁶ bytes per second
}

// PingPongPair returns a run of fi_pingpong over a provider of libfabric and a kind of endpoint of
// it, msg or rdm, with messages of size bytes.
func PingPongPair(port int, provider, endpoint string, size, iterations int64) Pair {
	const program = "fi_pingpong"
	args := []string{"-p", provider, "-e", endpoint, "-I", decimal(iterations), "-S", decimal(size)}
	return Pair{Program: program, Port: port,
		Server: append([]string{program, "-B", strconv.Itoa(port)}, args...),
		Client: append(append([]string{program, "-P", strconv.Itoa(port)}, args...), "127.0.0.1")}
}

// pingPongColumns are the columns of fi_pingpong's output.
var pingPongColumns = strings.Fields("bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec")

// ParsePingPong reads the output of fi_pingpong: the last row after the header.
func ParsePingPong(text string) (PingPong, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) < 2 || strings.Join(strings.Fields(lines[0]), " ") != strings.Join(pingPongColumns, " ") {
		return PingPong{}, errors.New("fi_pingpong: its output has not the header that is known")
	}
	cells := strings.Fields(lines[len(lines)-1])
	if len(cells) != len(pingPongColumns) {
		return PingPong{}, fmt.Errorf("fi_pingpong: a row of %d columns", len(cells))
	}
	mb, err1 := positive(cells[5])
	us, err2 := positive(cells[6])
	if err := errors.Join(err1, err2); err != nil {
		return PingPong{}, fmt.Errorf("fi_pingpong: %w", err)
	}
	return PingPong{Micros: us, MB: mb}, nil
}

// ParseIperf reads the output of `iperf3 -J` at the client and returns the bytes per second that
// arrived.
func ParseIperf(text []byte) (float64, error) {
	var run struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(text, &run); err != nil {
		return 0, fmt.Errorf("iperf3: %w", err)
	}
	switch {
	case run.Error != "":
		return 0, fmt.Errorf("iperf3: %s", run.Error)
	case !(run.End.Received.Bits > 0):
		return 0, errors.New("iperf3: it has received nothing")
	}
	return run.End.Received.Bits / 8, nil
}
