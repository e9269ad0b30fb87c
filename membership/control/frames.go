package control

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/trust"
)

// Limits of the format.
const (
	VersionMin uint16 = 2 // the protocol versions spoken here
	VersionMax uint16 = 4

	// ServicesVersion is the first that has services.
	ServicesVersion uint16 = 3
	// WantVersion is the first that has joins for one ID.
	WantVersion uint16 = 4

	HeaderLen = 5       // bytes before a frame's body: its length and type
	MaxBody   = 1 << 16 // bytes of a body
	MaxText   = 256     // bytes of a text for people

	maxCertificate = 8 << 10 // bytes of one certificate or request, DER
	maxRoots       = 6
	maxKeyring     = 256 // bytes of an encoded gossip keyring
	maxBans        = 128 // of one frame; more come in several
)

// The kinds of connection are ALPN protocols. Joining has [trust.JoinALPN].
const (
	ProtoControl  = "fabricd-control/1"
	ProtoLifeline = "fabricd-lifeline/1"
)

// A frameType is a frame's type on the wire. Numbers are never reused.
//
//	0            4      5
//	+------------+------+----------+
//	| body length| type | body ... |
//	+------------+------+----------+
type frameType uint8

const (
	typeHello     frameType = 1
	typeWelcome   frameType = 2
	typeRefuse    frameType = 3
	typeClose     frameType = 4
	typeBeat      frameType = 5
	typeJoinAsk   frameType = 8
	typeJoinGrant frameType = 9

	typeJoin        frameType = 16 // from here on: messages of package verdict
	typeResume      frameType = 17
	typeLeave       frameType = 18
	typeReport      frameType = 19
	typeCheck       frameType = 20
	typeCheckResult frameType = 21
	typeAck         frameType = 22
	typePing        frameType = 23
	typePong        frameType = 24
	typeSync        frameType = 25
	typeGrant       frameType = 26
	typeRefused     frameType = 27
	typeTable       frameType = 28
	typeDelta       frameType = 29
	typeRemoved     frameType = 30

	typeRenew       frameType = 32 // from here on: keys and certificates
	typeCertificate frameType = 33
	typeKeys        frameType = 34
	typeKeysHeld    frameType = 35
	typeRoots       frameType = 36
	typeRootsHeld   frameType = 37
	typeBans        frameType = 38

	typeServices frameType = 39 // a services.List; both ways
	typeJoinWant frameType = 40 // a verdict.Join with Want
)

// An End is one end of a connection, as it describes itself.
type End struct {
	UUID        addr.UUID
	Epoch       uint64           // of this start of its fabricd
	Incarnation addr.Incarnation // the zero Incarnation while it has none
	Term        uint64           // the highest host term it has accepted
	Host        bool             // it runs in the host role
}

// A Target is the node that a dialer wants to reach. Zero fields match any node.
type Target struct {
	UUID        addr.UUID
	Epoch       uint64
	Incarnation addr.Incarnation
}

// A Hello opens a control session or lifeline. The dialer sends it first.
type Hello struct {
	VersionMin, VersionMax uint16
	Cluster                addr.UUID
	From                   End
	Lease                  []byte // signed, of From.Incarnation; on lifelines
	To                     Target
	// Challenge is for the other end to sign, on lifelines: with that a third node can be shown
	// that it lives. Empty: no signature is asked for. At most verdict.MaxChallenge bytes.
	Challenge []byte
}

// A Welcome answers a Hello that is accepted. It describes the listener, which may be another start
// of the node that was meant: the dialer compares.
type Welcome struct {
	Version uint16 // the one that both speak from now on
	From    End
	Lease   []byte // as in Hello
	Proof   []byte // the sender's signature of the challenge, if there was one; at most verdict.MaxProof
}

// A Refuse answers a frame that is not accepted, and ends the connection.
type Refuse struct {
	Code                   Code
	VersionMin, VersionMax uint16 // of the refusing side
	Text                   string // at most MaxText bytes
}

// A Close ends a connection on purpose. An end without it is the end of the
// process behind it.
type Close struct{ Text string }

// A Beat is a sign of life on a lifeline.
type Beat struct{ Seq uint64 }

// A JoinAsk is the request of a node without a certificate on a join connection.
type JoinAsk struct {
	VersionMin, VersionMax uint16
	Name                   string        // that it wants to be known by
	Token                  trust.TokenID // the token it was given; zero: the key of Request is one that the host knows
	Proof                  trust.Proof   // that it knows the token's secret
	Request                []byte        // certificate request, DER: the identity belongs to its key for good
}

// A JoinGrant is the answer to it.
type JoinGrant struct {
	Cluster     addr.UUID
	Host        addr.UUID
	Node        addr.UUID // that the host has chosen for it, and the certificate names
	Certificate []byte    // DER
	Roots       [][]byte  // the cluster's CA certificates, DER
	Keyring     []byte    // the gossip keys, as trust.Keyring encodes them
	Gossip      string    // "ip:port" where the host gossips
}

// A Renew asks for the next certificate of the sender. Node → host, on a
// control session.
type Renew struct {
	Request []byte // certificate request, DER
}

// A Certificate answers a Renew. Host → node.
type Certificate struct {
	Certificate []byte   // DER; empty: refused
	Roots       [][]byte // the cluster's CA certificates, DER
	Text        string   // why it is refused, at most MaxText bytes
}

// Keys are the gossip keys that the node is to use from now on. Host → node.
type Keys struct {
	Seq     uint64 // counts the changes in this start of the host
	Keyring []byte // as trust.Keyring encodes it
}

// KeysHeld reports that the sender has the keys with this Seq, on disk and in use.
// Node → host.
type KeysHeld struct{ Seq uint64 }

// Roots are the CA certificates that the node is to trust from now on. Host → node.
type Roots struct {
	Seq   uint64   // counts the changes in this start of the host
	Roots [][]byte // DER
	Renew bool     // the node is to ask for a new certificate at once
}

// RootsHeld reports that the sender has the CA certificates with this Seq, on disk
// and in use. Node → host.
type RootsHeld struct{ Seq uint64 }

// Bans are the identities that are kept out, all of them from First to Last; with
// Last they replace those before. Host → node.
type Bans struct {
	First, Last bool
	Nodes       []addr.UUID // at most maxBans
}

// A Code is why a connection is refused. Numbers are never reused.
type Code uint8

const (
	CodeVersion  Code = 1 // no common protocol version
	CodeCluster  Code = 2 // another cluster
	CodeIdentity Code = 3 // a claim that the certificate does not prove
	CodeRole     Code = 4 // the host role is missing where it is needed
	CodeFenced   Code = 5 // the incarnation that it names is over
	CodeTarget   Code = 6 // another node was meant
	CodeBusy     Code = 7 // too many connections
	CodeProtocol Code = 8 // malformed or out of place
	CodeToken    Code = 9 // the join token is not accepted; Text is the reason
	CodeStopped  Code = 10
	CodeBanned   Code = 11 // an operator keeps the peer out
	CodeUnknown  Code = 12 // the host has no enrolment of this identity, or of another key
	CodeName     Code = 13 // the name is no name, or that of another node; Text names which
)

// A RefusedError reports that one side refused the other.
type RefusedError struct {
	Code   Code
	Text   string
	Remote bool // the peer refused us
}

// Error returns the reason and the side that gave it.
func (e *RefusedError) Error() string {
	if e.Remote {
		return "refused by peer: " + e.Text
	}
	return "peer refused: " + e.Text
}

// Refusef returns a refusal of the peer, with a reason that is sent to it.
func Refusef(code Code, format string, args ...any) error {
	return &RefusedError{Code: code, Text: clip(fmt.Sprintf(format, args...))}
}

// A ClosedError reports that a connection was closed on purpose.
type ClosedError struct {
	Text   string
	Remote bool
}

// Error returns the reason and the side that gave it.
func (e *ClosedError) Error() string {
	side := "closed here"
	if e.Remote {
		side = "closed by peer"
	}
	if e.Text == "" {
		return side
	}
	return side + ": " + e.Text
}

// clip makes s fit into a text field.
func clip(s string) string {
	e := encoder{}
	e.words(s, MaxText)
	return string(e.Encoded()[2:])
}
