package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// mistake selects a mistake of the table in orders_test.go; empty: none.
var mistake = os.Getenv("ATTACH_TEST_MISTAKE")

// A story is a program for the two sides of a shared-memory path. The far end reads the bytes that
// the near end writes.
type story struct {
	name    string
	release int
	filled  []int // the pieces that lie in the ring before, by their bytes
	ends    bool  // a side hangs up
	sides   func(o *order, near, far *shmPath) []*side
}

var stories = []story{
	{"pieces", 25, nil, false, func(o *order, near, far *shmPath) []*side {
		return []*side{writes(o, near, 0, 1, 1, 1), reads(o, far, 3, 64)}
	}},
	{"room-reported-at-once", 0, []int{1, 1, 1, 1}, false, func(o *order, near, far *shmPath) []*side {
		return []*side{writes(o, near, 4, 1, 1), reads(o, far, 6, 64)}
	}},
	{"room-for-one", 25, []int{1, 1, 1, 1}, false, func(o *order, near, far *shmPath) []*side {
		return []*side{writes(o, near, 4, 1), reads(o, far, 5, 1)}
	}},
	{"room-reported-late", ring.MaxRelease, []int{1, 1, 1, 1}, false, func(o *order, near, far *shmPath) []*side {
		return []*side{writes(o, near, 4, 1, 1), reads(o, far, 6, 2)}
	}},
	{"room-for-long-pieces", ring.MaxRelease, []int{1024, 1024, 1024}, false, func(o *order, near, far *shmPath) []*side {
		return []*side{writes(o, near, 3072, 2000), reads(o, far, 5072, 1500)}
	}},
	{"end-behind-pieces", 25, nil, true, func(o *order, near, far *shmPath) []*side {
		return []*side{then(writes(o, near, 0, 1, 1), func(err error) error { near.hangUp(); return err }), reads(o, far, 2, 64)}
	}},
	{"end-beside-a-writer", 25, []int{1, 1, 1, 1}, true, func(o *order, near, far *shmPath) []*side {
		return []*side{then(writes(o, near, 4, 1), isReset), {name: "reader", run: func() error { far.hangUp(); return nil }}}
	}},
	{"poll-for-pieces", 25, nil, false, func(o *order, near, far *shmPath) []*side {
		return append(o.polls(far, far.data, true), writes(o, near, 0, 1, 1), reads(o, far, 1, 1))
	}},
	{"poll-for-room", 25, []int{1, 1, 1, 1}, false, func(o *order, near, far *shmPath) []*side {
		return append(o.polls(near, near.room, false), writes(o, near, 4, 1), reads(o, far, 4, 64))
	}},
}

// isReset fails unless err is the end of a connection.
func isReset(err error) error {
	if errors.Is(err, status.Reset) {
		return nil
	}
	return fmt.Errorf("it ends with %v, want a reset", err)
}

// TestOrders runs the stories in every order.
func TestOrders(t *testing.T) {
	region, err := shm.Create("orders", proto.RingsSize(tiny(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer region.Release()
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			states, wrong := search(func() *order { return s.set(t, region.Bytes()) })
			if t.Logf("%d states", states); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}

// tiny are the sizes of a ring that is full soon.
func tiny(release int) ring.Params {
	return ring.Params{Slots: ring.MinSlots, Data: ring.MinData, Release: release}
}

// set makes an order of s, in mem.
func (s story) set(t *testing.T, mem []byte) *order {
	p := tiny(s.release)
	clear(mem)
	o := &order{mem: mem, doorbells: map[*shm.Doorbell]*rings{}}
	if o.still = map[int]bool{0: true, 8: true, 192: true, ring.OffReaderPlace: true, ring.OffWriterPlace: true}; !s.ends {
		o.still[4], o.still[196] = true, true
	}
	rings := [2][]byte{mem[:p.Size()], mem[p.Size() : 2*p.Size()]}
	near, far := &shmPath{}, &shmPath{}
	near.room, far.data = o.pair(t)
	near.data, far.room = o.pair(t)
	for i, sp := range []*shmPath{near, far} {
		var err, err2 error
		sp.out, err = ring.NewWriter(rings[i], p)
		sp.in, err2 = ring.NewReader(rings[1-i], p)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		sp.pending, sp.writable, sp.over = sp.in.Pending, sp.out.Room, sp.cut.Load
		sp.in.Ready()
		sp.out.Start(0)
		sp.switched.Store(true)
		sp.reading.Store(true)
	}
	at := 0
	for _, n := range s.filled {
		if k, err := near.out.Write(counted(at, n)); k != n || err != nil {
			t.Fatal(k, err)
		}
		at += n
	}
	o.near, o.far = near, far
	o.sides = s.sides(o, near, far)
	return o
}

// pair makes two doorbells that ring each other.
func (o *order) pair(t *testing.T) (a, b *shm.Doorbell) {
	if last := len(spare) - 1; last >= 0 {
		a, b, spare = spare[last][0], spare[last][1], spare[:last]
	} else {
		f, g, err := shm.DoorbellPair()
		if err == nil {
			a, err = shm.NewDoorbell(f)
		}
		if err == nil {
			b, err = shm.NewDoorbell(g)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	o.doorbells[a], o.doorbells[b] = &rings{peer: b}, &rings{peer: a}
	o.ends = append(o.ends, a, b)
	return a, b
}

// then lets something more happen where s ends.
func then(s *side, more func(error) error) *side {
	run := s.run
	s.run = func() error { return more(run()) }
	return s
}

// counted returns n bytes that count from at.
func counted(at, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(at + i)
	}
	return p
}

// writes sends pieces of so many bytes, which count from at.
func writes(o *order, sp *shmPath, at int, sizes ...int) *side {
	return &side{name: "writer", run: func() error {
		for i, size := range sizes {
			o.only(i)
			n, err := sp.send(context.Background(), counted(at, size))
			if at += n; err != nil {
				return err
			}
		}
		return nil
	}}
}

// reads receives total bytes, as Recv does, so many at a time.
func reads(o *order, sp *shmPath, total, most int) *side {
	return &side{name: "reader", run: func() (err error) {
		o.await(o.receiving, false, "takes its turn")
		for p := make([]byte, most); err == nil && total > 0; {
			o.only(total)
			var n int
			var over bool
			n, over, err = o.read(sp, p)
			switch total -= n; {
			case n == 0 && err == nil && over:
				err = fmt.Errorf("the end comes after %d bytes, and %d before it are lost", o.got, total)
			case n == 0 && err == nil:
				err = sp.awaitData(context.Background())
			}
		}
		o.put(o.receiving, false, "gives its turn")
		return err
	}}
}

// read reads available bytes, for the goroutine that has the turn.
func (o *order) read(sp *shmPath, p []byte) (n int, over bool, err error) {
	n, over, err = sp.read(p)
	for _, b := range p[:n] {
		if o.note(uint64(b)); b != byte(o.got) {
			err = fmt.Errorf("byte %d is %d", o.got, b)
		}
		o.got++
	}
	return n, over, err
}

// polls polls, beside the calls of the same process at sp, until it has received a
// piece, or could send one. The other side of it notifies of rings of b, as
// shm.WatchRead does.
func (o *order) polls(sp *shmPath, b *shm.Doorbell, in bool) []*side {
	notified, r := o.flag(), o.doorbells[b]
	sp.dataWatched.polled, sp.roomWatched.polled = in, !in
	o.flags = append(o.flags, &sp.dataWatched.flag, &sp.roomWatched.flag)
	sp.switched.Store(!in) // else it polls for both
	if in {
		o.receiving = o.flag()
		o.still[ring.OffReaderPlace] = false
	} else {
		o.still[ring.OffWriterPlace] = false
	}
	sp.changed = func() { o.put(notified, true, "notifies the poller") }
	e := &endpoint{polled: pollers{listeners: map[*chan<- struct{}]chan<- struct{}{nil: nil}}}
	e.shmPath.Store(sp)
	poll := func() error {
		for {
			o.only(0)
			switch ev := e.ringEvents(attach.PollOut); {
			case !in && ev&attach.PollOut != 0:
				return nil
			case in && ev&attach.PollIn != 0:
				o.await(o.receiving, false, "takes its turn")
				n, _, err := o.read(sp, make([]byte, 1))
				o.put(o.receiving, false, "gives its turn")
				if n > 0 || err != nil {
					return err
				}
			default:
				o.await(notified, true, "waits for its notification")
			}
		}
	}
	watch := func() error {
		for {
			o.only(0)
			o.step(func() bool { return r.edge && r.ready() }, "wakes at its doorbell", 0, func() uint64 { r.edge = false; return 0 })
			sp.changed()
		}
	}
	return []*side{{name: "poller", run: poll}, {name: "watcher", run: watch, aside: true}}
}
