package services

import "time"

// An incarnation's list is sent at once, up to burst times in a row, and then once in every:
// a member with frequent changes costs the others no more.
const (
	every = 500 * time.Millisecond
	burst = 8
)

// A pace limits how often an incarnation's list is sent. The zero pace is one that was never used.
type pace struct{ next time.Time }

// at returns when the next list may be sent.
func (p pace) at() time.Time { return p.next.Add(-(burst - 1) * every) }

// ready reports whether that is now.
func (p pace) ready(now time.Time) bool { return !now.Before(p.at()) }

// take counts one sent list.
func (p *pace) take(now time.Time) {
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(every)
}
