package addr

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxService bounds the name of a service, in bytes.
const MaxService = 63

// ValidService reports whether s can be the name of a service: 1 to [MaxService] letters
// and digits of ASCII, '.', '-' and '_', beginning with a letter or a digit. Digits alone
// are no name: they are a node's ID.
func ValidService(s string) bool {
	return len(s) <= MaxService && word(s) && !strings.ContainsAny(s[:1], ".-_") && !digits(s)
}

// digits reports whether s has nothing but digits.
func digits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// A Target is an address as people write it, in one of these forms:
//
//	db           the service db, on any node that serves it
//	db@web-1     the service db on the node web-1
//	db@3         the service db on node 3
//	web-1:2050   a port of the node web-1
//	3:2050       a port of node 3
//
// Digits alone are always an ID, also where a node has such a name.
type Target struct {
	Service string // empty: a port
	Node    string // an ID or a name; empty: any node
	Port    Port   // without Service
}

// String returns the form that [ParseTarget] accepts.
func (t Target) String() string {
	switch {
	case t.Service == "":
		return fmt.Sprintf("%s:%d", t.Node, t.Port)
	case t.Node == "":
		return t.Service
	}
	return t.Service + "@" + t.Node
}

// Addr returns the address that t names by numbers alone.
func (t Target) Addr() (a Addr, ok bool) {
	id, ok := ParseNode(t.Node)
	return Addr{id, t.Port}, ok && t.Service == ""
}

// ParseNode returns the ID that s is, a decimal number of 16 bits; false if s has other
// characters than digits, or is larger: then it may be a name.
func ParseNode(s string) (NodeID, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return NodeID(n), err == nil && digits(s)
}

var (
	errTarget  = errors.New("want a service, service@node or node:port")
	errNode    = errors.New("want a node's name or its ID, 0 to 65535")
	errService = fmt.Errorf("want a service's name: up to %d letters, digits, '.', '-' and '_', not digits alone", MaxService)
)

// ParseTarget parses one of the forms of [Target].
func ParseTarget(s string) (Target, error) {
	t, err := parseTarget(s)
	if err != nil {
		return Target{}, fmt.Errorf("parse address %.300q: %w", s, err)
	}
	return t, nil
}

func parseTarget(s string) (t Target, err error) {
	node, port, isPort := strings.Cut(s, ":")
	if !isPort {
		service, node, one := strings.Cut(s, "@")
		switch {
		case digits(service):
			return t, errTarget
		case !ValidService(service):
			return t, errService
		case one && !ValidNode(node):
			return t, errNode
		}
		return Target{Service: service, Node: node}, nil
	}
	if node == "" {
		return t, errTarget
	}
	if !ValidNode(node) {
		return t, errNode
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return t, fmt.Errorf("port: %w", errNumber)
	}
	return Target{Node: node, Port: Port(p)}, nil
}

// ValidNode reports whether s can be a node's ID, as ParseNode takes it, or its name.
func ValidNode(s string) bool {
	_, id := ParseNode(s)
	return id || ValidName(s) && !digits(s)
}
