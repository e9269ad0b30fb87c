package audit

import (
	"encoding/json"
	"time"

	"github.com/fabricd/fabricd/internal/printable"
)

// Kinds of events of membership. The host writes them, and every node those of its own
// incarnations.
const (
	Join             = "join"              // a node has joined with a token: a new identity
	JoinRefused      = "join-refused"      // a node was refused; text has the reason
	Certificate      = "certificate"       // a certificate was issued; text has its serial number
	Incarnation      = "incarnation"       // a node has got a lease
	IncarnationEnded = "incarnation-ended" // a node's incarnation is over; text has the reason
	NodeRemoved      = "remove"            // an identity was removed
	NodeBanned       = "ban"               // an identity was banned; text has the reason
	NodeAllowed      = "allow"             // a ban was lifted
	CARotated        = "ca-rotated"        // the cluster has another certificate authority
	KeyRotated       = "key-rotated"       // gossip is sealed with another key
)

// Kinds of events of administrators and rules at this node.
const (
	TokenCreated   = "token-created"   // a join token was made; text has its bounds
	TokenRevoked   = "token-revoked"   // a join token is no longer accepted
	Command        = "command"         // an administrator's request that may change something
	RulesChanged   = "rules-changed"   // the rules of access to ports have changed
	ConnectRefused = "connect-refused" // a rule refused a connect of a peer
	BindRefused    = "bind-refused"    // a rule refused a port to a user of this machine
	ServeRefused   = "serve-refused"   // a rule kept a node from serving a name
	Started        = "started"         // this node's daemon began
	Stopped        = "stopped"         // this node's daemon ended in order
	Lost           = "lost"            // count lines before this one were not written
)

// An Event is one line. Empty members are left out.
type Event struct {
	Time  time.Time `json:"time"`  // in UTC
	Event string    `json:"event"` // one of the kinds
	At    string    `json:"at"`    // name of the node that writes

	Node  string `json:"node,omitempty"`  // UUID of the node concerned
	Name  string `json:"name,omitempty"`  // its name
	Token string `json:"token,omitempty"` // ID of a join token

	Incarnation string `json:"incarnation,omitempty"` // of the node, ID.GENERATION

	UID     *uint32 `json:"uid,omitempty"`     // user of an administrator or an application
	PID     int32   `json:"pid,omitempty"`     // process that opened the administrator's connection
	Command string  `json:"command,omitempty"` // method and path of a request
	Result  string  `json:"result,omitempty"`  // ok, or the error

	Port  uint16 `json:"port,omitempty"`  // of the connect or the bind
	Rule  string `json:"rule,omitempty"`  // the refusing rule
	Count uint64 `json:"count,omitempty"` // number of events that the line stands for; left out: one
	Text  string `json:"text,omitempty"`  // further details, for operators
}

// maxText bounds each text of a line, in bytes.
const maxText = 1 << 10

// line returns e as JSON with a line end. Texts from peers are truncated, and terminal control
// characters are escaped: JSON alone permits some of them.
func (e Event) line() []byte {
	for _, text := range []*string{&e.At, &e.Node, &e.Name, &e.Incarnation, &e.Token, &e.Command, &e.Result, &e.Rule, &e.Text} {
		*text = printable.Text((*text)[:min(len(*text), maxText)])
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic("BUG: audit: an event has no JSON: " + err.Error())
	}
	return append(b, '\n')
}
