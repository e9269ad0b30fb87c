package client

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
)

// A side is a goroutine whose steps are interleaved with those of the others.
type side struct {
	name  string
	run   func() error
	turn  chan bool   // do the next step; false: end instead
	ready func() bool // whether that step can be done; nil: it can
	next  step        // that step
	saw   uint64      // hash of all values that it has seen, which determine its next steps
	aside bool        // it serves the others and never ends
	done  bool
	err   error
}

// A step is one operation of a side, for failure messages.
type step struct {
	side, what string
	off        int // of a word of the ring
}

func (s step) String() string {
	if strings.HasSuffix(s.what, "word at") {
		return fmt.Sprintf("\n%s %s %d", s.side, s.what, s.off)
	}
	return fmt.Sprintf("\n%s %s", s.side, s.what)
}

// An order is one run of the sides, one step of one of them at a time.
type order struct {
	sides     []*side
	running   *side // nil before the first step
	parked    chan struct{}
	near, far *shmPath
	mem       []byte
	doorbells map[*shm.Doorbell]*rings
	ends      []*shm.Doorbell // the doorbells in the order of their making
	still     map[int]bool    // the words that do not change
	flags     []*flag         // other shared state
	got       int             // bytes received, by the call that has the turn
	receiving *flag           // the turn of the receiver
	trail     []step
}

// rings is the state of a doorbell.
type rings struct {
	peer  *shm.Doorbell
	n     int
	ended bool
	edge  bool // there are more than its watcher has been notified of
}

func (r *rings) ready() bool { return r.n > 0 || r.ended }

// A flag is a bit that goroutines of one process share.
type flag struct {
	set bool
}

// flag makes one.
func (o *order) flag() *flag {
	f := &flag{}
	o.flags = append(o.flags, f)
	return f
}

// await waits until f is set or not, and makes it the other. A nil flag is none.
func (o *order) await(f *flag, set bool, what string) {
	if f != nil {
		o.step(func() bool { return f.set == set }, what, 0, func() uint64 { f.set = !set; return 0 })
	}
}

// put sets f.
func (o *order) put(f *flag, set bool, what string) {
	if f != nil {
		o.step(nil, what, 0, func() uint64 { f.set = set; return 0 })
	}
}

// A steppedBool stands in for an atomic.Bool that goroutines of one process share.
type steppedBool struct {
	flag
	polled bool
}

func (b *steppedBool) Load() bool {
	if !b.polled {
		return false // never set in this run
	}
	return now.step(nil, "loads watched", 0, func() uint64 { return bit(b.set) }) != 0
}

func (b *steppedBool) Store(v bool) {
	now.step(nil, "stores watched", 0, func() uint64 { b.set = v; return 0 })
}

func (b *steppedBool) Swap(v bool) (old bool) {
	return now.step(nil, "swaps watched", 0, func() uint64 { old, b.set = b.set, v; return bit(old) }) != 0
}

// now is the order that is being run.
var now *order

func init() {
	ring.Step = func(what string, off int, access func() uint64) uint64 {
		if now == nil || now.still[off] {
			return access()
		}
		return now.step(nil, what+" the word at", off, access)
	}
	shm.Step = func(what string, b *shm.Doorbell) { now.doorbell(what, b) }
}

// step waits for the turn of the side that is running, and for ready, and does
// something.
func (o *order) step(ready func() bool, what string, off int, do func() uint64) uint64 {
	if o == nil || o.running == nil {
		return do()
	}
	s := o.running
	s.ready, s.next = ready, step{s.name, what, off}
	o.parked <- struct{}{}
	if !<-s.turn {
		runtime.Goexit()
	}
	v := do()
	o.note(v)
	return v
}

// note says that the side that is running has seen v.
func (o *order) note(v uint64) { o.running.saw = mix(o.running.saw, v) }

func mix(a, b uint64) uint64 {
	return maphash.Bytes(hashSeed, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, a), b))
}

var hashSeed = maphash.MakeSeed()

// only declares that the next steps of the running side depend on v and on its private state of a
// ring, and on no other value that it has seen.
func (o *order) only(v int) { o.running.saw = uint64(v) }

// doorbell is a step at a doorbell, before it is done.
func (o *order) doorbell(what string, b *shm.Doorbell) {
	if o == nil || o.running == nil {
		return
	}
	r := o.doorbells[b]
	var ready func() bool
	if what == "waits at" {
		ready = r.ready
	}
	o.step(ready, what+" its doorbell", 0, func() uint64 {
		peer := o.doorbells[r.peer]
		switch what {
		case "rings":
			peer.n++
			peer.edge = true
		case "closes":
			peer.ended, peer.edge = true, true
		default: // it waits or drains: all of the rings
			r.n = 0
		}
		return 0
	})
}

// begin starts the sides, up to the first step of each.
func (o *order) begin() {
	o.parked = make(chan struct{})
	for _, s := range o.sides {
		s.turn = make(chan bool)
		o.running = s
		go func() {
			defer func() { s.done = true; o.parked <- struct{}{} }()
			s.err = s.run()
		}()
		<-o.parked
	}
}

// advance lets s do its next step, up to the one behind it.
func (o *order) advance(s *side) {
	o.trail = append(o.trail, s.next)
	o.running = s
	s.turn <- true
	<-o.parked
}

// end ends the sides that have not ended.
func (o *order) end() {
	for _, s := range o.sides {
		if o.running = s; !s.done {
			s.turn <- false
			<-o.parked
		}
	}
	o.running = nil
	for i := 0; i < len(o.ends); i += 2 {
		o.putBack(o.ends[i], o.ends[i+1])
	}
}

// spare are pairs of doorbells that no order uses.
var spare [][2]*shm.Doorbell

// putBack makes two doorbells as good as new, or closes them.
func (o *order) putBack(a, b *shm.Doorbell) {
	if o.doorbells[a].ended || o.doorbells[b].ended {
		a.Close()
		b.Close()
		return
	}
	for _, doorbell := range []*shm.Doorbell{a, b} {
		if o.doorbells[doorbell].n > 0 {
			doorbell.Drain()
		}
	}
	spare = append(spare, [2]*shm.Doorbell{a, b})
}

// able returns the sides that can go on.
func (o *order) able() (all []*side) {
	for _, s := range o.sides {
		if !s.done && (s.ready == nil || s.ready()) {
			all = append(all, s)
		}
	}
	return all
}

// key hashes the state, which determines everything that follows.
func (o *order) key() uint64 {
	h := maphash.Bytes(hashSeed, o.mem)
	for _, s := range o.sides {
		h = mix(mix(h, s.saw), bit(s.done))
	}
	for _, b := range o.ends {
		r := o.doorbells[b]
		h = mix(mix(mix(h, uint64(r.n)), bit(r.ended)), bit(r.edge))
	}
	for _, f := range o.flags {
		h = mix(h, bit(f.set))
	}
	for _, sp := range []*shmPath{o.near, o.far} {
		h = mix(h, bit(sp.gone.Load())<<1|bit(sp.cut.Load()))
	}
	for _, v := range slices.Concat(o.near.out.State(), o.far.in.State()) {
		h = mix(h, v)
	}
	return mix(h, uint64(o.got))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// verdict returns the faults of a state in which no side can continue.
func (o *order) verdict() string {
	var wrong []string
	for _, s := range o.sides {
		switch {
		case !s.done && !s.aside:
			wrong = append(wrong, s.next.String()+" for ever")
		case s.err != nil:
			wrong = append(wrong, s.name+": "+s.err.Error())
		}
	}
	if len(wrong) == 0 {
		return ""
	}
	return fmt.Sprintf("%s, after: %v", strings.Join(wrong, ", "), o.trail)
}

// A choice is the number of a side among those that could continue.
type choice struct{ at, of int }

// search runs all interleavings of the sides that set creates, and prunes those that reach a known
// state. It returns the number of states, and the faults of the first interleaving that has any.
func search(set func() *order) (states int, wrong string) {
	seen := map[uint64]bool{}
	var path []choice
	for {
		now = set()
		now.begin()
		wrong = now.follow(&path, seen)
		now.end()
		for len(path) > 0 && path[len(path)-1].at+1 == path[len(path)-1].of {
			path = path[:len(path)-1]
		}
		if wrong != "" || len(path) == 0 {
			return len(seen), wrong
		}
		path[len(path)-1].at++
	}
}

// follow goes the way of path, and on from there to a state that was seen, or to
// the end.
func (o *order) follow(path *[]choice, seen map[uint64]bool) string {
	for depth := 0; ; depth++ {
		able := o.able()
		if depth == len(*path) {
			if len(able) == 0 {
				return o.verdict()
			}
			key := o.key()
			if seen[key] {
				return ""
			}
			seen[key] = true
			*path = append(*path, choice{of: len(able)})
		}
		o.advance(able[(*path)[depth].at])
	}
}
