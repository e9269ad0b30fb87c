package membership

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// An Enrolment is the host's record of one identity: a UUID that belongs for
// good to the public key that first proved it.
type Enrolment struct {
	UUID   addr.UUID     `json:"uuid"`
	Key    trust.Pin     `json:"-"` // of its public key; zero: the first that it proves
	Name   string        `json:"name"`
	Labels []string      `json:"labels,omitempty"` // from the token that it joined with
	Token  trust.TokenID `json:"-"`                // that it joined with; zero with an operator's CA
	Since  time.Time     `json:"since"`            // when it joined
	Until  time.Time     `json:"until"`            // end of its newest certificate
	Serial string        `json:"serial,omitempty"` // of that certificate, hexadecimal
	NewKey bool          `json:"new_key,omitempty"`
	Banned time.Time     `json:"banned,omitzero"` // zero: it is not banned
	Reason string        `json:"reason,omitempty"`

	issued  time.Time // when it last got a certificate
	renewed bool      // since the CA was changed last
	named   time.Time // when it last changed its name
}

// refusal is the answer to a banned node.
func (e *Enrolment) refusal() error {
	return control.Refusef(control.CodeBanned, "node %q is banned since %s", e.Name, e.Banned.UTC().Format(time.RFC3339))
}

// IsBanned reports whether the identity is kept out.
func (e *Enrolment) IsBanned() bool { return !e.Banned.IsZero() }

const (
	// maxNodes is how many identities a host enrols unless it is configured, and
	// MaxNodes how many at most: they are written in one file.
	maxNodes = 1024
	MaxNodes = 16384
	// forgetAfter is how long after its certificate's expiry an identity is kept,
	// unless it is banned: it can come back with its key alone.
	forgetAfter = 7 * 24 * time.Hour
	// maxReason bounds the reason of a ban, in bytes.
	maxReason = 256
)

// enrolments are the identities that the host knows, by UUID. Names differ.
type enrolments map[addr.UUID]*Enrolment

// clone returns a copy that shares nothing that changes.
func (all *enrolments) clone() enrolments {
	c := make(enrolments, len(*all))
	for u, e := range *all {
		c[u] = new(*e)
	}
	return c
}

func (all enrolments) byKey(key trust.Pin) *Enrolment {
	for _, e := range all {
		if e.Key == key {
			return e
		}
	}
	return nil
}

func (all enrolments) byName(name string) *Enrolment {
	for _, e := range all {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// named returns the identity that an operator means by text: a UUID, an ID or a name.
// Digits alone are an ID, which is that of the node living. A name is chosen by its node,
// so no name may stand for another node's ID or UUID.
func (all enrolments) named(text string, living addr.UUID) *Enrolment {
	if u, err := addr.ParseUUID(text); err == nil {
		return all[u]
	}
	if _, byID := addr.ParseNode(text); byID {
		return all[living]
	}
	return all.byName(text)
}

// forget drops the identities that can be forgotten at now, but those that live.
func (all enrolments) forget(now time.Time, living func(addr.UUID) bool) {
	for u, e := range all {
		if !e.IsBanned() && now.Sub(e.Until) > forgetAfter && !living(u) {
			delete(all, u)
		}
	}
}

// sorted returns copies in order of name.
func (all enrolments) sorted() []Enrolment {
	list := make([]Enrolment, 0, len(all))
	for _, e := range all {
		list = append(list, *e)
	}
	slices.SortFunc(list, func(x, y Enrolment) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.UUID.String(), y.UUID.String()))
	})
	return list
}

// banned returns the UUIDs that are kept out, in order.
func (all enrolments) banned() (list []addr.UUID) {
	for _, e := range all.sorted() {
		if e.IsBanned() {
			list = append(list, e.UUID)
		}
	}
	return list
}

// An enrolmentFile is an Enrolment on disk.
type enrolmentFile struct {
	Enrolment
	Key   []byte `json:"key"`
	Token string `json:"token,omitempty"`
}

func (all enrolments) encode() []byte {
	list := make([]enrolmentFile, 0, len(all))
	for _, e := range all.sorted() {
		f := enrolmentFile{Enrolment: e, Key: e.Key[:]}
		if e.Token != (trust.TokenID{}) {
			f.Token = e.Token.String()
		}
		list = append(list, f)
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic("BUG: membership: encode enrolments: " + err.Error())
	}
	return b
}

func decodeEnrolments(b []byte) (enrolments, error) {
	all := make(enrolments)
	var list []enrolmentFile
	if len(b) > 0 {
		if err := json.Unmarshal(b, &list); err != nil {
			return nil, fmt.Errorf("decode enrolments: %w", err)
		}
	}
	for _, f := range list {
		e := f.Enrolment
		if len(f.Key) != len(e.Key) || e.UUID.IsZero() || !addr.ValidName(e.Name) || all[e.UUID] != nil {
			return nil, fmt.Errorf("decode enrolments: that of %s is none", e.UUID)
		}
		copy(e.Key[:], f.Key)
		if f.Token != "" {
			var err error
			if e.Token, err = trust.ParseTokenID(f.Token); err != nil {
				return nil, fmt.Errorf("decode enrolments: %w", err)
			}
		}
		all[e.UUID] = &e
	}
	return all, nil
}

// loadEnrolments reads the host's enrolments. A state directory from before there
// were any has leases instead: the key that each of these nodes first proves is its.
func loadEnrolments(st *state.State) (enrolments, error) {
	b := st.Secret(state.SecretEnrolments)
	all, err := decodeEnrolments(b)
	if err != nil || b != nil {
		return all, err
	}
	for _, g := range st.Leases().All() {
		e := &Enrolment{UUID: g.UUID, Name: g.Name, Since: g.Since, Until: g.Since}
		if !addr.ValidName(e.Name) || all.byName(e.Name) != nil {
			e.Name = "node-" + g.UUID.String()
		}
		all[g.UUID] = e
	}
	return all, nil
}

// errNoNode reports that no node matches an operator's argument.
var errNoNode = errors.New("no such node: want the name, the ID or the UUID of one that has joined")
