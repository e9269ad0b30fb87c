package verdict

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A world is a whole cluster on virtual time: machines with disks, processes
// that run a Member (and on one machine a Host), and the network between them.
// Everything random comes from one seed, so a seed is a run.
type world struct {
	t    testing.TB
	seed uint64
	rng  *rand.Rand
	tm   Timing

	start time.Time
	now   time.Time
	seq   uint64
	queue events
	sum   uint64 // of everything that happened
	trace bool

	machines   []*machine
	hosts      []*machine // those with the host role, in order of start
	cuts       map[[2]int]bool
	inboundCut time.Time    // when cutInbound was called
	unacked    bool         // sessions deliver without acknowledgements for good; loss reports are lost
	muted      map[int]bool // its packets are lost, but gossip passes (UDP blocked, TCP open)
	loss       float64      // of datagrams; others arrive later instead
	epochs     uint64

	partial PartialPolicy
	wakes   int // of all processes, by their timers
	check   *checker
	pairs   map[pair]*pairState

	countsTerms bool // a term is one above the last, whatever the clock shows

	tap   func(*proc, HostInput, []Action) // sees every step of a Host; may be nil
	drops func(*conn, int, Message) bool   // a message that a sender keeps back; may be nil
}

// A machine is a place with a disk, where one process runs at a time.
type machine struct {
	index       int
	uuid        addr.UUID
	host        bool
	proc        *proc // nil: nothing runs
	incarnation addr.Incarnation
	known       uint64 // term that the member remembered
	term        uint64 // of the host
	cursor      addr.NodeID
	floor       addr.Generation // of a lease table that was lost
	leases      map[addr.NodeID]Lease
	full        bool          // the disk refuses writes
	late        time.Duration // by which its wall clock is
	gone        bool          // switched off for good
	touched     bool          // some fault concerned this machine
}

func (m *machine) name() string { return fmt.Sprintf("m%d", m.index) }

// A proc is one start of fabricd.
type proc struct {
	w        *world
	at       *machine
	epoch    uint64
	host     *Host
	member   *Member
	dead     bool
	paused   bool
	backlog  []func()
	conns    map[SessionID]*conn
	sessions SessionID
	crashIn  int // actions until it crashes; negative: never
	ended    string
	diskFree time.Time // when the last write is through
	armed    time.Time // when the next Tick comes; zero: none is to come
	events   []seen
}

// A seen is an event with its time.
type seen struct {
	at time.Time
	Event
}

// A conn is one control session: a is the member's end, b the host's.
type conn struct {
	ends [2]*proc
	ids  [2]SessionID
	open bool
	wait [2][]Message // to be sent by this end, held up by a cut
	last [2]time.Time // when this end's newest message arrives
}

type event struct {
	at  time.Time
	seq uint64
	run func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// newWorld returns a world with one host machine and n others, none of which
// runs yet.
func newWorld(t testing.TB, seed uint64, n int) *world {
	start := time.Unix(1_000_000_000, 0)
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), tm: Fast(), start: start, now: start,
		cuts: make(map[[2]int]bool), muted: make(map[int]bool), pairs: make(map[pair]*pairState),
	}
	w.check = newChecker(w)
	w.addMachine(true)
	for range n {
		w.addMachine(false)
	}
	w.after(100*time.Millisecond, w.scan)
	return w
}

func (w *world) addMachine(host bool) *machine {
	m := &machine{index: len(w.machines), host: host, leases: make(map[addr.NodeID]Lease)}
	m.uuid = w.newUUID(m.index)
	w.machines = append(w.machines, m)
	if host {
		w.hosts = append(w.hosts, m)
	}
	return m
}

// newUUID returns an identity that names its machine, and is never twice.
func (w *world) newUUID(index int) addr.UUID {
	w.epochs++
	var u addr.UUID
	u[0] = byte(index + 1)
	binary.BigEndian.PutUint64(u[8:], w.epochs)
	return u
}

// after runs f in d.
func (w *world) after(d time.Duration, f func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now.Add(d), w.seq, f})
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.queue) > 0 && !w.queue[0].at.After(end) {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.run()
	}
	w.now = end
}

// until runs until cond holds, and returns how long it took. It fails the
// test if it takes longer than limit.
func (w *world) until(limit time.Duration, what string, cond func() bool) time.Duration {
	w.t.Helper()
	begin := w.now
	for !cond() {
		if w.now.Sub(begin) > limit {
			w.failf("%s: not within %v", what, limit)
			return limit
		}
		w.run(10 * time.Millisecond)
	}
	return w.now.Sub(begin)
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d at %v: %s", w.seed, w.now.Sub(w.start), fmt.Sprintf(format, args...))
}

// record adds an occurrence to the run's sum.
func (w *world) record(p *proc, what string, x any) {
	f := fnv.New64a()
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], w.sum)
	binary.BigEndian.PutUint64(b[8:], uint64(w.now.Sub(w.start)))
	f.Write(b[:])
	fmt.Fprintf(f, "%d %s %T %v", p.at.index, what, x, x)
	w.sum = f.Sum64()
	if w.trace {
		w.t.Logf("%v m%d %s %T %+v", w.now.Sub(w.start), p.at.index, what, x, x)
	}
}

// delay returns how long a packet takes; a lost one of a reliable stream is
// sent again.
func (w *world) delay() time.Duration {
	d := 200*time.Microsecond + time.Duration(w.rng.IntN(1500))*time.Microsecond
	for w.loss > 0 && w.rng.Float64() < w.loss {
		d += 40 * time.Millisecond
	}
	return d
}

// passes reports whether packets get from machine a to b.
func (w *world) passes(a, b *machine) bool {
	return a == b || (!w.cuts[[2]int{a.index, b.index}] && !w.muted[a.index] && !w.muted[b.index])
}

// carries reports whether a session brings something from machine a to b. It does for
// a while without the acknowledgements; then the bytes without one are sent again first.
func (w *world) carries(a, b *machine) bool {
	return w.passes(a, b) && (w.passes(b, a) || w.unacked || w.now.Sub(w.inboundCut) < 400*time.Millisecond)
}

// reaches reports whether a round trip from a to b gets an answer.
func (w *world) reaches(a, b *machine) bool {
	return w.passes(a, b) && w.passes(b, a) && b.proc != nil && !b.proc.paused
}

// boot starts a process on m.
func (w *world) boot(m *machine) *proc {
	if m.proc != nil || m.gone {
		return m.proc
	}
	w.epochs++
	p := &proc{w: w, at: m, epoch: w.epochs, conns: make(map[SessionID]*conn), crashIn: -1, diskFree: w.now}
	m.proc = p
	self := Identity{UUID: m.uuid, Epoch: p.epoch, Claims: claims(m.name(), fmt.Sprintf("m%d:1", m.index))}
	var err error
	if m.host {
		m.term = w.nextTerm(m)
		leases := make([]Lease, 0, len(m.leases))
		for _, id := range sortedKeys(m.leases) {
			leases = append(leases, m.leases[id])
		}
		p.host, err = NewHost(HostConfig{Self: self, Term: m.term, Leases: leases, Cursor: m.cursor, Floor: m.floor, Timing: w.tm, Partial: w.partial}, w.now)
		if err != nil {
			w.failf("host does not start: %v", err)
		}
		w.check.own(addr.Incarnation{Node: 0, Generation: addr.Generation(m.term)}, p)
	}
	p.member, err = NewMember(MemberConfig{Self: self, Previous: m.incarnation, Term: m.known, Timing: w.tm}, w.now)
	if err != nil {
		w.failf("member does not start: %v", err)
	}
	p.ticks()
	return p
}

// nextTerm is the rule of the state directory: above the last term, and above the
// age of the cluster in seconds by the machine's clock.
func (w *world) nextTerm(m *machine) uint64 {
	age := (w.now.Sub(w.start) - m.late) / time.Second
	if w.countsTerms {
		age = 0
	}
	return max(m.term, uint64(max(age, 0))) + 1
}

// next returns when the process is to be ticked next.
func (p *proc) next() time.Time {
	next := deadline{p.member.Next()}
	if p.host != nil {
		next.or(p.host.Next())
	}
	return next.Time
}

// arm sets the timer of the process anew, which goes off up to a millisecond
// late. It is called after every step.
func (p *proc) arm() {
	at := later(p.next(), p.w.now)
	if p.dead || p.paused || (!p.armed.IsZero() && !at.Before(p.armed)) {
		return
	}
	late := time.Duration(p.w.rng.IntN(1000)) * time.Microsecond
	p.armed = at.Add(late)
	mine := p.armed
	p.w.after(mine.Sub(p.w.now), func() {
		if p.armed.Equal(mine) {
			p.armed = time.Time{}
			p.ticks()
		}
	})
}

// ticks feeds a Tick to each machine, after which nothing may be due.
func (p *proc) ticks() {
	if p.dead || p.paused {
		return
	}
	p.w.wakes++
	if p.host != nil {
		p.perform(p.hostStep(Tick{}), 1)
	}
	if !p.dead {
		p.stepMember(Tick{})
	}
	if !p.dead && !p.next().After(p.w.now) {
		p.w.failf("machine %d: after a Tick the next is due at %v", p.at.index, p.next().Sub(p.w.start))
	}
}

// nosy feeds Ticks that Next has not asked for, which may cause no more than a
// ping: if one does, Next has missed a deadline.
func (w *world) nosy() {
	w.after(time.Duration(1+w.rng.IntN(40))*time.Millisecond, w.nosy)
	for _, m := range w.machines {
		if m.proc != nil && !m.proc.paused {
			m.proc.nose()
		}
	}
}

func (p *proc) nose() {
	due := p.next()
	if !due.After(p.w.now) {
		return
	}
	if p.host != nil {
		if out := p.host.Step(p.w.now, Tick{}); len(out) != 0 {
			p.w.failf("machine %d: the host was due at %v only, and does %+v", p.at.index, due.Sub(p.w.start), out)
		}
	}
	out := p.member.Step(p.w.now, Tick{})
	for _, a := range out {
		send, _ := a.(Send)
		if _, ping := send.Message.(Ping); !ping {
			p.w.failf("machine %d: the member was due at %v only, and does %+v", p.at.index, due.Sub(p.w.start), a)
		}
	}
	p.perform(out, 0)
}

// to runs f at p in d, after the functions that wait there if p is paused. Inputs
// of a dead process are lost.
func (w *world) to(p *proc, d time.Duration, f func()) {
	w.after(d, func() {
		switch {
		case p.dead:
		case p.paused:
			p.backlog = append(p.backlog, f)
		default:
			f()
		}
	})
}

// pause stops p for d; then it finds everything that came meanwhile.
func (w *world) pause(m *machine, d time.Duration) {
	p := m.proc
	if p == nil || p.paused {
		return
	}
	p.paused, m.touched = true, true
	w.after(d, func() {
		if p.dead {
			return
		}
		p.paused = false
		backlog := p.backlog
		p.backlog = nil
		for _, f := range backlog {
			if !p.dead {
				f()
			}
		}
		if !p.dead {
			p.ticks()
		}
	})
}

// crash ends p at once. Its sessions end with a reset wherever packets pass.
func (w *world) crash(m *machine) { w.kill(m, DownEnded) }

func (w *world) kill(m *machine, cause DownCause) {
	p := m.proc
	if p == nil {
		return
	}
	p.dead, m.proc, m.touched = true, nil, true
	for _, id := range sortedKeys(p.conns) {
		c := p.conns[id]
		w.shut(c, c.side(p), cause)
	}
	p.conns = nil
}

// side returns which end of c is at p.
func (c *conn) side(p *proc) int {
	if c.ends[0] == p {
		return 0
	}
	return 1
}

// shut ends c from one side; the other notices it unless a cut is in the way.
func (w *world) shut(c *conn, side int, cause DownCause) {
	if !c.open {
		return
	}
	c.open = false
	from, to := c.ends[side], c.ends[1-side]
	delete(from.conns, c.ids[side])
	if !w.passes(from.at, to.at) {
		return // a sender finds out later
	}
	at := w.arrival(c, side)
	w.to(to, at, func() { w.ended(c, 1-side, cause) })
}

// ended notifies one end of c that it is over.
func (w *world) ended(c *conn, side int, cause DownCause) {
	p := c.ends[side]
	if p.conns[c.ids[side]] != c {
		return
	}
	delete(p.conns, c.ids[side])
	p.deliver(side, Down{Session: c.ids[side], Cause: cause})
}

// arrival returns in how long the next packet of a side arrives, after those
// before it.
func (w *world) arrival(c *conn, side int) time.Duration {
	at := w.now.Add(w.delay())
	if at.Before(c.last[side]) {
		at = c.last[side]
	}
	c.last[side] = at
	return at.Sub(w.now)
}

// deliver feeds an input that exists for both machines.
func (p *proc) deliver(side int, in interface {
	HostInput
	MemberInput
}) {
	if p.dead {
		return
	}
	if side == 1 {
		p.stepHost(in)
	} else {
		p.stepMember(in)
	}
}

// transmit sends m from one side of c.
func (w *world) transmit(c *conn, side int, m Message) {
	if w.drops != nil && w.drops(c, side, m) {
		return
	}
	switch m.(type) {
	case Ping, Pong:
		from, to := c.ends[side], c.ends[1-side]
		if c.open && w.carries(from.at, to.at) && w.rng.Float64() >= w.loss {
			w.to(to, w.delay(), func() { w.arrive(c, side, m) })
		}
		return
	}
	c.wait[side] = append(c.wait[side], m)
	if len(c.wait[side]) == 1 {
		w.pump(c, side)
	}
}

// pump moves the messages that wait at one side, once packets pass. A closed or dead
// other end answers with a reset.
func (w *world) pump(c *conn, side int) {
	from, to := c.ends[side], c.ends[1-side]
	if from.dead || from.conns[c.ids[side]] != c {
		return
	}
	if !w.carries(from.at, to.at) {
		w.after(50*time.Millisecond, func() { w.pump(c, side) })
		return
	}
	if !c.open || to.dead {
		w.to(from, w.delay(), func() { w.ended(c, side, DownEnded) })
		return
	}
	for _, m := range c.wait[side] {
		w.to(to, w.arrival(c, side), func() { w.arrive(c, side, m) })
	}
	c.wait[side] = nil
}

// arrive hands m to the other side.
func (w *world) arrive(c *conn, side int, m Message) {
	to := c.ends[1-side]
	if to.conns[c.ids[1-side]] == c {
		to.deliver(1-side, Received{Session: c.ids[1-side], Message: m})
	}
}

// dial answers a member's DialHost.
func (w *world) dial(p *proc) {
	if p.host != nil {
		w.to(p, 0, func() { p.stepMember(Connected{Session: LocalSession}) })
		return
	}
	h := w.hosts[w.rng.IntN(len(w.hosts))]
	if !w.reaches(p.at, h) {
		d := 500 * time.Millisecond
		if h.proc == nil && w.passes(p.at, h) && w.passes(h, p.at) {
			d = w.delay()
		}
		w.to(p, d, func() { p.stepMember(DialFailed{}) })
		return
	}
	w.to(p, w.delay()+w.delay(), func() {
		if !w.reaches(p.at, h) {
			p.stepMember(DialFailed{})
			return
		}
		b := h.proc
		c := &conn{ends: [2]*proc{p, b}, open: true}
		for i, e := range c.ends {
			e.sessions++
			c.ids[i] = e.sessions
			e.conns[e.sessions] = c
		}
		p.stepMember(Connected{Session: c.ids[0]})
	})
}

// probe finds out over the data path whether uuid and epoch live at a.
func (w *world) probe(p *proc, uuid addr.UUID, epoch uint64, addresses []string, found func(outcome RedialOutcome)) {
	var m *machine
	for _, o := range w.machines {
		if len(addresses) > 0 && addresses[0] == fmt.Sprintf("m%d:1", o.index) {
			m = o
		}
	}
	if m == nil || !w.passes(p.at, m) || !w.passes(m, p.at) || (m.proc != nil && m.proc.paused) {
		return // no answer
	}
	outcome := RedialFailed
	if m.proc != nil && m.uuid == uuid {
		outcome = RedialNewer
		if m.proc.epoch == epoch {
			outcome = RedialAlive
		}
	}
	w.to(p, w.delay()+w.delay(), func() { found(outcome) })
}
