package control

import (
	"github.com/fabricd/fabricd/membership/verdict"
)

// A Lifeline is a connection between two nodes that carries signs of life and
// whose end is evidence.
type Lifeline struct {
	connection
	lease Lease
	proof []byte
}

func newLifeline(l *link, o opened, accepted bool) *Lifeline {
	up := &Lifeline{connection: newConnection(l, o), lease: o.lease, proof: o.proof}
	up.pipe.echo = accepted
	return up
}

// Proof returns the peer's signature of the challenge with which the lifeline was
// dialed, for [VerifyProof]; nil without one.
func (l *Lifeline) Proof() []byte { return l.proof }

// Lease returns the lease with which the host has granted the peer's incarnation; the
// zero Lease if the peer had no incarnation yet.
func (l *Lifeline) Lease() Lease { return l.lease }

// Start begins to listen. alive is called for every sign of life that arrives,
// then down once with the cause and the reason; both on one goroutine of the
// lifeline. It must be called once.
//
// The end that has dialed gives signs of life with [Lifeline.Beat]; the other
// one answers each of them by itself. So the process at that end wakes up once
// for both directions, and the dialing one can beat on all its lifelines at
// once.
func (l *Lifeline) Start(alive func(), down func(verdict.DownCause, error)) {
	l.pipe.run(func(f any) error {
		return Refusef(CodeProtocol, "%T does not belong on a lifeline", f)
	}, alive, down)
}

// Beat sends a sign of life, and asks for one. It does not wait.
func (l *Lifeline) Beat() { l.pipe.beat() }
