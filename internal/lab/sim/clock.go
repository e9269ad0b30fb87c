package sim

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// A clock is virtual time and the queue of future events. Events of one moment happen
// in the order in which they were asked for.
type clock struct {
	now   time.Duration
	asked uint64
	queue []event       // a heap, earliest first
	done  uint64        // events that have happened
	once  int           // events that have happened at the moment of the last one
	last  time.Duration // its moment
}

// maxAtOnce bounds the events of one moment: time passes in every honest run.
const maxAtOnce = 1_000_000

// stuck reports whether something went round in circles.
func (c *clock) stuck() bool { return c.once >= maxAtOnce }

type event struct {
	at  time.Duration
	seq uint64
	run func()
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// after has f run in d.
func (c *clock) after(d time.Duration, f func()) {
	c.asked++
	c.push(event{c.now + max(d, 0), c.asked, f})
}

// until lets time pass up to end. Nothing happens any more when it is stuck.
func (c *clock) until(end time.Duration) {
	for len(c.queue) > 0 && c.queue[0].at <= end && !c.stuck() {
		e := c.pop()
		if e.at > c.now {
			c.once = 0
		}
		c.now, c.last = e.at, e.at
		c.done++
		c.once++
		e.run()
	}
	c.now = end
}

// push and pop keep a heap of four children a node: it is flatter than one of
// two, and most events are soon.
func (c *clock) push(e event) {
	c.queue = append(c.queue, e)
	i := len(c.queue) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&c.queue[up]) {
			break
		}
		c.queue[i] = c.queue[up]
		i = up
	}
	c.queue[i] = e
}

func (c *clock) pop() event {
	first := c.queue[0]
	n := len(c.queue) - 1
	last := c.queue[n]
	c.queue[n] = event{}
	c.queue = c.queue[:n]
	if n > 0 {
		c.sink(last)
	}
	return first
}

// sink puts e, which replaces the first event, where it belongs.
func (c *clock) sink(e event) {
	i, n := 0, len(c.queue)
	for {
		child := 4*i + 1
		if child >= n {
			break
		}
		least := child
		for k := child + 1; k < min(child+4, n); k++ {
			if c.queue[k].before(&c.queue[least]) {
				least = k
			}
		}
		if !c.queue[least].before(&e) {
			break
		}
		c.queue[i] = c.queue[least]
		i = least
	}
	c.queue[i] = e
}

// seeded returns the random numbers of one thing that the seed decides, named
// by words and numbers. Each has its own, so that one that draws more, or is
// not there, changes no other.
func seeded(seed uint64, name string, ids ...int) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	for _, id := range ids {
		h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24), '/'})
	}
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// between returns a time from low to high, evenly.
func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(rng.Int64N(int64(high-low)))
}
