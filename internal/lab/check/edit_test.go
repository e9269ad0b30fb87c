package check_test

import (
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// An edit is a history that is being spoiled.
type edit struct{ records []history.Record }

// newEdit returns a copy of a history whose bodies may be changed.
func newEdit(records []history.Record) *edit {
	e := &edit{slices.Clone(records)}
	for i := range e.records {
		e.records[i].Body = copyBody(e.records[i].Body)
	}
	return e
}

// copyBody returns a copy of a body as its own type.
func copyBody(b history.Body) history.Body {
	r, err := history.Append(nil, history.Record{Source: history.Lab, Seq: 1, Body: b})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	back, err := history.Decode(r)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return back.Body
}

// find returns the index of the n-th record with a body of type B that fits; -1:
// there is none, and then nothing can be done with it. Negative n count from the
// end.
func find[B history.Body](e *edit, n int, fits func(history.Record, B) bool) int {
	var all []int
	for i, r := range e.records {
		if b, ok := r.Body.(B); ok && (fits == nil || fits(r, b)) {
			all = append(all, i)
		}
	}
	if n < 0 {
		n += len(all)
	}
	if n < 0 || n >= len(all) {
		return -1
	}
	return all[n]
}

// body returns the body of a record.
func body[B history.Body](e *edit, i int) B { return e.records[i].Body.(B) }

// drop takes a record out.
func (e *edit) drop(i int) { e.records = slices.Delete(e.records, i, i+1) }

// twice repeats a record.
func (e *edit) twice(i int) { e.records = slices.Insert(e.records, i+1, e.records[i]) }

// insert puts a record behind record i, a nanosecond later.
func (e *edit) insert(i int, s history.Source, b history.Body) {
	e.records = slices.Insert(e.records, i+1, history.Record{At: e.records[i].At + 1, Source: s, Body: b})
}

// move gives a record another time.
func (e *edit) move(i int, at int64) { e.records[i].At = at }

// done returns the history in order.
func (e *edit) done() []history.Record { return renumber(e.records) }
