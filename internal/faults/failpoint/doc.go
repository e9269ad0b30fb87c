// Package failpoint holds the faults of one node, off until one is added:
// a crash, a stop, a delay or an error at a named step of the protocol, a wrong
// wall clock, a disk that is full, read-only or slow, descriptors that run out,
// an application that reads slowly.
//
// A [Node] is handed to the rooms of one node through their configurations. A
// nil *Node has no faults and takes none: every method works on it. A step costs
// one atomic load while nothing is armed there:
//
//	if err := n.cfg.Faults.Hit(failpoint.HelloSent); err != nil {
//		return err
//	}
//
// Steps are hit without locks held, so that a delay holds up only the goroutine
// that is there.
//
// An [Actor] ends or stops a whole node: the process for a daemon, the test's network for nodes
// that share one process. After a crash in a process that goes on, the node counts as dead: its
// disk takes nothing any more.
package failpoint
