package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"
)

// errNoMesh says that a pattern needs nodes that this run cannot start.
var errNoMesh = errors.New("it needs nodes that this program starts")

// A flow is a connection from one node of a mesh to another.
type flow struct{ from, to int }

// A flowSide is flows of a mesh, one for each pair.
type flowSide struct {
	*mesh
	flows []flow
}

func (s *flowSide) about() (provider, security string)     { return s.provider, s.security }
func (s *flowSide) traffic(context.Context) (int64, error) { return 0, errNoMeter }
func (s *flowSide) processes() []int                       { return s.others }
func (s *flowSide) close() error                           { return nil }
func (s *flowSide) dial(ctx context.Context, i int) (*channel, error) {
	f := s.flows[i]
	return dialNode(ctx, s.nodes[f.from], s.servers[f.to].addr())
}

// meshNodes is how many nodes the patterns have.
const meshNodes = 4

// flowsOf returns the flows of a pattern among n nodes.
func flowsOf(pattern string, n int) (flows []flow) {
	for i := range n {
		switch {
		case pattern == "ring":
			flows = append(flows, flow{i, (i + 1) % n})
		case pattern == "alltoall":
			for j := range n {
				if i != j {
					flows = append(flows, flow{i, j})
				}
			}
		case i == 0:
		case pattern == "incast":
			flows = append(flows, flow{i, 0})
		case pattern == "fanout":
			flows = append(flows, flow{0, i})
		}
	}
	return flows
}

func patternTests() []*test {
	pattern := func(name, help string) *test {
		return &test{name: name, group: groupPatterns, dir: "send", kind: bandwidth, special: runPattern(name),
			load: onMessages(opSink), anchor: onMessages(opSink), help: help}
	}
	return []*test{
		pattern("pairs", "msg_bw by 1, 2, 4 and 8 pairs at once, and as many as there are processors: sum and fairness"),
		pattern("incast", "msg_bw from every node to the first of four"),
		pattern("fanout", "msg_bw from the first of four nodes to every other"),
		pattern("alltoall", "msg_bw from every one of four nodes to every other"),
		pattern("ring", "msg_bw from each of four nodes to the next"),
	}
}

// runPattern returns the special of a pattern.
func runPattern(name string) func(context.Context, *bench, []int64) ([]Result, error) {
	return func(ctx context.Context, b *bench, sizes []int64) (all []Result, err error) {
		t := *patternTests()[slices.IndexFunc(patternTests(), func(t *test) bool { return t.name == name })]
		t.special = nil
		for _, size := range sizes {
			results, err := b.pattern(ctx, &t, size)
			all = append(all, results...)
			if err != nil {
				return all, err
			}
		}
		return all, nil
	}
}

// pattern measures a pattern at one size.
func (b *bench) pattern(ctx context.Context, t *test, size int64) (all []Result, err error) {
	one := *b
	if t.onMesh() {
		m, err := b.needMesh(ctx)
		if err != nil {
			return nil, err
		}
		flows := flowsOf(t.name, len(m.nodes))
		one.ours, one.anchor, one.pairs = &flowSide{m, flows}, nil, int64(len(flows))
		r, _, err := one.run(ctx, t, size)
		return []Result{r}, err
	}
	for _, pairs := range pairCounts(runtime.NumCPU()) {
		if b.pairs > 0 && pairs > b.pairs {
			break
		}
		one.pairs = pairs
		r, raw, err := one.run(ctx, t, size)
		if err != nil {
			return all, err
		}
		all = append(append(all, r), raw...)
	}
	return all, nil
}

// pairCounts returns how many pairs pairs has on so many processors, ascending.
func pairCounts(processors int) []int64 {
	counts := []int64{1, 2, 4, 8, min(int64(processors), mostPairs)}
	slices.Sort(counts)
	return slices.Compact(counts)
}

// onMesh reports whether a test is measured on a mesh of meshNodes, and not on the
// two nodes of the others.
func (t *test) onMesh() bool { return t.group == groupPatterns && t.name != "pairs" }

// needMesh returns the nodes of patterns, which it starts once.
func (b *bench) needMesh(ctx context.Context) (*mesh, error) {
	if b.mesh != nil {
		return b.mesh, nil
	}
	if b.meshOf == nil {
		return nil, errNoMesh
	}
	m, err := b.meshOf(ctx, meshNodes)
	b.mesh = m
	return m, err
}

// The bulk beside which conn_mixed measures.
const (
	bulkSize  = 64 << 10 // bytes of a message
	bulkCount = 64       // messages between two answers
)

// besideBulk measures a ping-pong alone and beside a connection that sends all
// the time, in turns.
func besideBulk(ctx context.Context, b *bench, _ []int64) (all []Result, err error) {
	for _, s := range []side{b.ours, b.anchor} {
		if s == nil {
			continue
		}
		alone, beside, err := b.mixed(ctx, s)
		if err != nil {
			return all, err
		}
		all = append(all, alone, beside)
	}
	return all, nil
}

func (b *bench) mixed(ctx context.Context, s side) (alone, beside Result, err error) {
	t := &test{name: "conn_mixed", dir: "alone", kind: echoTrip, window: one, load: onMessages(opEcho), anchor: onMessages(opEcho)}
	j := job{size: 64, seed: b.seed, check: b.check, pairs: 1}
	var quiet, loaded []sample
	var ratios, bulk []figure
	for rep := range b.reps {
		q, err := measure(ctx, s, t, j, b.budget, nil)
		if err != nil {
			return alone, beside, err
		}
		flood, err := startFlood(ctx, s)
		if err != nil {
			return alone, beside, err
		}
		l, err := measure(ctx, s, t, j, b.budget, nil)
		rate, floodErr := flood.stop()
		if err = first(err, floodErr); err != nil {
			return alone, beside, err
		}
		quiet, loaded, bulk = append(quiet, q), append(loaded, l), append(bulk, rate)
		ratios = append(ratios, figure(l.lat.ValueAtPercentile(99))/figure(max(q.lat.ValueAtPercentile(99), 1)))
		b.progress("conn_mixed: repetition %d of %d", rep+1, b.reps)
	}
	alone = t.kind.reduce(b.describe(t, j, s), quiet)
	t.dir = "beside bulk"
	beside = t.kind.reduce(b.describe(t, j, s), loaded)
	beside.Conns, beside.P99Ratio, beside.BWAvg = 2, median(ratios), median(bulk)
	return alone, beside, nil
}

// A flood is a connection that sends without end.
type flood struct {
	ch    *channel
	quit  chan struct{}
	done  chan error
	began time.Time
	sent  int64 // bytes; of the sender until done
}

func startFlood(ctx context.Context, s side) (*flood, error) {
	ch, err := s.dial(ctx, 0)
	if err != nil {
		return nil, err
	}
	f := &flood{ch: ch, quit: make(chan struct{}), done: make(chan error, 1), began: time.Now()}
	stop := context.AfterFunc(ctx, ch.abort)
	go func() { // ends with stop, or with the connection
		defer stop()
		f.done <- f.send()
	}()
	return f, nil
}

func (f *flood) send() error {
	l := newMessages(f.ch, job{size: bulkSize, seed: 1}, opSink)
	for {
		select {
		case <-f.quit:
			return nil
		default:
		}
		if err := l.begin(bulkCount); err != nil {
			return err
		}
		if err := repeat(bulkCount, l.op); err != nil {
			return err
		}
		if _, err := l.drain(); err != nil {
			return err
		}
		f.sent += bulkCount * bulkSize
	}
}

// stop ends the flood and returns its bandwidth in 10⁶ bytes per second.
func (f *flood) stop() (figure, error) {
	close(f.quit)
	err := <-f.done
	rate := figure(float64(f.sent) / 1e6 / time.Since(f.began).Seconds())
	return rate, first(err, f.ch.close())
}
