package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// MaxLine bounds one line of a log, in bytes, its newline included.
const MaxLine = 256 << 10

// A line is a record's JSON form. One of its bodies is set, whose key is its [Kind].
type line struct {
	At     int64  `json:"at"`
	Source Source `json:"src"`
	Seq    uint64 `json:"seq"`

	Begin     *Begin      `json:"begin,omitempty"`
	Timeline  *Timeline   `json:"timeline,omitempty"`
	End       *End        `json:"end,omitempty"`
	Fault     *Fault      `json:"fault,omitempty"`
	FaultEnd  *FaultEnd   `json:"fault_end,omitempty"`
	Process   *Process    `json:"process,omitempty"`
	Event     *Event      `json:"event,omitempty"`
	View      *View       `json:"view,omitempty"`
	Call      *Call       `json:"call,omitempty"`
	Return    *Return     `json:"return,omitempty"`
	Opened    *Opened     `json:"opened,omitempty"`
	Closed    *Closed     `json:"closed,omitempty"`
	Offered   *Offered    `json:"offered,omitempty"`
	Sent      *Sent       `json:"sent,omitempty"`
	Received  *Received   `json:"received,omitempty"`
	RMA       *RMA        `json:"rma,omitempty"`
	RMADone   *RMADone    `json:"rma_done,omitempty"`
	Fenced    *Fenced     `json:"fenced,omitempty"`
	Checked   *Checked    `json:"checked,omitempty"`
	Signal    *Signal     `json:"signal,omitempty"`
	Seen      *SignalSeen `json:"seen,omitempty"`
	Window    *Window     `json:"window,omitempty"`
	Unwindow  *WindowGone `json:"unwindow,omitempty"`
	Scan      *Scan       `json:"scan,omitempty"`
	Resources *Resources  `json:"resources,omitempty"`
	Paths     *Paths      `json:"paths,omitempty"`
	Logged    *Logged     `json:"logged,omitempty"`
	Stall     *Stall      `json:"still,omitempty"`
	Note      *Note       `json:"note,omitempty"`
}

// firstBody is the first field of a line that is a body; all behind it are.
const firstBody = 3

// bodies are the fields of a line that are bodies, by their types.
var bodies = func() map[reflect.Type]int {
	all := map[reflect.Type]int{}
	for i := firstBody; i < reflect.TypeFor[line]().NumField(); i++ {
		all[reflect.TypeFor[line]().Field(i).Type] = i
	}
	return all
}()

// Kind returns the kind of the record's body.
func (r Record) Kind() Kind {
	f := reflect.TypeFor[line]().Field(bodies[reflect.TypeOf(r.Body)])
	kind, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return Kind(kind)
}

// body returns the one body that is set.
func (l *line) body() (Body, error) {
	var one Body
	v := reflect.ValueOf(l).Elem()
	for i := firstBody; i < v.NumField(); i++ {
		f := v.Field(i)
		if f.IsNil() {
			continue
		}
		if one != nil {
			return nil, errors.New("body: more than one: want one of the kinds")
		}
		one = f.Interface()
	}
	if one == nil {
		return nil, errors.New("body: missing: want one of the kinds")
	}
	return one, nil
}

// Append appends the record to dst as one line with its newline. The same record is
// the same bytes always. It fails on every record that [Decode] would refuse.
func Append(dst []byte, r Record) ([]byte, error) {
	if err := r.check(); err != nil {
		return dst, err
	}
	l := line{At: r.At, Source: r.Source, Seq: r.Seq}
	reflect.ValueOf(&l).Elem().Field(bodies[reflect.TypeOf(r.Body)]).Set(reflect.ValueOf(r.Body))
	text, err := json.Marshal(&l)
	if err != nil {
		return dst, err
	}
	if len(text)+1 > MaxLine {
		return dst, fmt.Errorf("%s: %d bytes: want at most %d", r.Kind(), len(text)+1, MaxLine)
	}
	return append(append(dst, text...), '\n'), nil
}

// Decode decodes one line, with or without its newline.
func Decode(text []byte) (Record, error) {
	if len(text) > MaxLine {
		return Record{}, fmt.Errorf("line of %d bytes: want at most %d", len(text), MaxLine)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var l line
	if err := d.Decode(&l); err != nil {
		return Record{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return Record{}, errors.New("more than one value in a line")
	}
	body, err := l.body()
	if err != nil {
		return Record{}, err
	}
	r := Record{At: l.At, Source: l.Source, Seq: l.Seq, Body: body}
	return r, r.check()
}

// check reports the first thing of the record that is out of its range.
func (r Record) check() error {
	switch {
	case r.Body == nil:
		return errors.New("body: missing: want one of the kinds")
	case r.At < 0:
		return fmt.Errorf("at: %d: want at least 0", r.At)
	case r.Seq == 0:
		return errors.New("seq: 0: want at least 1")
	}
	if err := r.Source.check(); err != nil {
		return fmt.Errorf("src: %w", err)
	}
	if bodies[reflect.TypeOf(r.Body)] == 0 {
		return fmt.Errorf("body: %T: want a pointer to one of the kinds", r.Body)
	}
	if err := check(reflect.ValueOf(r.Body).Elem()); err != nil {
		return fmt.Errorf("%s.%w", r.Kind(), err)
	}
	return nil
}
