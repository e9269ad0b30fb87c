package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/printable"
)

// A table is rows of cells, the first one being the head.
type table [][]string

// print writes t in columns. An empty cell is "-". Text of a peer cannot leave its
// cell.
func (t table) print(w io.Writer) error {
	var columns bytes.Buffer // whose writes do not fail
	tw := tabwriter.NewWriter(&columns, 0, 8, 2, ' ', 0)
	for _, row := range t {
		cells := slices.Clone(row)
		for i, text := range cells {
			if text == "" {
				text = "-"
			}
			cells[i] = printable.Text(text)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t")+"\t")
	}
	tw.Flush()
	for line := range strings.Lines(columns.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// printLine writes one line for people. Text of a peer can neither end the line nor
// contain terminal control sequences: only printLine and print write such text.
func printLine(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintln(w, printable.Text(fmt.Sprintf(format, args...)))
	return err
}

// A field is one member of a JSON object.
type field struct {
	key  string
	text string // as a cell shows it
}

// fields returns the members of a JSON object in their order.
func fields(object json.RawMessage) ([]field, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		return nil, fmt.Errorf("want an object, got %.20q", object)
	}
	var all []field
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		text, err := cell(value)
		if err != nil {
			return nil, err
		}
		all = append(all, forPeople(fmt.Sprint(key), text))
	}
	return all, nil
}

// forPeople rounds a value if the name of its member has the suffix of a time, a
// duration or a number of bytes, and removes the unit from the name.
func forPeople(key, text string) field {
	for suffix, unit := range map[string]time.Duration{"_ns": 1, "_us": time.Microsecond, "_ms": time.Millisecond, "_seconds": time.Second} {
		name, ok := strings.CutSuffix(key, suffix)
		if ok && text == "" {
			return field{name, text} // not known
		}
		if n, err := strconv.ParseFloat(text, 64); ok && err == nil && n >= 0 && n < 1e15 {
			return field{name, duration(time.Duration(n * float64(unit)))}
		}
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		switch {
		case strings.HasSuffix(key, "_bytes"):
			return field{strings.TrimSuffix(key, "_bytes"), size(n)}
		case slices.Contains(byteCounts, key):
			return field{key, size(n)}
		case key == "offset":
			return field{key, fmt.Sprintf("%#x", n)}
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return field{key, ago(at, time.Now())}
	}
	switch text {
	case "true":
		text = "yes"
	case "false":
		text = "no"
	}
	return field{key, text}
}

// byteCounts are the members of the tables that count bytes without saying so.
var byteCounts = []string{"unread", "sent", "received", "length"}

// cell returns a JSON value as people read it: strings without quotes, lists
// separated by spaces, objects as key=value.
func cell(value json.RawMessage) (string, error) {
	switch value = bytes.TrimSpace(value); {
	case len(value) == 0 || bytes.Equal(value, []byte("null")):
		return "", nil
	case value[0] == '"':
		var s string
		err := json.Unmarshal(value, &s)
		return s, err
	case value[0] == '[':
		var items []json.RawMessage
		if err := json.Unmarshal(value, &items); err != nil {
			return "", err
		}
		var texts []string
		for _, item := range items {
			text, err := cell(item)
			if err != nil {
				return "", err
			}
			texts = append(texts, text)
		}
		return strings.Join(texts, " "), nil
	case value[0] == '{':
		members, err := fields(value)
		var texts []string
		for _, m := range members {
			texts = append(texts, m.key+"="+m.text)
		}
		return strings.Join(texts, " "), err
	}
	return string(value), nil
}

// empty has, for each table, the text for no rows.
var empty = map[string]string{
	"conns":    "no connections",
	"services": "no services: an application makes one with fabric.Service",
	"links":    "no links: one is made when it is first used",
	"ports":    "no ports are bound",
	"windows":  "no windows are registered",
}

// onlyJSON are the members that are too long for a column.
var onlyJSON = []string{"socket", "rma_socket", "considered", "packets", "lost", "deviation_us", "shortest_us", "unsent"}

// showConns prints connections. The bytes of a path do not pass the node: they are the kernel's
// count, TLS's own included.
func showConns(w io.Writer, text json.RawMessage) error {
	var body struct {
		Conns []daemon.ConnInfo `json:"conns"`
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return err
	}
	for i := range body.Conns {
		c := &body.Conns[i]
		c.Path = pathName(c.Path)
		if c.Socket != nil {
			c.Sent, c.Received = c.Sent+c.Socket.SentBytes, c.Received+c.Socket.ReceivedBytes
		}
	}
	all, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return showRows(w, "conns", all)
}

// heading is the column's name for a member: the key "life" is older than the word.
func heading(key string) string {
	if key == "life" {
		return "INCARNATION"
	}
	return strings.ToUpper(strings.ReplaceAll(key, "_", " "))
}

// showRows prints the list of JSON objects under name as a table. All objects
// have the members of the first one, in its order.
func showRows(w io.Writer, name string, text json.RawMessage) error {
	var body map[string][]json.RawMessage
	if err := json.Unmarshal(text, &body); err != nil {
		return err
	}
	if len(body[name]) == 0 {
		_, err := fmt.Fprintln(w, empty[name])
		return err
	}
	var t table
	for i, object := range body[name] {
		members, err := fields(object)
		if err != nil {
			return err
		}
		var head, row []string
		for _, m := range members {
			if slices.Contains(onlyJSON, m.key) {
				continue
			}
			head = append(head, heading(m.key))
			row = append(row, m.text)
		}
		if i == 0 {
			t = append(t, head)
		}
		t = append(t, row)
	}
	return t.print(w)
}
