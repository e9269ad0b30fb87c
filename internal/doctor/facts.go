package doctor

import (
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
)

// Facts are the results of inspecting a machine. An empty text, or a zero number, is unknown,
// unless noted otherwise.
type Facts struct {
	Kernel      string // its release
	Processors  int    // available to this process
	Descriptors uint64 // limit of a process

	Sealed     error  // of creating sealed shared memory; nil: it works
	Memory     int64  // available bytes; -1: unknown
	Bound      string // the source of that limit
	Ptrace     string // kernel.yama.ptrace_scope
	HugePage   int64  // size of a huge page of shared memory, in bytes
	HugeFailed error  // of creating a shared-memory path of them, if the configuration asks for it

	UDPFailed   error  // of opening a UDP socket
	UDPBuffers  string // the fault of its buffers, for operators
	Send, Merge bool   // the kernel splits a large send into packets, and merges received ones

	Locked     bool  // this process may lock a path's socket to its peer
	LockFailed error // of trying it, for another reason than a missing capability

	Needs   []daemon.Need
	Joins   []Join
	Unknown []string // lines about variables FABRIC_… that are not settings

	Node Node
}

// A Join is an attempt to reach a member.
type Join struct {
	Address string
	Took    time.Duration
	Err     error
}

// A Node is the node that runs on this machine.
type Node struct {
	Runs   bool // a node has answered; else the rest is empty
	Status daemon.Status
	Health daemon.Health
}
