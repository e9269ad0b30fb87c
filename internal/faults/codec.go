package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Limits of an encoded list of rules.
const (
	// MaxEncoded is the largest encoding that Decode takes, in bytes.
	MaxEncoded = 256 << 10
	// MaxRules is how many rules one list, and one Plane at a time, may have.
	MaxRules = 256
)

// Decode parses a user's rules: one rule as a JSON object, a list of rules, or an object with the
// list under "rules". Every rule is checked; the error names which one is wrong, and nothing of it
// is used then. Unknown fields are refused.
func Decode(text []byte) ([]Rule, error) {
	if len(text) > MaxEncoded {
		return nil, fmt.Errorf("rules: %d bytes: want at most %d", len(text), MaxEncoded)
	}
	items, err := split(bytes.TrimSpace(text))
	if err != nil {
		return nil, err
	}
	if len(items) == 0 || len(items) > MaxRules {
		return nil, fmt.Errorf("rules: %d of them: want 1 to %d", len(items), MaxRules)
	}
	rules := make([]Rule, len(items))
	for i, item := range items {
		err := strict(item, &rules[i])
		if err == nil && rules[i].ID != 0 {
			err = &FieldError{"id", fmt.Sprint(rules[i].ID), "is chosen by the node; leave it out"}
		}
		if err == nil {
			err = rules[i].Check()
		}
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return rules, nil
}

// split returns the rules in text, not decoded.
func split(text []byte) ([]json.RawMessage, error) {
	switch {
	case len(text) == 0:
		return nil, errors.New("rules: nothing: want a JSON object or a list of them")
	case text[0] == '[':
		var items []json.RawMessage
		err := strict(text, &items)
		return items, err
	}
	var list struct {
		Rules []json.RawMessage `json:"rules"`
	}
	if err := strict(text, &list); err == nil && list.Rules != nil {
		return list.Rules, nil
	}
	return []json.RawMessage{text}, nil
}

// strict decodes one JSON value without unknown fields and with nothing after.
func strict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return explain(text, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("want nothing after the rules")
	}
	return nil
}

// explain turns package json's error into one for the author of the text.
func explain(text []byte, err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return &FieldError{e.Field, e.Value, "is of the wrong type"}
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return &FieldError{strings.Trim(field, `"`), "", "no rule has this field"}
	}
	if name, value, why := culprit(text); why != nil {
		return &FieldError{name, value, why.Error()}
	}
	return fmt.Errorf("not JSON: %w", err)
}

// culprit finds the member of a JSON object that cannot be part of a rule.
func culprit(text []byte) (name, value string, why error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return "", "", nil
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		alone, err := json.Marshal(map[string]json.RawMessage{name: members[name]})
		if err == nil {
			err = json.Unmarshal(alone, new(Rule))
		}
		if err != nil {
			return name, string(members[name]), err
		}
	}
	return "", "", nil
}
