package engine

import "time"

// A perMinute counts the events in the minute from began. The zero value is ready to
// use. Guarded by its owner's lock.
type perMinute struct {
	began time.Duration
	count int
}

// shown counts one at now, and reports whether it is among the first most of its minute.
func (m *perMinute) shown(now time.Duration, most int) bool {
	if m.count == 0 || now-m.began >= time.Minute {
		*m = perMinute{began: now}
	}
	m.count++
	return m.count <= most
}

// spent reports whether the minute of now has had most already.
func (m *perMinute) spent(now time.Duration, most int) bool {
	return now-m.began < time.Minute && m.count >= most
}
