package check

import "github.com/fabricd/fabricd/internal/lab/history"

// A waiting is a call under way.
type waiting struct {
	history.ConnEnd
	name string
}

// sends returns the sending end of the stream that a send or recv is of, and the call
// of the other end that has to go on for this one to go on.
func (x waiting) sends() (sender history.ConnEnd, other waiting) {
	peer := x.Other()
	if x.name == "send" {
		return x.ConnEnd, waiting{peer, "recv"}
	}
	return peer, waiting{peer, "send"}
}

// standstills returns, by the sending end, when a send waited for room while the other end waited
// for bytes: a receiver that has taken all that came has room. It needs records of calls that wait;
// a source may leave out short ones.
func (w *world) standstills() map[history.ConnEnd][]interval {
	all := map[history.ConnEnd][]interval{}
	open := map[waiting]int64{} // when it began
	over := func(x waiting, began, at int64) {
		delete(open, x)
		sender, other := x.sends()
		if since, ok := open[other]; ok && max(began, since) < at {
			all[sender] = append(all[sender], interval{max(began, since), at})
		}
	}
	for i := range w.records {
		switch b := w.records[i].Body.(type) {
		case *history.Call:
			if x := (waiting{history.ConnEnd{Conn: b.Conn, Side: b.Side}, b.Name}); x.streams() {
				open[x] = b.Began
			}
		case *history.Return:
			if x := (waiting{history.ConnEnd{Conn: b.Conn, Side: b.Side}, b.Name}); x.streams() {
				over(x, b.Began, w.records[i].At)
			}
		}
	}
	for x, began := range open {
		if x.name == "send" {
			over(x, began, w.finish())
		}
	}
	return all
}

// streams reports whether the call is one of a stream of messages.
func (x waiting) streams() bool {
	return x.Conn != 0 && x.Side != "" && (x.name == "send" || x.name == "recv")
}
