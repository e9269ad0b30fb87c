package workload

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fabricd/fabricd/internal/lab/load"
)

// A Config configures one application. The runner writes it to a file and the
// application reads it.
type Config struct {
	Zero int64  `json:"zero"` // CLOCK_MONOTONIC at the zero of the run, ns
	Seed uint64 `json:"seed"`
	Slot int    `json:"slot"` // of the node; its ID
	Run  int    `json:"run"`  // counts the starts of the application of this slot from 1

	Socket  string `json:"socket"`  // of the slot's fabricd
	Admin   string `json:"admin"`   // admin socket of the same
	History string `json:"history"` // file to write; it does not exist yet
	Control string `json:"control"` // file with a [Control], which may come and change; empty: none
	Ready   string `json:"ready"`   // file to make when all connections have been made once; empty: none

	Peers []Peer `json:"peers"`

	Plan load.Plan `json:"plan"`
}

// A Peer is another slot that this application talks to.
type Peer struct {
	Slot   int  `json:"slot"`
	Client bool `json:"client"` // this end connects
	Late   bool `json:"late"`   // it may not be there yet
}

// Bounds of a Config.
const (
	maxRate   = 1_000_000
	maxSize   = 64 << 20
	maxWindow = 1 << 30
	maxPeers  = 4096
	maxBeat   = time.Second
	maxConfig = 1 << 20 // bytes of the file
)

// ReadConfig reads and checks the file at path.
func ReadConfig(path string) (Config, error) {
	var c Config
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if len(text) > maxConfig {
		return c, fmt.Errorf("%s: %d bytes: want at most %d", path, len(text), maxConfig)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func (c *Config) check() error {
	p := &c.Plan
	m, r := p.Messages, p.RMA
	switch {
	case c.Slot < 0 || c.Run < 1:
		return fmt.Errorf("slot, run: %d, %d: want at least 0 and 1", c.Slot, c.Run)
	case c.Socket == "" || c.History == "":
		return fmt.Errorf("socket, history: %q, %q: want paths", c.Socket, c.History)
	case len(c.Peers) > maxPeers:
		return fmt.Errorf("peers: %d: want at most %d", len(c.Peers), maxPeers)
	case !rate(m.Rate) || !rate(r.Rate) || !rate(float64(r.Fence)) || !rate(float64(r.Signal)) || !rate(p.Connects) || !rate(p.Windows):
		return fmt.Errorf("rates: want 0 to %d", maxRate)
	case !(r.Reads >= 0 && r.Reads <= 1):
		return fmt.Errorf("rma.reads: %v: want 0 to 1", r.Reads)
	case m.Rate > 0 && !sizes(m.Min, m.Max), r.Rate > 0 && !sizes(r.Min, r.Max):
		return fmt.Errorf("min, max: want 1 to %d bytes", maxSize)
	case r.Window < 0 || r.Window > maxWindow:
		return fmt.Errorf("rma.window: %d: want at most %d bytes", r.Window, maxWindow)
	case p.ConnectSize < 1 || p.ConnectSize > maxSize || p.Parked < 0 || p.Parked > maxSize || p.Receive < 1 || p.Receive > maxSize:
		return fmt.Errorf("connect_size, parked, receive: %d, %d, %d: want up to %d bytes", p.ConnectSize, p.Parked, p.Receive, maxSize)
	case p.Beat < 0 || p.Beat > maxBeat:
		return fmt.Errorf("beat: %d: want 0 to %d ns", p.Beat, maxBeat.Nanoseconds())
	}
	return nil
}

func rate(r float64) bool { return r >= 0 && r <= maxRate }

func sizes(min, max int64) bool { return min >= 1 && min <= max && max <= maxSize }
