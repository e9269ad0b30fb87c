package attach

import "strings"

// A Loss is which of the known causes the words of a cause are. Its number is nowhere but in
// this process.
type Loss uint8

// The values of a Loss.
const (
	LossOther       Loss = iota // another cause, or none is known
	LossPeerDied                // the peer's process ended
	LossDetached                // the peer's application detached from its node
	LossAborted                 // the peer's application gave the connection up
	LossNodeStopped             // the fabricd of an end stopped
	LossNodeRemoved             // the peer's node was removed
	LossLinkSilent              // nothing came over the link
	LossPathSilent              // nothing came over the path, though the link lives
	LossProtocol                // the peer's node broke the protocol
)

// losses are how causes begin, which are the same between builds.
var losses = []struct {
	begins string
	loss   Loss
}{
	{"node removed: ", LossNodeRemoved},
	{"link silent", LossLinkSilent},
	{"session timed out", LossLinkSilent},
	{"fabricd of node", LossNodeStopped},
	{"a fabricd without an ID stopped", LossNodeStopped},
	{"session closed by peer: fabricd of node", LossNodeStopped},
	{CauseNodeGone, LossNodeStopped},
	{CauseDied, LossPeerDied},
	{CauseDetached, LossDetached},
	{CauseAborted, LossAborted},
	{"the peer's node broke the protocol", LossProtocol},
	{"path silent", LossPathSilent},
}

// LossOf returns which of the known causes a cause in words is.
func LossOf(cause string) Loss {
	for _, l := range losses {
		if strings.HasPrefix(cause, l.begins) {
			return l.loss
		}
	}
	return LossOther
}
