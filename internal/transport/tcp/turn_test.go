package tcp

import (
	"testing"
	"testing/synctest"
)

// A writer that found no credit or no room a moment ago, and waits for its turn
// now, keeps its place in line when others get credit or room: who was woken by
// each acknowledgement would be behind all who write, as long as they write.
func TestWriterKeepsItsPlaceInLine(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		_, _, s := r.withBulk()
		b := s.bulk.conns[0]
		b.turn <- struct{}{} // somebody writes
		first := &sendLane{s: s, id: 101, wake: make(chan struct{}, 1)}
		second := &sendLane{s: s, id: 102, wake: make(chan struct{}, 1)}
		s.mu.Lock()
		s.waiting[first] = struct{}{}
		s.mu.Unlock()
		turns := make(chan *sendLane, 2)
		for _, l := range []*sendLane{first, second} {
			go func() {
				got, err := s.takeBulk(l)
				if err != nil || got != b {
					t.Errorf("lane %d: connection %v, %v", l.id, got, err)
					return
				}
				turns <- l
				b.give(l)
			}()
			synctest.Wait()
		}
		s.wakeWriters()
		synctest.Wait()
		<-b.turn
		synctest.Wait()
		for _, want := range []*sendLane{first, second} {
			if got := <-turns; got != want {
				t.Errorf("lane %d has the turn of lane %d", got.id, want.id)
			}
		}
	})
}
