package attach

import "strings"

// A Loss is the class of a connection's cause. Its number is private to this process: it is on no
// wire and in no file.
type Loss uint8

// The values of a Loss.
const (
	LossOther       Loss = iota // another cause, or none is known
	LossPeerDied                // the peer's process ended
	LossDetached                // the peer's application detached from its node
	LossAborted                 // the peer's application gave the connection up
	LossNodeStopped             // the fabricd of an end stopped
	LossNodeRemoved             // the peer's node was removed
	LossLinkSilent              // nothing arrived over the link
	LossPathSilent              // nothing arrived over the path, though the link is alive
	LossProtocol                // the peer's node broke the protocol
)

// losses maps the beginning of a cause, which is the same in all builds, to its class.
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

// LossOf returns the class of a cause.
func LossOf(cause string) Loss {
	for _, l := range losses {
		if strings.HasPrefix(cause, l.begins) {
			return l.loss
		}
	}
	return LossOther
}
