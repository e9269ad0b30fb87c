package main

import "context"

// rawMemory is the anchor of mapped windows: copies within this process.
const rawMemory = "raw-memcpy"

// An ownMemory is a side of nothing but this process' memory. It has no responder.
type ownMemory struct{}

func (ownMemory) about() (provider, security string)     { return rawMemory, secured(rawMemory) }
func (ownMemory) traffic(context.Context) (int64, error) { return 0, errNoMeter }
func (ownMemory) processes() []int                       { return nil }
func (ownMemory) close() error                           { return nil }

func (ownMemory) dial(context.Context, int) (*channel, error) {
	return &channel{close: func() error { return nil }, abort: func() {}}, nil
}

// A copying load copies from memory into memory, over as many slots as mapped has.
type copying struct {
	passive
	job
	slots    int64
	fill     *pattern
	from, to []byte
}

func newCopying(_ context.Context, _ side, _ *channel, j job) (load, error) {
	slots := slotsOf(j.size)
	c := &copying{job: j, slots: slots, fill: newPattern(j.seed, int(j.size)), from: make([]byte, j.size*slots), to: make([]byte, j.size*slots)}
	c.fill.fill(c.from, slots)
	return c, nil
}

func (c *copying) begin(int64) error {
	wipe(c.to)
	return nil
}

func (c *copying) op(i int64) error {
	at := i % c.slots * c.size
	copy(c.to[at:at+c.size], c.from[at:at+c.size])
	return nil
}

func (c *copying) check(int64) (int64, error) { return 0, nil }

// verify checks every slot behind what is timed.
func (c *copying) verify(ops int64) (int64, error) {
	if !c.job.check || ops < c.slots {
		return 0, nil
	}
	return c.fill.wrong(c.to, c.slots), nil
}
