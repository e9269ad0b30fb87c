// Package access decides which application may connect to a port of this node, which local
// user may bind it, and at the host which node may serve which names. It only decides: it has
// no clock, lock or I/O, and its values do not change once they are made.
package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Bounds of a Policy, and of the lists that operators and applications write.
const (
	MaxRules    = 256 // of a Policy
	MaxSubjects = 64  // of a rule or a listener; as many users
)

// UnknownUID is the user of an application whose node does not know it. No
// user has this number.
const UnknownUID = ^uint32(0)

// A Caller is an application that connects. Its node vouches for it. Name
// and Labels are those of the node table, not the node's own claims.
type Caller struct {
	Incarnation addr.Incarnation // of its node
	Name        string
	Labels      []string
	UID         uint32
	Local       bool // its node is this one
}

// A Decision reports whether an access is allowed, and the rule that decided.
type Decision struct {
	Allowed  bool
	By       string // a rule's text, the default, or the listener's list; printable
	Listener bool   // the listener's list has decided
}

// A Policy is the access rules of one node. The first rule that covers a port
// decides. A nil Policy has no rules and allows everything.
type Policy struct {
	rules  []Rule
	closed bool
}

// NewPolicy returns the policy of these rules. Without a rule for a port,
// closed allows connections only from the same user on this node. It fails for
// too many rules, and for one that an earlier rule keeps from ever deciding.
func NewPolicy(rules []Rule, closed bool) (*Policy, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%d rules, want at most %d", len(rules), MaxRules)
	}
	for i, r := range rules {
		for _, earlier := range rules[:i] {
			if earlier.coversAll(&r) {
				return nil, fmt.Errorf("rule %q never decides: %q, before it, covers all of it", r, earlier)
			}
		}
	}
	return &Policy{rules: slices.Clone(rules), closed: closed}, nil
}

// Rules returns the rules in their order.
func (p *Policy) Rules() []Rule {
	if p == nil {
		return nil
	}
	return slices.Clone(p.rules)
}

// Equal reports whether p and q decide alike.
func (p *Policy) Equal(q *Policy) bool {
	return p.Default() == q.Default() && slices.EqualFunc(p.Rules(), q.Rules(), func(a, b Rule) bool { return a.text == b.text })
}

// rule returns the rule for a port, nil if there is none.
func (p *Policy) rule(port addr.Port) *Rule {
	if p == nil {
		return nil
	}
	for i := range p.rules {
		if p.rules[i].covers(port) {
			return &p.rules[i]
		}
	}
	return nil
}

// Default returns the setting that decides without a rule.
func (p *Policy) Default() string {
	if p != nil && p.closed {
		return "default-access: closed"
	}
	return "default-access: open"
}

// For returns the rule that decides about connections to a port, as text, or the
// default.
func (p *Policy) For(port addr.Port) string {
	if r := p.rule(port); r != nil {
		return r.text
	}
	return p.Default()
}

// Connect decides whether c may connect to a port whose listener belongs to
// owner (UnknownUID: there is no listener) and allows the given subjects only, if
// there are any. The rule and the listener's list must both allow it.
func (p *Policy) Connect(port addr.Port, c Caller, owner uint32, listener []Subject) Decision {
	d := p.byRule(port, c, owner)
	if d.Allowed && len(listener) > 0 && !allows(listener, c) {
		return Decision{By: "listener allows: " + Join(listener), Listener: true}
	}
	return d
}

func (p *Policy) byRule(port addr.Port, c Caller, owner uint32) Decision {
	if r := p.rule(port); r != nil && r.from != nil {
		return Decision{Allowed: allows(r.from, c), By: r.text}
	}
	if p == nil || !p.closed {
		return Decision{Allowed: true, By: p.Default()}
	}
	same := c.Local && c.UID == owner && owner != UnknownUID
	return Decision{Allowed: same, By: p.Default()}
}

// RestrictsBind reports whether any rule restricts binding its ports.
func (p *Policy) RestrictsBind() bool {
	return p != nil && slices.ContainsFunc(p.rules, func(r Rule) bool { return r.bind != nil })
}

// Bind decides whether a local user with a group may bind a port.
func (p *Policy) Bind(port addr.Port, uid, gid uint32) Decision {
	r := p.rule(port)
	if r == nil || r.bind == nil {
		return Decision{Allowed: true, By: p.For(port)}
	}
	ok := slices.ContainsFunc(r.bind, func(u user) bool { return u.is(uid, gid) })
	return Decision{Allowed: ok, By: r.text}
}

// Serve decides whether the node n may serve a name. A name without a rule is free.
func (p *Policy) Serve(name string, n Caller) Decision {
	if p != nil {
		for i := range p.rules {
			if r := &p.rules[i]; r.names != "" && coversName(r.names, name) {
				return Decision{Allowed: allows(r.by, n), By: r.text}
			}
		}
	}
	return Decision{Allowed: true}
}

// OfServices returns the first rule that restricts serving a name, nil if there is none.
func (p *Policy) OfServices() *Rule {
	for _, r := range p.Rules() {
		if r.names != "" {
			return &r
		}
	}
	return nil
}

// A Rule covers a range of ports. It lists the callers that may connect to them,
// or leaves that to the default, and the local users that may bind them, or
// leaves that open. Or it covers names of services, and lists the nodes that may serve
// them. [ParseRule] makes one.
type Rule struct {
	names       string    // a name, or the beginning of names and "*"; empty: it covers ports
	by          []Subject // allowed to serve them
	first, last addr.Port
	from        []Subject // nil: the default decides
	bind        []user    // nil: every user
	text        string
}

// String returns the rule in the form that [ParseRule] reads.
func (r Rule) String() string { return r.text }

func (r *Rule) covers(port addr.Port) bool {
	return r.names == "" && r.first <= port && port <= r.last
}

// coversAll reports whether r covers all that o covers.
func (r *Rule) coversAll(o *Rule) bool {
	if o.names == "" {
		return r.covers(o.first) && r.covers(o.last)
	}
	return r.names == o.names || strings.HasSuffix(r.names, "*") && coversName(r.names, strings.TrimSuffix(o.names, "*"))
}

// coversName reports whether a name is one of names.
func coversName(names, name string) bool {
	begin, all := strings.CutSuffix(names, "*")
	return names == name || all && strings.HasPrefix(name, begin)
}

// A Subject names callers. [ParseSubject] makes one; the zero Subject names
// none.
type Subject struct {
	kind kind
	name string // of a node or a label
}

type kind uint8

const (
	kindNone  kind = iota
	kindAll        // every application of every node
	kindHost       // applications of the cluster's host
	kindLocal      // applications of this node
	kindNode       // applications of the node of that name
	kindLabel      // applications of nodes with that label
)

// words are the subjects that are a single word.
var words = map[string]kind{"none": kindNone, "all": kindAll, "host": kindHost, "local": kindLocal}

// String returns the subject in the form that [ParseSubject] reads.
func (s Subject) String() string {
	switch s.kind {
	case kindLabel:
		return labelPrefix + s.name
	case kindNode:
		if reserved(s.name) {
			return nodePrefix + s.name
		}
		return s.name
	}
	for word, k := range words {
		if k == s.kind {
			return word
		}
	}
	panic("BUG: access: subject without a word")
}

func (s Subject) is(c Caller) bool {
	switch s.kind {
	case kindAll:
		return true
	case kindHost:
		return c.Incarnation.Node == addr.Host
	case kindLocal:
		return c.Local
	case kindNode:
		return c.Name == s.name
	case kindLabel:
		return slices.Contains(c.Labels, s.name)
	}
	return false
}

func allows(list []Subject, c Caller) bool {
	return slices.ContainsFunc(list, func(s Subject) bool { return s.is(c) })
}

// Join returns subjects separated by spaces.
func Join(list []Subject) string {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = s.String()
	}
	return strings.Join(texts, " ")
}

// A user is a local user or group of a bind list.
type user struct {
	kind userKind
	id   uint32
}

type userKind uint8

const (
	userNone userKind = iota
	userAll
	userUID
	userGID
)

func (u user) is(uid, gid uint32) bool {
	switch u.kind {
	case userAll:
		return true
	case userUID:
		return uid == u.id && uid != UnknownUID
	case userGID:
		return gid == u.id
	}
	return false
}

func (u user) String() string {
	switch u.kind {
	case userAll:
		return "all"
	case userUID:
		return fmt.Sprint(u.id)
	case userGID:
		return fmt.Sprint(groupPrefix, u.id)
	}
	return "none"
}
