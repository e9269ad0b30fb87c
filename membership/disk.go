package membership

import (
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

// disk does slow writes on its own goroutine: the host's lease records, and the
// members that every node remembers.
type disk struct {
	st     *state.State
	faults *failpoint.Node
	log    zerolog.Logger
	answer func(verdict.HostInput) // called on disk's goroutine

	wake signal
	stop chan struct{}

	closing sync.Once
	mu      sync.Mutex        // guards the fields below
	writes  []verdict.Persist // not done; the host has at most a few per node under way
	members []state.Member    // to be written; nil: none
}

func newDisk(st *state.State, faults *failpoint.Node, log zerolog.Logger, answer func(verdict.HostInput)) *disk {
	return &disk{st: st, faults: faults, log: log, answer: answer, wake: newSignal(), stop: make(chan struct{})}
}

// persist queues a write of the host.
func (d *disk) persist(p verdict.Persist) {
	d.mu.Lock()
	d.writes = append(d.writes, p)
	d.mu.Unlock()
	d.wake.send()
}

// putMembers queues the members to remember; a later list replaces an earlier.
func (d *disk) putMembers(list []state.Member) {
	d.mu.Lock()
	d.members = list
	d.mu.Unlock()
	d.wake.send()
}

// membersAgain is the pause before members are written again that could not be.
const membersAgain = 2 * time.Second

func (d *disk) run() {
	var again <-chan time.Time
	for {
		select {
		case <-d.wake:
		case <-again:
		case <-d.stop:
			return
		}
		d.mu.Lock()
		writes, members := d.writes, d.members
		d.members = nil
		d.mu.Unlock()
		d.write(writes)
		written := d.writeMembers(members)
		d.mu.Lock()
		d.writes = slices.Delete(d.writes, 0, len(writes))
		if again = nil; !written && d.members == nil {
			d.members, again = members, time.After(membersAgain)
		}
		d.mu.Unlock()
	}
}

// waiting returns how many writes the disk has not taken.
func (d *disk) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.members != nil {
		return len(d.writes) + 1
	}
	return len(d.writes)
}

// writeMembers writes members, if there are any, and reports whether they are on disk.
func (d *disk) writeMembers(members []state.Member) bool {
	if members == nil {
		return true
	}
	err := d.st.PutMembers(members)
	if err != nil {
		d.log.Warn().Err(err).Msg("members are not remembered")
	}
	return err == nil
}

// write commits several writes at once, and if that fails one by one, so that
// the host is notified which of them is not on disk.
func (d *disk) write(writes []verdict.Persist) {
	if len(writes) == 0 {
		return
	}
	if d.commit(writes) == nil {
		d.hit(writes)
		d.answer(verdict.Persisted{Seq: writes[len(writes)-1].Seq})
		return
	}
	for i := range writes {
		if err := d.commit(writes[i : i+1]); err != nil {
			d.log.Error().Err(err).Msg("leases are not on disk")
			d.answer(verdict.PersistFailed{Seq: writes[i].Seq, Text: err.Error()})
			continue
		}
		d.hit(writes[i : i+1])
		d.answer(verdict.Persisted{Seq: writes[i].Seq})
	}
}

// hit reports to the faults that writes are on disk and not answered yet.
func (d *disk) hit(writes []verdict.Persist) {
	for _, w := range writes {
		hitLeases(d.faults, w.Leases, failpoint.GrantPersisted, failpoint.RemovalPersisted)
	}
}

func (d *disk) commit(writes []verdict.Persist) error {
	last := writes[len(writes)-1]
	newest := make(map[uint16]int)
	var leases []verdict.Lease
	for _, w := range writes {
		for _, l := range w.Leases {
			if i, ok := newest[uint16(l.ID)]; ok {
				leases[i] = l
				continue
			}
			newest[uint16(l.ID)] = len(leases)
			leases = append(leases, l)
		}
	}
	// The term first: after a crash in between the next start only begins a
	// higher term than it had to.
	if last.Term > d.st.Term() {
		if err := d.st.AcceptTerm(last.Term); err != nil {
			return err
		}
	}
	return d.st.Leases().Commit(last.Cursor, leases...)
}

// close ends run once the write that may be under way has ended.
func (d *disk) close() { d.closing.Do(func() { close(d.stop) }) }
