package doctor

import (
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
)

// Facts are what was seen of a machine. A text that is empty, and a number that is
// zero, were not to be had, unless said otherwise.
type Facts struct {
	Kernel      string // its release
	Processors  int    // that this process may use
	Descriptors uint64 // that a process may have

	Sealed     error  // of making sealed shared memory; nil: it can be made
	Memory     int64  // bytes that can be had; -1: unknown
	Bound      string // and what bounds them
	Ptrace     string // kernel.yama.ptrace_scope
	HugePage   int64  // bytes of one of shared memory
	HugeFailed error  // of making a channel of them, where the configuration asks for it

	UDPFailed   error  // of opening a UDP socket
	UDPBuffers  string // what is wrong with them, for people
	Send, Merge bool   // the kernel takes many packets in one call, and gives many

	Needs   []daemon.Need
	Joins   []Join
	Unknown []string // variables FABRIC_… that are no setting

	Node Node
}

// A Join is an attempt to reach a member.
type Join struct {
	Address string
	Took    time.Duration
	Err     error
}

// A Node is the one that runs here.
type Node struct {
	Runs   bool // one has answered; else the rest is empty
	Status daemon.Status
	Health daemon.Health
}
