package faults

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Probability is from 0 to 1. Its text and JSON form is "20%" or 0.2.
type Probability float64

// ParseProbability parses "20%" or "0.2".
func ParseProbability(s string) (Probability, error) {
	number, percent := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(number, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) || len(s) > 32 {
		return 0, fmt.Errorf("%.40q: want a probability, 0%% to 100%% or 0 to 1", s)
	}
	return Probability(f), nil
}

// String returns p in percent.
func (p Probability) String() string {
	return strconv.FormatFloat(math.Round(float64(p)*1e8)/1e6, 'f', -1, 64) + "%"
}

// UnmarshalJSON takes a number or a string that ParseProbability takes.
func (p *Probability) UnmarshalJSON(b []byte) (err error) {
	*p, err = parseValue(b, ParseProbability)
	return err
}

// A Duration is a time in nanoseconds, "20ms" in text and JSON.
type Duration time.Duration

// ParseDuration parses the format of time.ParseDuration, if the value is not negative.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%.40q: want a duration as 20ms or 1m30s", s)
	}
	return Duration(d), nil
}

// String returns d as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText returns d as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalJSON takes a string that ParseDuration takes.
func (d *Duration) UnmarshalJSON(b []byte) (err error) {
	if len(b) > 0 && b[0] != '"' && string(b) != "0" {
		return fmt.Errorf("%.40q: want a duration in quotes, as \"20ms\"", b)
	}
	*d, err = parseValue(b, ParseDuration)
	return err
}

// Bytes is a number of bytes, or of bytes per second. Its text form is a number
// with or without a unit: "512", "64KiB", "1MB", "8Mbit", "8Mbit/s".
type Bytes int64

// units are the units of Bytes, each after those that end with it.
var units = []struct {
	name  string
	bytes float64
}{
	{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8},
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"b", 1},
}

// ParseBytes parses a number of bytes.
func ParseBytes(s string) (Bytes, error) {
	number, unit := strings.TrimSuffix(strings.ToLower(s), "/s"), 1.0
	for _, u := range units {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, unit = rest, u.bytes
			break
		}
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(f >= 0 && f*unit <= 1<<50) || len(s) > 32 {
		return 0, fmt.Errorf("%.40q: want a number of bytes, as 512, 64KiB, 1MB or 8Mbit", s)
	}
	return Bytes(f * unit), nil
}

// String returns b with the largest binary unit that divides it.
func (b Bytes) String() string {
	for _, u := range []struct {
		name  string
		bytes Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}} {
		if b >= u.bytes && b%u.bytes == 0 {
			return strconv.FormatInt(int64(b/u.bytes), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// UnmarshalJSON takes a number or a string that ParseBytes takes.
func (b *Bytes) UnmarshalJSON(text []byte) (err error) {
	*b, err = parseValue(text, ParseBytes)
	return err
}

// ParseNodes parses "any", or node IDs separated by commas.
func ParseNodes(s string) (Nodes, error) {
	if s == "any" || s == "*" || s == "" {
		return nil, nil
	}
	items := strings.Split(s, ",")
	if len(items) > MaxNodes {
		return nil, fmt.Errorf("%d nodes: want at most %d", len(items), MaxNodes)
	}
	var n Nodes
	for _, item := range items {
		id, err := strconv.ParseUint(strings.TrimSpace(item), 10, 16)
		if err != nil || addr.NodeID(id) >= addr.FirstReserved {
			return nil, fmt.Errorf("%.40q: want node IDs from 0 to %d separated by commas, or any", s, addr.FirstReserved-1)
		}
		n = append(n, addr.NodeID(id))
	}
	return n, nil
}

// String returns the form that ParseNodes takes.
func (n Nodes) String() string {
	if len(n) == 0 {
		return "any"
	}
	var all []string
	for _, id := range n {
		all = append(all, strconv.Itoa(int(id)))
	}
	return strings.Join(all, ",")
}

// UnmarshalJSON takes a node ID, a list of them, or a string that ParseNodes
// takes.
func (n *Nodes) UnmarshalJSON(b []byte) (err error) {
	if len(b) > 0 && b[0] == '[' {
		var ids []addr.NodeID
		if err := json.Unmarshal(b, &ids); err != nil {
			return fmt.Errorf("nodes %.40q: want node IDs", b)
		}
		*n = ids
		return nil
	}
	*n, err = parseValue(b, ParseNodes)
	return err
}

// parseValue parses a JSON string or number as parse does its text.
func parseValue[T any](b []byte, parse func(string) (T, error)) (v T, err error) {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return v, err
		}
	}
	return parse(text)
}
