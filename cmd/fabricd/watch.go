package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/wait"
)

// clearScreen begins a picture anew, from the top.
const clearScreen = "\x1b[H\x1b[2J"

// watchEvery bounds how often a table is asked for.
const (
	watchDefault = 2 * time.Second
	watchLeast   = 100 * time.Millisecond
)

// watchFlags are those of a table that is shown again and again.
type watchFlags struct {
	on    bool
	every time.Duration
}

func (f *watchFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.on, "watch", "w", false, "show it again and again; with --json one line per row that comes, changes or goes")
	f.addInterval(cmd)
}

func (f *watchFlags) addInterval(cmd *cobra.Command) {
	cmd.Flags().DurationVarP(&f.every, "interval", "i", watchDefault, "time between two looks, from 100ms")
}

func (f *watchFlags) check() error {
	if f.every < watchLeast {
		return usagef("interval: %v: want %v at least", f.every, watchLeast)
	}
	return nil
}

// watched are the tables that can be watched, with the JSON members that identify a
// row.
var watched = map[string][]string{
	"nodes":   {"id", "generation"},
	"links":   {"node", "generation", "provider", "since"},
	"conns":   {"id", "local", "remote", "life"},
	"ports":   {"port", "pid"},
	"windows": {"conn", "local", "remote", "offset"},

	"services": {"name", "life"},
	"gateways": {"kind", "listen"},
}

// restless are the members whose change is not reported: counts and measurements.
var restless = []string{"sent", "received", "unread", "silent_ms", "sent_bytes", "received_bytes", "connections", "socket", "rma_socket", "considered", "round_trip_us"}

// watch shows a table again and again, until it is interrupted.
func (a *app) watch(ctx context.Context, c *daemon.Client, path string, f watchFlags, asJSON bool, show func(io.Writer, json.RawMessage) error) error {
	var last map[string]json.RawMessage
	s := screen{out: a.stdout}
	return repeat(ctx, f.every, func() error {
		text, err := c.Get(ctx, path)
		if err != nil {
			return err
		}
		if !asJSON {
			return s.redraw(func(w io.Writer) error { return show(w, text) })
		}
		rows, err := rowsByKey(path, text)
		if err != nil {
			return err
		}
		for _, ch := range changes(last, rows, time.Now()) {
			if err := json.NewEncoder(a.stdout).Encode(ch); err != nil {
				return err
			}
		}
		last = rows
		return nil
	})
}

// repeat calls fn at once and then every so often, until ctx is done, which is no error.
func repeat(ctx context.Context, every time.Duration, fn func() error) error {
	for {
		if err := fn(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !wait.For(ctx.Done(), every) {
			return nil
		}
	}
}

// A screen shows one picture after the other: on a terminal each in the place of the one
// before it, elsewhere with an empty line between them.
type screen struct {
	out   io.Writer
	drawn bool
}

// redraw writes a whole picture at once, so that it does not flicker.
func (s *screen) redraw(draw func(io.Writer) error) error {
	var picture bytes.Buffer
	switch {
	case isTerminal(s.out):
		picture.WriteString(clearScreen)
	case s.drawn:
		picture.WriteByte('\n')
	}
	s.drawn = true
	if err := draw(&picture); err != nil {
		return err
	}
	_, err := s.out.Write(picture.Bytes())
	return err
}

// A change is one line of a watched table.
type change struct {
	Time   time.Time       `json:"time"`
	Change string          `json:"change"` // added, changed or removed
	Row    json.RawMessage `json:"row"`
}

// rowsByKey returns the rows of a table by their identifying members.
func rowsByKey(path string, text json.RawMessage) (map[string]json.RawMessage, error) {
	var body map[string]json.RawMessage
	var list []json.RawMessage
	err := json.Unmarshal(text, &body)
	if err == nil {
		err = json.Unmarshal(body[path], &list)
	}
	if err != nil {
		return nil, err
	}
	rows := make(map[string]json.RawMessage, len(list))
	for _, row := range list {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(row, &members); err != nil {
			return nil, err
		}
		key := ""
		for _, name := range watched[path] {
			key += string(members[name]) + " "
		}
		rows[key] = row
	}
	return rows, nil
}

// changes returns the differences, in the order of the rows' keys.
func changes(before, after map[string]json.RawMessage, now time.Time) (list []change) {
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if after[key] == nil {
			list = append(list, change{now, "removed", before[key]})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		switch old := before[key]; {
		case old == nil:
			list = append(list, change{now, "added", after[key]})
		case calm(old) != calm(after[key]):
			list = append(list, change{now, "changed", after[key]})
		}
	}
	return list
}

// calm returns a row without its restless members.
func calm(row json.RawMessage) string {
	var members map[string]json.RawMessage
	if json.Unmarshal(row, &members) != nil {
		return string(row)
	}
	for _, name := range restless {
		delete(members, name)
	}
	return fmt.Sprintf("%s", members)
}
