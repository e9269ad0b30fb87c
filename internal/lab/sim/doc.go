// Package sim runs whole clusters on virtual time, in one goroutine. The same
// schedule and seed give the same history, byte for byte.
//
// The decisions are the product's own code: the host, the members, their pace and their
// lifelines of package verdict, endpoint states, listeners, connections, credit,
// keepalives and HELLOs of package core, with rma, fence, portmap and the wire's codec
// below it. The simulation adds a shell around them: machines with disks, processes that
// are killed, stopped and crash at a step, a network, and applications that run the
// scenario's workload, as package load decides it, and record the results.
//
//	scenario.Schedule --> Run --> []history.Record --> package check
//
// # The network
//
// Each directed pair of machines has a path for each plane of traffic. Control sessions
// and lifelines are TCP: kernels retransmit while a process stands still, and report
// its death. Links are QUIC as quic-go speaks it and our provider uses it: a congestion
// window that heartbeats wait for too, probes at intervals that double, the last
// packets sent again while a heartbeat finds no answer. A dead process is silent, a
// running process retransmits unacknowledged packets, and a process that does not know
// a session resets it. A write is one packet whatever its length, acknowledgements are
// not held back, nothing is paced, and only later packets or a probe find a loss. Rules are
// those of package faults, which decides about each packet as it does in a node. Gossip is
// no protocol here but a source of reports, with the delays that were measured of it, and
// false ones when a node comes back.
//
// # Where it is not the product
//
// The shells of membership and engine are goroutines around the deciding code and
// cannot run here: where one of them waits, the simulation has a function that is
// called later. A mistake in the order of locks, in a goroutine's end or in a buffer of
// the shells does not show here: the tests of those packages, and the runs on
// processes, cover that. Package core provides the queue and the effects of a
// connection, and the contents of a HELLO, its answer and its refusal, for both.
// Repeated by hand, and to be kept alike, is:
//
//   - agent.go, control.go and lifelines.go: the shell of membership. Which lifelines are
//     opened and closed is package verdict's;
//   - node.go: in which order an incarnation comes and goes, with its link and its events.
//     The engine does it in steps between locks, and waits for goroutines;
//   - dial.go and link.go: the waits for a dial or a welcome, which of two links
//     stays (by core.RefusesDialed). The engine's links have providers and stand beside
//     each other, and its connects outlive a link: here a connect ends with its link;
//   - conn.go and its neighbours: the frames that are not core's (Credit, Close), the
//     two sides of a close, and the steps at which a fault strikes. Bytes of payload
//     and of messages go to slices here, there to rings and to foreign memory;
//   - endpoint.go and endpoint_connect.go: attempts, how a grant goes, and which calls a
//     close ends.
//
// Further:
//
//   - control messages and leases go as values, not through their codec, TLS
//     and signatures;
//   - TCP goes on without acknowledgements: where one direction is cut, bytes sent the
//     other way arrive, for as long as their sender lives, and an unreachable node is
//     received until it gives up; kernels stop it after a round trip or two;
//   - the loss of a node is handled in one moment, so that nothing runs between
//     the end of its operations and the event;
//   - applications are attached by function calls; their sockets, memory maps
//     and the links of a node with itself are not there;
//   - a delay or freeze at a step stops the whole process, and not one
//     goroutine; clocks, descriptors, memory and processor time have no faults;
//   - a second host, tokens, certificates and keys are not there.
package sim
