package verdict

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A SessionID names one control session inside one process. The shell counts
// them up from 1 and never uses one twice.
type SessionID uint64

// LocalSession is the session between a host and the Member in its own
// process. It never ends.
const LocalSession SessionID = 0

// A DownCause is how a session ended.
type DownCause uint8

const (
	DownEnded  DownCause = iota + 1 // the lifeline gave end of file or a reset: the process may be gone
	DownReset                       // a stateless reset: the process may have lost its state
	DownSilent                      // the provider gave up after its own idle bound
	DownClosed                      // closed on purpose, by either side, or never opened well
)

// A RedialOutcome is the result of a Redial.
type RedialOutcome uint8

const (
	RedialAlive   RedialOutcome = iota + 1 // the same UUID and epoch answered
	RedialNewer                            // the same UUID answered with another epoch
	RedialFailed                           // refused, unreachable, or another node answered
	RedialUntried                          // this node could not dial: it has no descriptors or memory
)

// A HostInput is an input of a Host, fed by its shell.
type HostInput interface{ hostInput() }

// A MemberInput is an input of a Member, fed by its shell.
type MemberInput interface{ memberInput() }

// An Action is a machine's request to the shell. The shell performs the
// actions of one Step in their order, before it calls Step again with the
// inputs that they caused.
type Action interface{ action() }

// Inputs of both machines.
type (
	// Tick: time has passed. It is due at the time that the machine's Next returns,
	// every [Timing.Tick] at the latest. A machine that finds it more than
	// [Timing.Stall] later than that knows that its process stood still.
	Tick struct{}

	// Received is a message that arrived on a session.
	Received struct {
		Session SessionID
		Message Message
	}

	// Down: a session ended. Nothing may follow on it.
	Down struct {
		Session SessionID
		Cause   DownCause
	}
)

// Inputs of a Host.
type (
	// Redialed answers a [Redial].
	Redialed struct {
		Incarnation addr.Incarnation
		Outcome     RedialOutcome
	}

	// Persisted reports that every [Persist] up to Seq is synced to disk.
	Persisted struct{ Seq uint64 }

	// PersistFailed reports that the Persist with this Seq, and no earlier one,
	// is not known to be on disk. Later ones are answered separately.
	PersistFailed struct {
		Seq  uint64
		Text string
	}

	// HostSeen reports another process with the host role in this cluster,
	// which has just answered: an earlier start of this one has not. A report
	// about this very process (same UUID and epoch) is ignored.
	HostSeen struct {
		UUID    addr.UUID
		Epoch   uint64
		Term    uint64
		Serving bool // it has members
		Where   string
	}

	// Expel ends the incarnation of a node, if it has one: an operator wants it so. The
	// shell keeps the node's identity out from before on, or every Join begins
	// its next incarnation.
	Expel struct {
		UUID   addr.UUID
		Reason Reason // ReasonExpelled or ReasonBanned
	}

	// Recertify has every incarnation that has a session get its lease anew: the host
	// signs with another certificate.
	Recertify struct{}

	// Renewed reports that a node has a new certificate, which is valid until then.
	Renewed struct {
		UUID  addr.UUID
		Until time.Time
	}

	// Claim reports that a host of this cluster has granted Incarnation to the node with
	// this UUID in Term: the shell has verified the lease. A Join and a Resume are
	// claims too.
	Claim struct {
		UUID        addr.UUID
		Incarnation addr.Incarnation // zero: none
		Term        uint64
	}

	// LossReport passes on the report of a member that nothing of the host arrives there, as a
	// [SendLossReport] of its has brought it: the shell has seen that it is that incarnation's.
	LossReport struct{ Incarnation addr.Incarnation }
)

// Inputs of a Member.
type (
	// Connected reports that DialHost reached a host: Session is open.
	Connected struct{ Session SessionID }

	// DialFailed reports that DialHost found no host. Refused, if not empty, is why
	// one that was there does not speak with this node, and trying again soon
	// does not help.
	DialFailed struct{ Text, Refused string }

	// Link passes on a data link's evidence about an incarnation.
	Link struct {
		Incarnation addr.Incarnation
		Evidence    Evidence // LinkAlive … LinkRefused
	}

	// Gossip passes on gossip's state of an incarnation.
	Gossip struct {
		Incarnation addr.Incarnation
		State       GossipState
	}

	// Doubt passes on that By doubts Incarnation: while there is no host, each watcher of
	// an incarnation notifies all others when it has received nothing from it for [Timing.Silence]/2,
	// or cannot reach it, and again every second. It needs no proof.
	Doubt struct{ By, Incarnation addr.Incarnation }

	// Probed answers a [Probe].
	Probed struct {
		Nonce   uint64
		Reached bool
		Proof   []byte // the incarnation's signature of the Probe's challenge, if it had one
	}

	// Handled reports that the handlers of the EventRemoved of Incarnation returned.
	Handled struct{ Incarnation addr.Incarnation }

	// Depart asks the Member to leave the cluster.
	Depart struct{}
)

// Actions of both machines.
type (
	// Send sends Message on Session. If the session has ended it does nothing.
	// A [Grant] is signed first.
	Send struct {
		Session SessionID
		Message Message
	}

	// CloseSession closes Session once all messages sent on it are delivered, or
	// after a second. No Down is needed for it; a late one does no harm.
	CloseSession struct {
		Session SessionID
		Text    string
	}

	// Note is worth a line in the log: something that an operator wants to
	// know and that no event reports.
	Note struct{ Text string }
)

// Actions of a Host.
type (
	// Persist writes Leases (each replaces the record of its ID), the Cursor
	// and the Term to the lease table, atomically, and syncs it to disk. The
	// shell answers with Persisted or PersistFailed. Several may be written
	// in one go, in order of Seq.
	Persist struct {
		Seq    uint64
		Term   uint64
		Cursor addr.NodeID
		Leases []Lease // may be empty
	}

	// Redial dials the incarnation's addresses at once (control or data, whichever
	// opens with a HELLO that names UUID and epoch) and answers with Redialed.
	// No answer within [Timing.Redial] counts as failed.
	Redial struct{ Contact }

	// StepDown ends the host role of this process: the shell closes every
	// session and exits, with Text as the reason. The Host answers nothing
	// but refusals from now on.
	StepDown struct{ Text string }
)

// Actions of a Member.
type (
	// Emit hands Event to the handlers. Events are handled in order; when
	// those of an EventRemoved have returned the shell answers with Handled.
	Emit struct{ Event Event }

	// DialHost opens a control session to the host. The shell answers with
	// Connected or DialFailed, within about a second. At most one is under way.
	DialHost struct{}

	// Probe tries to reach Incarnation over the data path: a round trip on an open
	// link, or a new link with UUID and Epoch in its HELLO. The shell answers
	// with Probed, best within [Timing.Check]; later answers are ignored. With a
	// challenge, the incarnation has to sign that.
	Probe struct {
		Nonce uint64
		Contact
		Challenge []byte
	}

	// Look dials the addresses of an incarnation at once, as [Redial] does, and is answered
	// by a Link if something is there that answers or refuses; no answer is no evidence.
	Look struct{ Contact }

	// Remember writes the node's newest incarnation with its signed lease, and the
	// highest accepted term, to the state directory. The shell syncs it before
	// it performs the actions that follow. A failure is logged and does no harm
	// to the cluster.
	Remember struct {
		Incarnation addr.Incarnation
		Term        uint64
		Lease       []byte
	}

	// SendLossReport reports to the host, in a packet that needs no answer to arrive, that
	// this node receives nothing from it on Session. Only the ends of Session can send it. It
	// may be lost; a Report carries the same.
	SendLossReport struct {
		Session SessionID
		Host    addr.UUID
		Epoch   uint64
	}

	// Revalidate: this process stood still: every data link serves
	// nothing until both ends have confirmed both incarnations in a fresh round trip.
	Revalidate struct{}

	// Halt ends the node: the host refused it for good.
	Halt struct {
		Code Refusal
		Text string
	}

	// Departed ends a Depart: the process may exit.
	Departed struct{}
)

func (Tick) hostInput()          {}
func (Received) hostInput()      {}
func (Down) hostInput()          {}
func (Redialed) hostInput()      {}
func (Persisted) hostInput()     {}
func (PersistFailed) hostInput() {}
func (HostSeen) hostInput()      {}
func (Expel) hostInput()         {}
func (Recertify) hostInput()     {}
func (Renewed) hostInput()       {}
func (LossReport) hostInput()    {}
func (Claim) hostInput()         {}

func (Tick) memberInput()       {}
func (Received) memberInput()   {}
func (Down) memberInput()       {}
func (Connected) memberInput()  {}
func (DialFailed) memberInput() {}
func (Link) memberInput()       {}
func (Gossip) memberInput()     {}
func (Doubt) memberInput()      {}
func (Probed) memberInput()     {}
func (Handled) memberInput()    {}
func (Depart) memberInput()     {}

func (Send) action()           {}
func (CloseSession) action()   {}
func (Note) action()           {}
func (Persist) action()        {}
func (Redial) action()         {}
func (StepDown) action()       {}
func (Emit) action()           {}
func (DialHost) action()       {}
func (Probe) action()          {}
func (Look) action()           {}
func (Remember) action()       {}
func (SendLossReport) action() {}
func (Revalidate) action()     {}
func (Halt) action()           {}
func (Departed) action()       {}

// out collects the actions of one Step.
type out []Action

func (o *out) add(a Action) { *o = append(*o, a) }

// take returns the collected actions and empties o.
func (o *out) take() []Action {
	a := *o
	*o = nil
	return a
}

// due reports whether t is set and not after now.
func due(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }
