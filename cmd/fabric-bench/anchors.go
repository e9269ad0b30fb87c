package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// A source is something that can be measured again and again.
type source struct {
	name    string
	measure func(ctx context.Context, st *stage) (figure, error)

	most, least figure // target of ours/this; 0: none
}

// A contest is a row of the design's table: ours and its anchors, measured in
// turns.
type contest struct {
	key, what, unit string
	ours            source
	anchors         []source
	bound           *figure // without anchors: the most that ours may be
}

// A stage has the sides of contests, which it starts when they are needed.
type stage struct {
	beds   bed
	budget budget
	sides  map[string]side
	failed map[string]error // of starting
}

func newStage(beds bed, b budget) *stage {
	return &stage{beds: beds, budget: b, sides: map[string]side{}, failed: map[string]error{}}
}

func (st *stage) side(ctx context.Context, provider string) (side, error) {
	if s, ok := st.sides[provider]; ok {
		return s, nil
	}
	if err := st.failed[provider]; err != nil {
		return nil, err
	}
	s, err := st.beds.side(ctx, provider)
	if err != nil {
		st.failed[provider] = err
		return nil, err
	}
	st.sides[provider] = s
	return s, nil
}

// close ends all sides.
func (st *stage) close() (err error) {
	for _, s := range st.sides {
		err = errors.Join(err, s.close())
	}
	st.sides = map[string]side{}
	return err
}

// sample measures one repetition of a test.
func (st *stage) sample(ctx context.Context, provider string, t *test, size int64) (sample, error) {
	return st.measure(ctx, provider, t, size, nil)
}

// counted is sample that counts system calls instead of times.
func (st *stage) counted(ctx context.Context, provider string, t *test, size int64) (sample, error) {
	return st.measure(ctx, provider, t, size, newCallCounter)
}

func (st *stage) measure(ctx context.Context, provider string, t *test, size int64, counter counterFunc) (sample, error) {
	s, err := st.side(ctx, provider)
	if err != nil {
		return sample{}, err
	}
	if t.builderFor(s) == nil {
		return sample{}, fmt.Errorf("%s has no %s", provider, t.name)
	}
	out, err := measure(ctx, s, t, job{size: size, seed: 1, pairs: 1}, st.budget, counter)
	if err == nil && out.errors > 0 {
		err = errWrongBytes
	}
	return out, err
}

// by returns a source: the figure of a test over a provider.
func by(provider, name string, size int64) source {
	t := testNamed(name)
	return source{name: provider, measure: func(ctx context.Context, st *stage) (figure, error) {
		s, err := st.sample(ctx, provider, t, size)
		if err != nil {
			return absent, err
		}
		return t.kind.figure(s), nil
	}}
}

// halved is by, with latencies halved.
func halved(provider, name string, size int64) source {
	t := *testNamed(name)
	t.kind = halfTrip
	return source{name: provider, measure: func(ctx context.Context, st *stage) (figure, error) {
		s, err := st.sample(ctx, provider, &t, size)
		if err != nil {
			return absent, err
		}
		return t.kind.figure(s), nil
	}}
}

// allocations returns a source: the allocations of an operation.
func allocations(provider, name string, size int64) source {
	t := testNamed(name)
	return source{name: provider, measure: func(ctx context.Context, st *stage) (figure, error) {
		s, err := st.sample(ctx, provider, t, size)
		return figure(float64(s.mallocs) / float64(max(s.ops, 1))), err
	}}
}

// systemCalls returns a source: the system calls of an operation, at both ends.
func systemCalls(provider, name string, size int64) source {
	t := testNamed(name)
	return source{name: provider, measure: func(ctx context.Context, st *stage) (figure, error) {
		s, err := st.counted(ctx, provider, t, size)
		return figure(float64(s.calls) / float64(max(s.counted, 1))), err
	}}
}

// contextSwitches returns a source: the context switches of an operation, at both
// ends.
func contextSwitches(provider, name string, size int64) source {
	t := testNamed(name)
	return source{name: provider, measure: func(ctx context.Context, st *stage) (figure, error) {
		s, err := st.sample(ctx, provider, t, size)
		return figure(float64(s.switches) / float64(max(s.ops, 1))), err
	}}
}

// allocationsBeyond is the allocations of an operation less those of the anchor.
func allocationsBeyond(provider, anchor, name string, size int64) source {
	ours, raw := allocations(provider, name, size), allocations(anchor, name, size)
	return source{name: provider, measure: func(ctx context.Context, st *stage) (figure, error) {
		a, err := ours.measure(ctx, st)
		if err != nil {
			return absent, err
		}
		b, err := raw.measure(ctx, st)
		return max(a-b, 0), err
	}}
}

// mixedRatio is p99 of a ping-pong beside bulk over that of one alone.
func mixedRatio(provider string) source {
	return source{name: provider, measure: func(ctx context.Context, st *stage) (figure, error) {
		s, err := st.side(ctx, provider)
		if err != nil {
			return absent, err
		}
		b := &bench{row: newRow(), budget: st.budget, reps: 1, seed: 1, progress: func(string, ...any) {}}
		_, beside, err := b.mixed(ctx, s)
		return beside.P99Ratio, err
	}}
}

// testNamed returns a test that exists.
func testNamed(name string) *test {
	all := tests()
	return all[slices.IndexFunc(all, func(t *test) bool { return t.name == name })]
}

// ucx returns ucx_perftest as a source; pick takes the figure that counts.
func ucx(transport, name string, size, iterations int64, pick func(tools.UCX) float64) source {
	return source{name: "UCX " + name + " " + transport, measure: func(ctx context.Context, _ *stage) (figure, error) {
		r, err := tools.RunUCX(ctx, tools.UCXTest{Transport: transport, Name: name, Size: size, Iterations: iterations, Warmup: iterations / 10})
		return figure(pick(r)), err
	}}
}

func ucxP50(r tools.UCX) float64  { return r.P50 }
func ucxMB(r tools.UCX) float64   { return r.MiB * (1 << 20) / 1e6 }
func ucxRate(r tools.UCX) float64 { return r.Rate }

func fabtests(size int64) source {
	return source{name: "fi_pingpong tcp", measure: func(ctx context.Context, _ *stage) (figure, error) {
		r, err := tools.RunPingPong(ctx, "tcp", size, 5000)
		return figure(r.Micros), err
	}}
}

func iperf() source {
	return source{name: "iperf3", measure: func(ctx context.Context, _ *stage) (figure, error) {
		r, err := tools.RunIperf(ctx, 1)
		return figure(r / 1e6), err
	}}
}

// memcpy copies 1 MiB again and again, as one transfer after the other does.
func memcpy() source {
	return source{name: "memcpy", measure: func(_ context.Context, st *stage) (figure, error) {
		const size = 1 << 20
		from, to := newPattern(1, size).message(0), make([]byte, size)
		limit := max(st.budget.duration, 10*time.Millisecond)
		var n int
		began := time.Now()
		for time.Since(began) < limit {
			copy(to, from)
			n++
		}
		rate := figure(float64(n) * size / 1e6 / time.Since(began).Seconds())
		runtime.KeepAlive(to)
		return rate, nil
	}}
}

// inProcessAtomic adds to a word of this process, one addition after the other.
func inProcessAtomic() source {
	return source{name: "in-process atomic", measure: func(_ context.Context, st *stage) (figure, error) {
		const batch = 1 << 16
		limit := max(st.budget.duration, time.Millisecond)
		var word atomic.Uint64
		began := time.Now()
		for time.Since(began) < limit {
			for range batch {
				word.Add(1)
			}
		}
		return microseconds(time.Since(began)) / figure(word.Load()), nil
	}}
}

// atMostTimes and atLeastTimes give an anchor its target.
func atMostTimes(s source, f figure) source  { s.most = f; return s }
func atLeastTimes(s source, f figure) source { s.least = f; return s }

const mib = 1 << 20

// contests returns the design's table, as far as two ends show it, by the sides
// that they need.
func contests() []contest { return slices.Concat(pathContests(), faultContests()) }

// pathContests returns those of the ways that bytes take.
func pathContests() []contest {
	const micros, mb, perSecond, allocs, calls, switches = "µs", "MB/s", "1/s", "allocs/op", "calls/op", "switches/op"
	none := atMostOf(allocsTolerance)
	return []contest{
		{key: "node-msg", what: "same-node message 8 B, one way, spinning", unit: micros, ours: by(providerAttachLow, "msg_lat", 8),
			anchors: []source{atMostTimes(ucx("posix", "ucp_am_lat", 8, 100_000, ucxP50), 1), by(rawUnix, "msg_lat", 8)}},
		{key: "node-rate", what: "same-node message rate 8 B", unit: perSecond, ours: by(providerAttachLow, "msg_rate", 8),
			anchors: []source{atLeastTimes(ucx("posix", "tag_bw", 8, 500_000, ucxRate), 1), by(rawUnix, "msg_rate", 8)}},
		{key: "node-msg-default", what: "same-node message 8 B, one way, adaptive", unit: micros, ours: by(providerAttach, "msg_lat", 8),
			anchors: []source{by(rawUnix, "msg_lat", 8)}},
		{key: "node-write", what: "same-node RMA write 1 MiB", unit: mb, ours: by(providerAttach, "rma_write_bw", mib),
			anchors: []source{atLeastTimes(ucx("posix", "ucp_put_bw", mib, 2000, ucxMB), 1), memcpy()}},
		{key: "node-read", what: "same-node RMA read 1 MiB", unit: mb, ours: by(providerAttach, "rma_read_bw", mib),
			anchors: []source{atLeastTimes(ucx("posix", "ucp_get", mib, 2000, ucxMB), 1), memcpy()}},
		{key: "node-atomic", what: "same-node atomic, fetch-add", unit: micros, ours: by(providerAttach, "atomic_fadd", 8),
			anchors: []source{inProcessAtomic()}},
		{key: "node-allocs", what: "allocations of a same-node message 8 B", unit: allocs, ours: allocations(providerAttach, "msg_lat", 8), bound: none},
		{key: "node-allocs", what: "allocations of a same-node write 64 KiB", unit: allocs, ours: allocations(providerAttach, "rma_write_lat", 64<<10), bound: none},
		{key: "node-allocs", what: "allocations of a same-node write 8 B", unit: allocs, ours: allocations(providerAttach, "rma_write_lat", 8), bound: none},
		{key: "node-allocs", what: "allocations of a same-node read 64 KiB", unit: allocs, ours: allocations(providerAttach, "rma_read_lat", 64<<10), bound: none},
		{key: "node-calls", what: "system calls of a same-node message 8 B there and back", unit: calls, ours: systemCalls(providerAttach, "msg_lat", 8),
			anchors: []source{systemCalls(rawUnix, "msg_lat", 8)}},
		{key: "node-switches", what: "context switches of a same-node message 8 B there and back", unit: switches,
			ours: contextSwitches(providerAttach, "msg_lat", 8), anchors: []source{contextSwitches(rawUnix, "msg_lat", 8)}},
		{key: "tcp-lat", what: "TCP lane: 8 B write + fence, half round trip, plaintext", unit: micros, ours: halved(providerTCPPlain, "fence_mark_wait", 8),
			anchors: []source{atMostTimes(ucx("tcp", "tag_lat", 8, 10_000, ucxP50), 1), atMostTimes(by(rawTCP, "msg_lat", 8), 1.2), fabtests(8)}},
		{key: "tcp-lat-low", what: "TCP lane: 8 B write + fence, half round trip, plaintext, spinning", unit: micros, ours: halved(providerTCPLow, "fence_mark_wait", 8),
			anchors: []source{atMostTimes(ucx("tcp", "tag_lat", 8, 10_000, ucxP50), 1), atMostTimes(by(rawTCP, "msg_lat", 8), 1.2), fabtests(8)}},
		{key: "tcp-lat-tls", what: "TCP lane: 8 B write + fence, half round trip, TLS", unit: micros, ours: halved(providerTCP, "fence_mark_wait", 8),
			anchors: []source{by(rawTLS, "msg_lat", 8)}},
		{key: "tcp-bw", what: "TCP lane: write 1 MiB, plaintext", unit: mb, ours: by(providerTCPPlain, "rma_write_bw", mib),
			anchors: []source{atLeastTimes(ucx("tcp", "tag_bw", mib, 500, ucxMB), 1), atLeastTimes(by(rawTCP, "msg_bw", mib), 1), iperf()}},
		{key: "tcp-atomic", what: "atomics over TCP, fetch-add, plaintext", unit: micros, ours: by(providerTCPPlain, "atomic_fadd", 8),
			anchors: []source{atMostTimes(ucx("tcp", "ucp_fadd", 8, 10_000, ucxP50), 0.6)}},
		{key: "tcp-atomic-low", what: "atomics over TCP, fetch-add, plaintext, spinning", unit: micros, ours: by(providerTCPLow, "atomic_fadd", 8),
			anchors: []source{atMostTimes(ucx("tcp", "ucp_fadd", 8, 10_000, ucxP50), 0.6)}},
		{key: "tcp-atomic-tls", what: "atomics over TCP, fetch-add, TLS", unit: micros, ours: by(providerTCP, "atomic_fadd", 8),
			anchors: []source{by(rawTLS, "atomic_fadd", 8)}},
		{key: "tcp-mixed", what: "TCP lane: p99 of a ping-pong beside bulk, over p99 alone, plaintext", unit: "×", ours: mixedRatio(providerTCPPlain), bound: atMostOf(3)},
		{key: "tcp-allocs", what: "allocations of a write 64 KiB over TCP, plaintext", unit: allocs, ours: allocations(providerTCPPlain, "rma_write_lat", 64<<10), bound: none},
		{key: "tcp-allocs", what: "allocations of a write 8 B over TCP, plaintext", unit: allocs, ours: allocations(providerTCPPlain, "rma_write_lat", 8), bound: none},
		{key: "tcp-allocs", what: "allocations of a read 64 KiB over TCP, plaintext", unit: allocs, ours: allocations(providerTCPPlain, "rma_read_lat", 64<<10), bound: none},
		{key: "tcp-calls", what: "system calls of a write 64 KiB over TCP, plaintext", unit: calls, ours: systemCalls(providerTCPPlain, "rma_write_lat", 64<<10),
			anchors: []source{systemCalls(rawTCP, "rma_write_lat", 64<<10)}},
		{key: "tcp-tls", what: "TCP lane: write 1 MiB, TLS", unit: mb, ours: by(providerTCP, "rma_write_bw", mib),
			anchors: []source{atLeastTimes(by(rawTLS, "msg_bw", mib), 0.95)}},
		{key: "tcp-mixed-tls", what: "TCP lane: p99 of a ping-pong beside bulk, over p99 alone, TLS", unit: "×", ours: mixedRatio(providerTCP), bound: atMostOf(3)},
		{key: "tcp-setup", what: "TCP lane: a connect until it is accepted, on a link that exists, TLS", unit: micros, ours: by(providerTCP, "conn_setup", 1),
			anchors: []source{by(rawTCP, "conn_setup", 1), by(rawTLS, "conn_setup", 1)}},
		{key: "quic-lat", what: "QUIC stream: message 64 B, half round trip", unit: micros, ours: by(providerQUIC, "msg_lat", 64),
			anchors: []source{atMostTimes(by(rawProvider, "msg_lat", 64), 1.15)}},
		{key: "quic-bw", what: "QUIC stream: messages of 1 MiB", unit: mb, ours: by(providerQUIC, "msg_bw", mib),
			anchors: []source{atLeastTimes(by(rawProvider, "msg_bw", mib), 0.95)}},
		{key: "quic-setup", what: "QUIC: a connect until it is accepted, on a link that exists", unit: micros, ours: by(providerQUIC, "conn_setup", 1),
			anchors: []source{by(rawProvider, "conn_setup", 1), by(rawTCP, "conn_setup", 1), by(rawTLS, "conn_setup", 1)}},
		{key: "quic-calls", what: "system calls of a QUIC message 64 B there and back", unit: calls, ours: systemCalls(providerQUIC, "msg_lat", 64),
			anchors: []source{systemCalls(rawProvider, "msg_lat", 64)}},
		{key: "quic-switches", what: "context switches of a QUIC message 64 B there and back", unit: switches,
			ours: contextSwitches(providerQUIC, "msg_lat", 64), anchors: []source{contextSwitches(rawProvider, "msg_lat", 64)}},
		{key: "quic-allocs", what: "allocations of a QUIC message 64 B beyond those of quic-go", unit: allocs,
			ours: allocationsBeyond(providerQUIC, rawProvider, "msg_lat", 64), bound: atMostOf(1)},
		{key: "quic-allocs", what: "allocations of a QUIC write 64 B beyond those of quic-go", unit: allocs,
			ours: allocationsBeyond(providerQUIC, rawProvider, "rma_write_lat", 64), bound: atMostOf(1)},
	}
}

// keyFaultsOff is of what a fault layer costs that has nothing to do.
const keyFaultsOff = "faults-off"

// faultContests hold two pairs of fabricds against each other: with --enable-faults
// and no rule, and without.
func faultContests() (all []contest) {
	const micros, mb = "µs", "MB/s"
	for _, pair := range []struct{ over, with, without string }{
		{"TCP", providerFaultsTCP, providerAttachTCP}, {"QUIC", providerFaultsQUIC, providerAttachQUIC},
	} {
		for _, row := range []struct {
			what, unit, test string
			size             int64
		}{
			{"message 64 B, one way", micros, "msg_lat", 64},
			{"messages of 64 KiB", mb, "msg_bw", 64 << 10},
			{"write 64 B, half round trip", micros, "rma_write_lat", 64},
			{"write 1 MiB", mb, "rma_write_bw", mib},
		} {
			all = append(all, contest{key: keyFaultsOff, what: "faults enabled, no rule: " + row.what + ", " + pair.over, unit: row.unit,
				ours: by(pair.with, row.test, row.size), anchors: []source{by(pair.without, row.test, row.size)}})
		}
	}
	return all
}

// allocsTolerance is what counts as no allocation: the runtime's own, of timers
// and collections, are among what is counted.
const allocsTolerance = figure(0.05)

// anchorOptions is what the flags of anchors say.
type anchorOptions struct {
	reps         int
	duration     time.Duration
	fabricd      string
	kills, stops int
	stock        int
	splits       int
	calms        int
	idle         time.Duration
	format       string
	quiet        bool
}

func (o *anchorOptions) check() error {
	switch {
	case o.reps < 1 || o.reps > 1000:
		return usagef("--reps %d: 1 to 1000", o.reps)
	case o.duration < time.Millisecond || o.duration > time.Minute:
		return usagef("--duration %v: 1ms to 1m", o.duration)
	case o.kills < 0 || o.kills > 10_000 || o.stops < 0 || o.stops > 10_000:
		return usagef("--kills %d, --stops %d: 0 to 10000", o.kills, o.stops)
	case o.stock < 0 || o.stock > 1000:
		return usagef("--stock %d: 0 to 1000", o.stock)
	case o.splits < 0 || o.splits > 1000:
		return usagef("--splits %d: 0 to 1000", o.splits)
	case o.calms < 0 || o.calms > 1000:
		return usagef("--calms %d: 0 to 1000", o.calms)
	case o.idle < 0 || o.idle > time.Hour:
		return usagef("--idle %v: up to 1h", o.idle)
	case o.format != "table" && o.format != "json":
		return usagef("--format %q: table or json", o.format)
	}
	return nil
}

func (a *app) anchorsCommand() *cobra.Command {
	o := &anchorOptions{}
	cmd := &cobra.Command{
		Use: "anchors [ROW...]", Short: "Measure every target of the design beside its anchor",
		Long: `anchors measures, in one run and on the same cores, every row of the design's
table of targets: ours and its anchors in turns, each repetition's ratio, and
whether the target is reached. Anchors are memcpy, sockets and quic-go without
us, and, where they are installed (make bench-anchors), ucx_perftest,
fi_pingpong and iperf3. The rows of faults-off are two pairs of fabricd that the
applications attach to: with --enable-faults and no rule, and without, which is their
anchor.

Rows: ` + strings.Join(anchorKeys(), ", "),
		Example: `  fabric-bench anchors
  fabric-bench anchors quic-lat quic-bw --reps 9
  fabric-bench anchors faults-off
  fabric-bench anchors --kills 50 --stops 50 --format json > targets.json`,
	}
	f := cmd.Flags()
	f.IntVar(&o.reps, "reps", 5, "repetitions")
	f.DurationVar(&o.duration, "duration", 300*time.Millisecond, "about how long a repetition of ours takes")
	f.StringVar(&o.fabricd, "fabricd", "", "the fabricd to run (default: beside this program, ./bin, $PATH)")
	o.clusterFlags(f)
	f.StringVar(&o.format, "format", "table", "table or json")
	f.BoolVar(&o.quiet, "quiet", false, "no progress on standard error")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		if err := checkRows(args); err != nil {
			return err
		}
		d := a.newDocument(thisMachine())
		err := a.measureTargets(cmd.Context(), d, o, args)
		if cmd.Context().Err() != nil {
			err = errInterrupted
		}
		return errors.Join(err, a.report(d, o.format))
	}
	return cmd
}

// clusterFlags adds the flags that say how much is measured of eight daemons.
func (o *anchorOptions) clusterFlags(f *pflag.FlagSet) {
	f.IntVar(&o.kills, "kills", 14, "how many of eight daemons to kill; 0: none")
	f.IntVar(&o.stops, "stops", 7, "how many of eight daemons to stop, for fast and for normal detection; 0: none")
	f.IntVar(&o.stock, "stock", stockDefault, "how many of eight members of memberlist alone to kill, and to stop; 0: none")
	f.IntVar(&o.splits, "splits", splitsByDefault, "how often to split eight daemons in two, for fast and for normal detection; 0: never")
	f.IntVar(&o.calms, "calms", calmsDefault, "how often to leave eight daemons alone on a machine that is too busy, for "+calmByDefault.String()+" each; 0: never")
	f.DurationVar(&o.idle, "idle", idleByDefault, fmt.Sprintf("how long to watch eight idle daemons, each of %d times; 0: not", idleWindows))
}

// The keys of rows that have no contest.
const (
	keyLoss  = "loss"
	keyHeal  = "heal"
	keyFalse = "false"
	keyIdle  = "idle"
)

// checkRows refuses rows that there are not.
func checkRows(keys []string) error {
	for _, key := range keys {
		if !slices.Contains(anchorKeys(), key) {
			return usagef("there is no row %q; there are %s", key, strings.Join(anchorKeys(), ", "))
		}
	}
	return nil
}

// anchorKeys returns what anchors takes.
func anchorKeys() (keys []string) {
	for _, c := range contests() {
		keys = append(keys, c.key)
	}
	return slices.Compact(append(keys, keyLoss, keyHeal, keyFalse, keyIdle))
}

// measureTargets measures the rows with these keys, all without any.
func (a *app) measureTargets(ctx context.Context, d *Document, o *anchorOptions, keys []string) error {
	wanted := func(key string) bool { return len(keys) == 0 || slices.Contains(keys, key) }
	progress := a.progress(o.quiet)
	var st *stage
	last := ""
	for _, c := range contests() {
		if !wanted(c.key) {
			continue
		}
		// A provider at a time, so that nothing of another one runs beside it.
		if c.ours.name != last {
			if err := st.end(); err != nil {
				return err
			}
			st, last = newStage(bed{fabricd: o.fabricd}, budget{duration: o.duration, warmup: -1}), c.ours.name
		}
		rows, err := c.hold(ctx, st, o.reps, progress)
		d.Targets = append(d.Targets, rows...)
		if err != nil {
			return errors.Join(err, st.end())
		}
	}
	if err := st.end(); err != nil {
		return err
	}
	return a.measureClusters(ctx, d, o, wanted)
}

// end closes a stage, which may be none.
func (st *stage) end() error {
	if st == nil {
		return nil
	}
	return st.close()
}

// hold measures ours and the anchors in turns, each first in every other turn.
// What cannot be measured says why; only the end of ctx is a failure.
func (c contest) hold(ctx context.Context, st *stage, reps int, progress func(string, ...any)) ([]Target, error) {
	sources := append([]source{c.ours}, c.anchors...)
	figures, whys := make([][]figure, len(sources)), make([]error, len(sources))
	for rep := range reps {
		for i := range sources {
			k := (i + rep) % len(sources)
			if whys[k] != nil {
				continue
			}
			v, err := sources[k].measure(ctx, st)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				whys[k] = err
				continue
			}
			figures[k] = append(figures[k], v)
			progress("%s: %s, repetition %d of %d", c.what, sources[k].name, rep+1, reps)
		}
	}
	return c.rows(sources, figures, whys), nil
}

// rows turns figures into rows of the table, one for each anchor.
func (c contest) rows(sources []source, figures [][]figure, whys []error) (rows []Target) {
	base := Target{Key: c.key, What: c.what, Unit: c.unit, Ours: spreadOf(figures[0]), Raw: spreadOf(nil), Ratio: spreadOf(nil), AtMost: c.bound}
	if whys[0] != nil {
		base.Why = whys[0].Error()
	}
	if len(sources) == 1 {
		return []Target{base.judge()}
	}
	for k := 1; k < len(sources); k++ {
		t := base
		t.Anchor, t.Raw = sources[k].name, spreadOf(figures[k])
		if f := sources[k].most; f > 0 {
			t.AtMost = &f
		}
		if f := sources[k].least; f > 0 {
			t.AtLeast = &f
		}
		var ratios []figure
		for i := range min(len(figures[0]), len(figures[k])) {
			ratios = append(ratios, figures[0][i]/figures[k][i])
		}
		t.Ratio = spreadOf(ratios)
		if whys[k] != nil && t.Why == "" {
			t.Why = whys[k].Error()
		}
		rows = append(rows, t.judge())
	}
	return rows
}
