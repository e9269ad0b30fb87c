package verdict

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Bounds of the fields of messages. A decoder refuses more; the machines refuse
// it again, so that no table entry is ever larger.
const (
	MaxName      = addr.MaxName // bytes of a node's name, UTF-8
	MaxAddresses = 8            // per node
	MaxAddress   = 128          // bytes of one address
	MaxProviders = 8            // per node
	MaxProvider  = 16           // bytes of one provider's name
	MaxText      = 256          // bytes of a refusal's text
	MaxReason    = 16           // bytes of a Reason
	MaxEntries   = 64           // entries of one Table message; a larger table comes in parts
	MaxDelta     = 32           // entries of one Delta; the largest ones fit in a frame

	MaxLabels    = 8  // per node
	MaxLabel     = 64 // bytes of one label
	MaxChallenge = 32 // bytes of a challenge

	MaxLease = 32 << 10 // bytes of a signed lease; one with the host's own CA has some 700
	MaxProof = MaxLease // bytes of a signed answer to a challenge
)

// A Message goes between a Member and the Host over one control session.
//
// A session carries messages in order, without gaps and without duplicates,
// until it ends; whatever was not delivered by then is lost. Only [Ping] and
// [Pong] may overtake others and get lost (they may be datagrams).
type Message interface{ message() }

// A Join asks the host for an incarnation. Member → host, first on a session.
type Join struct {
	Identity

	// Previous is the newest incarnation that the node remembers, the zero Incarnation if
	// none. If the host still holds it for the same UUID and Epoch, the node
	// gives it up with this message.
	Previous addr.Incarnation

	// Term is the highest host term that the node ever accepted, 0 if none.
	Term uint64

	// Lease is the signed lease of Previous, as a [Grant] brought it; empty if
	// there is none. The host's shell passes on only as much as the lease proves.
	Lease []byte // ≤ MaxLease

	// Want is the only ID that the node takes, 0 if it takes any.
	Want addr.NodeID

	Vouched // by the host's shell
}

// Vouched is the host's own knowledge of the sender of a Join or Resume. The host's
// shell fills it in; it is not sent.
type Vouched struct {
	Labels []string  // of the token that it joined with
	Until  time.Time // end of its certificate

	// WantFree: the node which had the ID of Join.Want last, if that was
	// another one, does not belong to the cluster any more.
	WantFree bool
}

// A Resume asks the host to keep the incarnation that the node has, after its control
// session ended or the host restarted. Member → host, first on a session.
type Resume struct {
	Identity
	Incarnation addr.Incarnation // generation > 0
	Term        uint64           // as in Join

	// HostOver is the newest generation of node 0 that the node has reported to its
	// applications as over, 0 if none. A host that still lives in it must take a
	// new incarnation before the node can resume.
	HostOver addr.Generation

	// Lease is the signed lease of Incarnation. The host's shell refuses a Resume
	// without it.
	Lease []byte // ≤ MaxLease

	Vouched // by the host's shell
}

// A Leave ends the sender's incarnation. Member → host. The host answers with
// Removed of the same incarnation.
type Leave struct{ Incarnation addr.Incarnation }

// A Report carries the sender's evidence about another incarnation; about the host's, whether
// the sender receives from it (LinkSilent, LinkAlive). Member → host.
type Report struct {
	About    addr.Incarnation
	Evidence Evidence // LinkAlive … EndAnnounced
}

// A Check asks a member whether an incarnation can be reached: over a data link if it
// is another node, by the answer itself if it is the member's own incarnation.
// Host → member.
type Check struct {
	Nonce uint64
	Contact

	// Challenge is for the incarnation to sign, so that no other node can claim that it
	// lives. The host's shell makes it when it sends the Check.
	Challenge []byte // ≤ MaxChallenge
}

// A CheckResult answers a Check. Member → host. The host's shell passes on
// Reached only if the member is Target itself, or Proof is Target's signature of
// the challenge: one member's unproved statement about another does not count.
type CheckResult struct {
	Nonce   uint64 // of the Check
	Target  addr.Incarnation
	Reached bool
	Proof   []byte // ≤ MaxProof; empty unless Reached
}

// An Ack reports that the sender has dealt with the end of an incarnation: its handlers
// have returned. Member → host.
type Ack struct{ Incarnation addr.Incarnation }

// A Ping is a sign of life, sent once per heartbeat, and asks for a Pong.
// Member → host.
type Ping struct {
	Incarnation addr.Incarnation
	Nonce       uint64 // counts the pings of this process
	Version     uint64 // of the table that the sender holds
}

// A Pong answers a Ping. Host → member.
type Pong struct {
	Term    uint64
	Nonce   uint64 // of the Ping
	Version uint64 // of the host's table
}

// A Sync asks for the whole table. Member → host.
type Sync struct{}

// A Grant gives the member the incarnation that it asked for, or confirms the one
// that it resumed; the whole table follows. To a member that serves already it
// brings the lease of its incarnation in a new term. Host → member.
type Grant struct {
	Term        uint64           // > 0
	Incarnation addr.Incarnation // generation > 0; node below addr.FirstReserved

	// Lease holds all of this, signed by the host: the host's shell makes it
	// when it sends the Grant, the member's shell verifies it before the Member
	// sees the Grant. ≤ MaxLease
	Lease []byte

	// Further contents of the lease. The Host fills them in for its shell; they
	// are sent only in the lease.
	UUID  addr.UUID
	Epoch uint64
	Name  string
	Since time.Time
}

// A Refused answers a Join or Resume that is not granted. Host → member.
type Refused struct {
	Term uint64
	Code Refusal
	Text string // ≤ MaxText, for people
}

// A Refusal is why a Join or a Resume is not granted. Its numbers are part of
// the wire format: append, never renumber.
type Refusal uint8

const (
	RefusedInvalid   Refusal = iota + 1 // the request breaks a rule of its type; final
	RefusedFenced                       // the incarnation to resume is over: reset, then Join
	RefusedDuplicate                    // another process lives with this UUID: a cloned state directory; final
	RefusedFull                         // every ID is taken or in quarantine; later
	RefusedBusy                         // the host cannot decide now; soon
	RefusedStorage                      // the host cannot write its lease table; later
	RefusedTerm                         // the node knows a newer host: this one steps down; ask that one
	RefusedStopped                      // the host leaves or has stepped down
	RefusedBanned                       // an operator has banned the node; after the ban is lifted
)

// String returns a word for the refusal.
func (r Refusal) String() string {
	words := [...]string{"unknown", "invalid", "fenced", "duplicate", "full", "busy", "storage", "term", "stopped", "banned"}
	if int(r) >= len(words) {
		return words[0]
	}
	return words[r]
}

// An Entry is one line of the table.
//
//	Alive    the host has received from this incarnation in its own term
//	Suspect  leased by an earlier term, not resumed yet
//	Leaving  not used in tables
//	Removed  over, still in quarantine; Reason is the cause
type Entry struct {
	Node   Node   // Since is informative
	Reason Reason // ≤ MaxReason; empty unless Removed
}

// A Table is a part of the whole table at one version. Parts of one table
// follow each other on the session with nothing else in between. Host → member.
type Table struct {
	Term    uint64
	Version uint64
	First   bool    // starts a new table
	Last    bool    // completes it
	Entries []Entry // ≤ MaxEntries, in order of node ID over all parts
}

// A Delta adds or updates entries, and makes the table's version Version.
// Host → member.
type Delta struct {
	Term    uint64
	Version uint64  // one more than before
	Entries []Entry // ≤ MaxDelta
}

// A RemovedIncarnation is a verdict: Incarnation is over, for good. Sent to every live
// member until it has acknowledged, and to Incarnation itself. Host → member.
type RemovedIncarnation struct {
	Term        uint64
	Version     uint64 // as in Delta; 0 in a repetition, which changes no version
	Incarnation addr.Incarnation
	Reason      Reason // ≤ MaxReason
}

func (Join) message()               {}
func (Resume) message()             {}
func (Leave) message()              {}
func (Report) message()             {}
func (Check) message()              {}
func (CheckResult) message()        {}
func (Ack) message()                {}
func (Ping) message()               {}
func (Pong) message()               {}
func (Sync) message()               {}
func (Grant) message()              {}
func (Refused) message()            {}
func (Table) message()              {}
func (Delta) message()              {}
func (RemovedIncarnation) message() {}

func (m Grant) hostTerm() uint64              { return m.Term }
func (m Refused) hostTerm() uint64            { return m.Term }
func (m Table) hostTerm() uint64              { return m.Term }
func (m Delta) hostTerm() uint64              { return m.Term }
func (m RemovedIncarnation) hostTerm() uint64 { return m.Term }
func (m Pong) hostTerm() uint64               { return m.Term }
