package workload

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fabricd/fabricd/internal/lab/load"
)

// A Config configures one application. The runner makes it of a scenario, which was
// checked, and writes it to a file; the application reads it.
type Config struct {
	Zero int64  `json:"zero"` // CLOCK_MONOTONIC at the zero of the run, ns
	Seed uint64 `json:"seed"`
	Node int    `json:"node"` // its index
	Run  int    `json:"run"`  // counts the starts of the application of this node from 1

	Socket  string `json:"socket"`  // of the node's fabricd
	Admin   string `json:"admin"`   // admin socket of the same
	History string `json:"history"` // file to write; it does not exist yet
	Control string `json:"control"` // file with a [Control], which may come and change; empty: none
	Ready   string `json:"ready"`   // file to make when all connections have been made once; empty: none

	Peers []Peer `json:"peers"`

	Plan load.Plan `json:"plan"`
}

// A Peer is another node that this application talks to.
type Peer struct {
	Node   int  `json:"node"`
	Client bool `json:"client"` // this end connects
	Late   bool `json:"late"`   // it may not be there yet
}

// ReadConfig reads the file at path.
func ReadConfig(path string) (c Config, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
