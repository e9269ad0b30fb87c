package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxLine bounds one line of a log, in bytes, its newline included.
const MaxLine = 256 << 10

// A line is a record's JSON form.
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
	Still     *Still      `json:"still,omitempty"`
	Note      *Note       `json:"note,omitempty"`
}

// set puts a body in its place.
func (l *line) set(body Body) {
	switch b := body.(type) {
	case *Begin:
		l.Begin = b
	case *Timeline:
		l.Timeline = b
	case *End:
		l.End = b
	case *Fault:
		l.Fault = b
	case *FaultEnd:
		l.FaultEnd = b
	case *Process:
		l.Process = b
	case *Event:
		l.Event = b
	case *View:
		l.View = b
	case *Call:
		l.Call = b
	case *Return:
		l.Return = b
	case *Opened:
		l.Opened = b
	case *Closed:
		l.Closed = b
	case *Offered:
		l.Offered = b
	case *Sent:
		l.Sent = b
	case *Received:
		l.Received = b
	case *RMA:
		l.RMA = b
	case *RMADone:
		l.RMADone = b
	default:
		l.setLater(body)
	}
}

// setLater is set for the second half of the kinds.
func (l *line) setLater(body Body) {
	switch b := body.(type) {
	case *Fenced:
		l.Fenced = b
	case *Checked:
		l.Checked = b
	case *Signal:
		l.Signal = b
	case *SignalSeen:
		l.Seen = b
	case *Window:
		l.Window = b
	case *WindowGone:
		l.Unwindow = b
	case *Scan:
		l.Scan = b
	case *Resources:
		l.Resources = b
	case *Paths:
		l.Paths = b
	case *Logged:
		l.Logged = b
	case *Still:
		l.Still = b
	case *Note:
		l.Note = b
	}
}

// body returns the one body that is set.
func (l *line) body() (Body, error) {
	var one Body
	several := false
	pick := func(b Body, set bool) {
		if set {
			several = several || one != nil
			one = b
		}
	}
	pick(l.Begin, l.Begin != nil)
	pick(l.Timeline, l.Timeline != nil)
	pick(l.End, l.End != nil)
	pick(l.Fault, l.Fault != nil)
	pick(l.FaultEnd, l.FaultEnd != nil)
	pick(l.Process, l.Process != nil)
	pick(l.Event, l.Event != nil)
	pick(l.View, l.View != nil)
	pick(l.Call, l.Call != nil)
	pick(l.Return, l.Return != nil)
	pick(l.Opened, l.Opened != nil)
	pick(l.Closed, l.Closed != nil)
	pick(l.Offered, l.Offered != nil)
	pick(l.Sent, l.Sent != nil)
	pick(l.Received, l.Received != nil)
	pick(l.RMA, l.RMA != nil)
	pick(l.RMADone, l.RMADone != nil)
	pick(l.Fenced, l.Fenced != nil)
	pick(l.Checked, l.Checked != nil)
	pick(l.Signal, l.Signal != nil)
	pick(l.Seen, l.Seen != nil)
	pick(l.Window, l.Window != nil)
	pick(l.Unwindow, l.Unwindow != nil)
	pick(l.Scan, l.Scan != nil)
	pick(l.Resources, l.Resources != nil)
	pick(l.Paths, l.Paths != nil)
	pick(l.Logged, l.Logged != nil)
	pick(l.Still, l.Still != nil)
	pick(l.Note, l.Note != nil)
	switch {
	case one == nil:
		return nil, errors.New("body: missing: want one of the kinds")
	case several:
		return nil, errors.New("body: more than one: want one of the kinds")
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
	l.set(r.Body)
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
	if err := r.Body.check(); err != nil {
		return fmt.Errorf("%s.%w", r.Kind(), err)
	}
	return nil
}
