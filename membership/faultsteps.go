package membership

import (
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/verdict"
)

// hitLeases reports that leases are at a step of a grant or of a removal.
func hitLeases(faults *failpoint.Node, leases []verdict.Lease, granted, removed failpoint.Step) {
	for _, l := range leases {
		switch l.State {
		case verdict.LeaseActive:
			_ = faults.Hit(granted)
		case verdict.LeaseQuarantine:
			_ = faults.Hit(removed)
		}
	}
}

// stepOfSent returns the step that is reached when a message is on its way to
// another node.
func stepOfSent(m verdict.Message) (s failpoint.Step) {
	switch m.(type) {
	case verdict.Join:
		return failpoint.LeaseAsked
	case verdict.Resume:
		return failpoint.ResumeSent
	case verdict.Grant:
		return failpoint.GrantSent
	case verdict.RemovedIncarnation:
		return failpoint.RemovalSent
	}
	return s
}

// stepOfReceived returns the step that is reached when the host has a message of
// another node and has not looked at it.
func stepOfReceived(m verdict.Message) (s failpoint.Step) {
	switch m.(type) {
	case verdict.Resume:
		return failpoint.ResumeArrived
	case verdict.Ack:
		return failpoint.RemovalAcked
	}
	return s
}
