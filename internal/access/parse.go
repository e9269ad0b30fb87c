package access

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// The text of a rule:
//
//	PORTS [from SUBJECT ...] [bind USER ...]
//	service:NAMES by SUBJECT ...
//
//	PORTS    2050 or 2050-2059
//	NAMES    db, or db-* for the names that begin so, or * for all
//	SUBJECT  all, none, host, local, a node's name, node:NAME or label:WORD
//	USER     all, none, a user's number, or group:NUMBER
const (
	fromWord    = "from"
	bindWord    = "bind"
	byWord      = "by"
	namesPrefix = "service:"
	nodePrefix  = "node:"
	labelPrefix = "label:"
	groupPrefix = "group:"
)

// reserved reports whether a node's name has to be written as node:NAME.
func reserved(name string) bool {
	_, word := words[name]
	return word || name == fromWord || name == bindWord || name == byWord
}

// ParseRule reads a rule. Its words may be separated by any white space; a
// comma is never part of one.
func ParseRule(text string) (Rule, error) {
	r, err := parseRule(strings.Fields(text))
	if err != nil {
		return Rule{}, fmt.Errorf("rule %.80q: %w", text, err)
	}
	return r, nil
}

func parseRule(fields []string) (r Rule, err error) {
	if len(fields) == 0 {
		return r, errors.New("want a port, or a range of ports, and what holds for it")
	}
	if names, ok := strings.CutPrefix(fields[0], namesPrefix); ok {
		return parseNames(names, fields[1:])
	}
	if r.first, r.last, err = parsePorts(fields[0]); err != nil {
		return r, err
	}
	for rest := fields[1:]; len(rest) > 0; {
		word := rest[0]
		end := 1 + slices.IndexFunc(rest[1:], func(f string) bool { return f == fromWord || f == bindWord })
		if end == 0 {
			end = len(rest)
		}
		switch {
		case word == fromWord && r.from == nil:
			r.from, err = ParseSubjects(rest[1:end])
		case word == bindWord && r.bind == nil:
			r.bind, err = parseList(rest[1:end], "users", user{}, parseUser)
		case word == fromWord, word == bindWord:
			err = fmt.Errorf("%q is there twice", word)
		default:
			err = fmt.Errorf("%.80q: want %q or %q behind the ports", word, fromWord, bindWord)
		}
		if err != nil {
			return r, err
		}
		rest = rest[end:]
	}
	if r.from == nil && r.bind == nil {
		return r, fmt.Errorf("want %q with callers or %q with users behind the ports", fromWord, bindWord)
	}
	r.text = r.format()
	return r, nil
}

// parseNames reads a rule of services behind its first word.
func parseNames(names string, fields []string) (r Rule, err error) {
	begin, all := strings.CutSuffix(names, "*")
	if !addr.ValidService(names) && !(all && (begin == "" || addr.ValidName(begin))) {
		return r, fmt.Errorf("the service %.80q: want a name, or the beginning of names and *", names)
	}
	if len(fields) == 0 || fields[0] != byWord {
		return r, fmt.Errorf("want %q with nodes behind the service", byWord)
	}
	if r.by, err = ParseSubjects(fields[1:]); err != nil {
		return r, err
	}
	if slices.Contains(r.by, Subject{kind: kindLocal}) {
		return r, errors.New(`"local" is no node of the cluster: want "host" or a name`)
	}
	r.names, r.text = names, namesPrefix+names+" "+byWord+" "+Join(r.by)
	return r, nil
}

// format returns the one text of r.
func (r *Rule) format() string {
	s := strconv.Itoa(int(r.first))
	if r.last != r.first {
		s += "-" + strconv.Itoa(int(r.last))
	}
	if r.from != nil {
		s += " " + fromWord + " " + Join(r.from)
	}
	if r.bind != nil {
		s += " " + bindWord
		for _, u := range r.bind {
			s += " " + u.String()
		}
	}
	return s
}

func parsePorts(s string) (first, last addr.Port, err error) {
	low, high, isRange := strings.Cut(s, "-")
	if !isRange {
		high = low
	}
	if first, err = parsePort(low); err == nil {
		last, err = parsePort(high)
	}
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("ports %.80q: want a number from 1 to 65535 or two as in 2050-2059", s)
	case first > last:
		return 0, 0, fmt.Errorf("ports %q: the first is above the last", s)
	}
	return first, last, nil
}

func parsePort(s string) (addr.Port, error) {
	n, err := parseNumber(s, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return addr.Port(n), err
}

// parseNumber is strconv.ParseUint that takes one text of a number only.
func parseNumber(s string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, bits)
	if err == nil && strconv.FormatUint(n, 10) != s {
		err = strconv.ErrSyntax
	}
	return n, err
}

// parseList reads a list of 1 to MaxSubjects different items. none stands alone.
func parseList[T comparable](texts []string, what string, none T, parse func(string) (T, error)) ([]T, error) {
	if n := len(texts); n < 1 || n > MaxSubjects {
		return nil, fmt.Errorf("%d %s, want 1 to %d", n, what, MaxSubjects)
	}
	list := make([]T, 0, len(texts))
	for _, text := range texts {
		x, err := parse(text)
		if err != nil {
			return nil, err
		}
		if slices.Contains(list, x) {
			return nil, fmt.Errorf("%q is there twice", text)
		}
		list = append(list, x)
	}
	if len(list) > 1 && slices.Contains(list, none) {
		return nil, errors.New(`"none" stands alone`)
	}
	return list, nil
}

// ParseSubjects reads a list of 1 to MaxSubjects different subjects. "none"
// stands alone.
func ParseSubjects(texts []string) ([]Subject, error) {
	return parseList(texts, "callers", Subject{}, ParseSubject)
}

// ParseSubject reads one subject: all, none, host, local, a node's name,
// node:NAME or label:WORD.
func ParseSubject(text string) (Subject, error) {
	if k, ok := words[text]; ok {
		return Subject{kind: k}, nil
	}
	if label, ok := strings.CutPrefix(text, labelPrefix); ok {
		if !addr.ValidName(label) {
			return Subject{}, fmt.Errorf("label %.80q: want %s", label, wordAllowed)
		}
		return Subject{kindLabel, label}, nil
	}
	name, explicit := strings.CutPrefix(text, nodePrefix)
	if !addr.ValidNodeName(name) || !explicit && reserved(name) {
		return Subject{}, fmt.Errorf("%.80q: want all, none, host, local, a node's name, node:NAME or label:WORD, a name being %s", text, nameAllowed)
	}
	return Subject{kindNode, name}, nil
}

func parseUser(text string) (user, error) {
	switch text {
	case "none":
		return user{}, nil
	case "all":
		return user{kind: userAll}, nil
	}
	number, group := strings.CutPrefix(text, groupPrefix)
	n, err := parseNumber(number, 32)
	if err != nil || uint32(n) == UnknownUID {
		return user{}, fmt.Errorf("user %.80q: want all, none, a user's number or group:NUMBER", text)
	}
	if group {
		return user{userGID, uint32(n)}, nil
	}
	return user{userUID, uint32(n)}, nil
}

const (
	wordAllowed = "1 to 64 letters, digits, '.', '-' or '_'"
	nameAllowed = "1 to 63 letters, digits, '.', '-' or '_', not digits alone, which are an ID"
)
