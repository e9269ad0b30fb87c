package main

import (
	"context"
	"slices"
	"strings"
)

// How many transfers of rma_*_bw are under way at once: of small ones as many as
// an endpoint may have, of large ones fewer. The anchor is bound by the
// transport's windows only; with 64 under way, 64 bytes each cost half as much
// CPU again, since the initiator then waits for the peer every few packets.
const (
	maxUnderWay      = 1024    // transfers; the engine's own bound
	minUnderWay      = 64      // transfers
	maxUnderWayBytes = 4 << 20 // beyond minUnderWay
)

// underWay returns how many transfers of this size are under way at once.
func underWay(size int64) int64 {
	return min(max(maxUnderWayBytes/size, minUnderWay), maxUnderWay)
}

// one is the window of what goes one by one.
func one(int64) int64 { return 1 }

// tests returns what can be measured between two nodes, in the order of the
// report.
func tests() []*test {
	latency, whole, bandwidth := reduction{half: true}, reduction{}, reduction{bandwidth: true}
	echo := reduction{half: true, both: true}
	return []*test{
		{
			name: "msg_lat", dir: "echo", kind: echo, window: one, load: onMessages(opEcho), anchor: onMessages(opEcho),
			help: "a message there and back, half of the round trip",
		},
		{
			name: "msg_bw", dir: "send", kind: bandwidth, load: onMessages(opSink), anchor: onMessages(opSink),
			help: "messages one way until the last has been received",
		},
		{
			name: "rma_write_lat", dir: "write", kind: latency, window: one, load: onWindow(false, synced), anchor: onMessages(opAck),
			help: "a write until it is known to be in the peer's memory, half of it; anchor: a message and a short answer",
		},
		{
			name: "rma_write_bw", dir: "write", kind: bandwidth, window: underWay, load: onWindow(false, streamed), anchor: onMessages(opSink),
			help: "writes, up to 1024 or 4 MiB under way, until the last is in the peer's memory; anchor: messages one way, as many as fit",
		},
		{
			name: "rma_read_lat", dir: "read", kind: latency, window: one, load: onWindow(true, synced), anchor: onMessages(opReply),
			help: "a read until its bytes are here, half of it; anchor: a short message and a long answer",
		},
		{
			name: "rma_read_bw", dir: "read", kind: bandwidth, window: underWay, load: onWindow(true, streamed), anchor: onMessages(opSource),
			help: "reads, up to 1024 or 4 MiB under way, until the last one's bytes are here; anchor: messages towards us, as many as fit",
		},
		{
			name: "fence_mark_wait", dir: "write", kind: whole, window: one, load: onWindow(false, fenced), anchor: onMessages(opAck),
			help: "a write, a mark behind it, and a wait for the mark; anchor: a message and a short answer",
		},
		{
			name: "conn_setup", dir: "connect", kind: whole, sizeless: true, load: onConnects, anchor: onConnects,
			help: "a connect until it is accepted, on a link that exists; anchor: a stream that is opened and answered",
		},
	}
}

func onMessages(op uint64) func(context.Context, side, *channel, job) (load, error) {
	return func(_ context.Context, _ side, ch *channel, j job) (load, error) { return newMessages(ch, j, op), nil }
}

func onWindow(read bool, style rmaStyle) func(context.Context, side, *channel, job) (load, error) {
	return func(ctx context.Context, _ side, ch *channel, j job) (load, error) {
		return newRMA(ctx, ch, j, read, style)
	}
}

func onConnects(ctx context.Context, s side, _ *channel, _ job) (load, error) {
	return &connects{ctx: ctx, side: s}, nil
}

// testsNamed returns the tests of these names, all if there are none.
func testsNamed(names []string) ([]*test, error) {
	all := tests()
	if len(names) == 0 {
		return all, nil
	}
	var picked []*test
	for _, name := range names {
		i := slices.IndexFunc(all, func(t *test) bool { return t.name == name })
		if i < 0 {
			return nil, noTest(name)
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

// clusterTests start daemons of their own and are commands of `run`.
var clusterTests = []string{"fail_detect", "idle"}

// noTest says what there is instead of a test of this name.
func noTest(name string) error {
	if slices.Contains(clusterTests, name) {
		return usagef("%s starts daemons of its own and is run alone: `fabric-bench run %s`", name, name)
	}
	var names []string
	for _, t := range tests() {
		names = append(names, t.name)
	}
	return usagef("there is no test %q; there are %s, and with `run` alone %s",
		name, strings.Join(names, ", "), strings.Join(clusterTests, " and "))
}
