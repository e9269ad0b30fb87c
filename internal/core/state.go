// Package core is the engine as state machines: the effect of every call in every
// state of an endpoint, the operations of one connection, and the checks of a
// link on its peer. It has no clock, goroutine, randomness or I/O: time and
// frames come in, decisions and frames go out. Package engine performs them.
package core

import "github.com/fabricd/fabricd/internal/status"

// A State is a state of an endpoint (SCIF 1.3).
//
//	Unbound -- bind --> Bound -- listen --> Listening
//	   |                 |  ^
//	   +---- connect ----+  | refused, timed out
//	                     v  |
//	                 Connecting -- accepted --> Connected -- peer closed, lost --> Disconnected
//
// Close leads from every state to Closed. An accepted endpoint begins in
// Connected. Nothing leads from Disconnected back.
type State uint8

const (
	Unbound      State = iota // new, without a port
	Bound                     // has a port
	Listening                 // queues requests
	Connecting                // waits for the listener's answer
	Connected                 // has a peer
	Disconnected              // its peer closed or was lost
	Closed                    // given back

	states
)

// String returns the state's word, as `fabricd conns` shows it.
func (s State) String() string {
	return [...]string{"unbound", "bound", "listening", "connecting",
		"connected", "disconnected", "closed"}[s]
}

// A Call is a call whose result depends on the endpoint's state.
type Call uint8

const (
	CallBind    Call = iota // gives a port
	CallListen              // makes a listener
	CallConnect             // asks for a connection
	CallAccept              // takes a request of the queue
	CallSend                // sends message bytes
	CallRecv                // in Disconnected: only once everything that arrived is read
	CallMemory              // register, unregister, mmap, RMA, atomics, fences

	calls
)

// results is scif.md's table of call × state. Where the sources differ, table
// 1.10 chose.
var results = [calls][states]status.Code{
	CallBind:    {status.OK, status.Invalid, status.IsConn, status.IsConn, status.IsConn, status.IsConn, status.BadFD},
	CallListen:  {status.Invalid, status.OK, status.IsConn, status.IsConn, status.IsConn, status.Invalid, status.BadFD},
	CallConnect: {status.OK, status.OK, status.NotSupp, status.IsConn, status.IsConn, status.Invalid, status.BadFD},
	CallAccept:  {status.Invalid, status.Invalid, status.OK, status.Invalid, status.Invalid, status.Invalid, status.BadFD},
	CallSend:    {status.NotConn, status.NotConn, status.NotConn, status.NotConn, status.OK, status.Reset, status.BadFD},
	CallRecv:    {status.NotConn, status.NotConn, status.NotConn, status.NotConn, status.OK, status.OK, status.BadFD},
	CallMemory:  {status.NotConn, status.NotConn, status.NotConn, status.NotConn, status.OK, status.Reset, status.BadFD},
}

// Check returns the error of call c in state s, nil if the call may go on.
func Check(c Call, s State) error {
	if code := results[c][s]; code != status.OK {
		return code
	}
	return nil
}

// MaxBacklog is the longest queue of waiting requests; longer ones are clamped.
const MaxBacklog = 1024
