package main

import (
	"context"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/fabric"
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
	if size > commonSize {
		return max(minUnderWay*commonSize/size, 2)
	}
	return min(max(maxUnderWayBytes/size, minUnderWay), maxUnderWay)
}

// one is the window of what goes one by one.
func one(int64) int64 { return 1 }

func onMessages(op uint64) builder {
	return func(_ context.Context, _ side, ch *channel, j job) (load, error) { return newMessages(ch, j, op), nil }
}

func onWindow(model rmaLoad) builder {
	return func(ctx context.Context, _ side, ch *channel, j job) (load, error) { return newRMA(ctx, ch, j, model) }
}

func onConnects(ctx context.Context, s side, _ *channel, _ job) (load, error) {
	return &connects{ctx: ctx, side: s}, nil
}

// The groups of tests, in the order of the report.
const (
	groupMessages     = "messaging"
	groupConnections  = "connections"
	groupRMA          = "rma"
	groupAtomics      = "atomics"
	groupFences       = "fences"
	groupRegistration = "registration"
	groupPatterns     = "patterns"
)

// tests returns what can be measured between nodes, in the order of the report.
func tests() []*test {
	return slices.Concat(messageTests(), connectionTests(), rmaTests(), atomicTests(), fenceTests(), registrationTests(), patternTests())
}

// How the figures of tests are made.
var (
	halfTrip  = reduction{half: true}
	echoTrip  = reduction{half: true, both: true}
	wholeTrip = reduction{}
	bandwidth = reduction{bandwidth: true}
	rate      = reduction{rate: true}
)

func messageTests() []*test {
	return []*test{
		{
			name: "msg_lat", group: groupMessages, dir: "echo", kind: echoTrip, window: one, load: onMessages(opEcho), anchor: onMessages(opEcho),
			help: "a message there and back, half of the round trip",
		},
		{
			name: "msg_bw", large: true, group: groupMessages, dir: "send", kind: bandwidth, windowed: true, load: onMessages(opSink), anchor: onMessages(opSink),
			help: "messages one way until the last has been received",
		},
		{
			name: "msg_bibw", group: groupMessages, dir: "both", kind: reduction{bandwidth: true}, load: newCrossing, anchor: newCrossing,
			help: "messages both ways at the same time; the sum of both",
		},
		{
			name: "msg_rate", group: groupMessages, dir: "send", kind: rate, fixed: 8, windowed: true, load: onMessages(opSink), anchor: onMessages(opSink),
			help: "messages of 8 bytes one way, how many a second",
		},
		{
			name: "msg_fixed_rate", group: groupMessages, dir: "echo", kind: reduction{both: true}, load: newPaced, anchor: newPaced,
			help: "messages at a fixed --rate, each from when it was due until its echo is here",
		},
		{
			name: "msg_mt_lat", group: groupMessages, dir: "echo", kind: echoTrip, window: one, special: manyThreads,
			load: onMessages(opEcho), anchor: onMessages(opEcho),
			help: "msg_lat by 2, 4 and 8 goroutines at once, each on its connection, and by 8 threads",
		},
		{
			name: "msg_burst", group: groupMessages, dir: "echo", kind: reduction{both: true}, window: burstOf, windowed: true,
			load: newBursting, anchor: newBursting,
			help: "bursts of 64 messages, or 4 MiB, out of silence: each from the burst's begin until its echo is here",
		},
	}
}

func connectionTests() []*test {
	return []*test{
		{
			name: "conn_setup", group: groupConnections, dir: "connect", kind: wholeTrip, sizeless: true, load: onConnects, anchor: onConnects,
			beside: []string{rawTCP, rawTLS},
			help:   "a connect until it is accepted, on a link that exists; anchors: a stream that is opened and answered; TCP, and TCP with a TLS handshake, from dial to the first answer",
		},
		{
			name: "conn_close", group: groupConnections, dir: "close", kind: wholeTrip, sizeless: true, load: onCloses,
			help: "a close, until both ends have ended in order",
		},
		{
			name: "conn_scale", group: groupConnections, dir: "connect", sizeless: true, special: scaleConnections,
			help: "1, 10, 100, … connections open at once on one link, each used: connects a second, memory of each",
		},
		{
			name: "conn_mixed", group: groupConnections, dir: "echo", fixed: 64, special: besideBulk,
			help: "msg_lat of 64 bytes beside a connection that sends without end: p99, and the ratio to p99 alone",
		},
	}
}

func rmaTests() []*test {
	return []*test{
		{
			name: "rma_write_lat", large: true, group: groupRMA, dir: "write", kind: halfTrip, window: one, load: onWindow(rmaLoad{}), anchor: onMessages(opAck),
			help: "a write until it is known to be in the peer's memory, half of it; anchor: a message and a short answer",
		},
		{
			name: "rma_write_bw", large: true, group: groupRMA, dir: "write", kind: bandwidth, window: underWay, windowed: true,
			load: onWindow(rmaLoad{style: streamed}), anchor: onMessages(opSink),
			help: "writes, up to 1024 or 4 MiB under way, until the last is in the peer's memory; anchor: messages one way, as many as fit",
		},
		{
			name: "rma_read_lat", large: true, group: groupRMA, dir: "read", kind: halfTrip, window: one, load: onWindow(rmaLoad{read: true}), anchor: onMessages(opReply),
			help: "a read until its bytes are here, half of it; anchor: a short message and a long answer",
		},
		{
			name: "rma_read_bw", large: true, group: groupRMA, dir: "read", kind: bandwidth, window: underWay, windowed: true,
			load: onWindow(rmaLoad{read: true, style: streamed}), anchor: onMessages(opSource),
			help: "reads, up to 1024 or 4 MiB under way, until the last one's bytes are here; anchor: messages towards us, as many as fit",
		},
		{
			name: "rma_bibw", group: groupRMA, dir: "both", kind: bandwidth, window: underWay, load: newCrossWrites, anchor: newCrossing,
			help: "writes both ways at the same time until the last is in either memory; the sum of both; anchor: messages both ways",
		},
		{
			name: "rma_align", group: groupRMA, dir: "write", kind: halfTrip, window: one, special: manyShifts, load: onScatter(shifted(0, 0)),
			help: "rma_write_lat from and to offsets of 0 to 63 bytes, equal and different ones",
		},
		{
			name: "rma_strided", group: groupRMA, dir: "write", kind: wholeTrip, window: func(int64) int64 { return stridedPieces },
			load: onScatter(strided), anchor: onMessages(opAck),
			help: "a block in 16 writes that leave gaps, a mark behind them, and a wait; anchor: a message and a short answer",
		},
		{
			name: "rma_ordered", group: groupRMA, dir: "write", kind: halfTrip, window: one, load: onWindow(rmaLoad{flags: fabric.Ordered}), anchor: onMessages(opAck),
			help: "rma_write_lat whose last 64 bytes become visible after the rest",
		},
		{
			name: "vrma_write_lat", group: groupRMA, dir: "write", kind: halfTrip, window: one, load: onWindow(rmaLoad{heap: true}), anchor: onMessages(opAck),
			help: "rma_write_lat from memory that is not registered",
		},
		{
			name: "vrma_write_bw", group: groupRMA, dir: "write", kind: bandwidth, window: underWay, windowed: true,
			load: onWindow(rmaLoad{heap: true, style: streamed}), anchor: onMessages(opSink),
			help: "rma_write_bw from memory that is not registered",
		},
		{
			name: "vrma_read_lat", group: groupRMA, dir: "read", kind: halfTrip, window: one, load: onWindow(rmaLoad{read: true, heap: true}), anchor: onMessages(opReply),
			help: "rma_read_lat into memory that is not registered",
		},
		{
			name: "vrma_read_bw", group: groupRMA, dir: "read", kind: bandwidth, window: underWay, windowed: true,
			load: onWindow(rmaLoad{read: true, heap: true, style: streamed}), anchor: onMessages(opSource),
			help: "rma_read_bw into memory that is not registered",
		},
		{
			name: "mmap_store", group: groupRMA, dir: "write", kind: bandwidth, load: onMapped(false), anchor: newCopying,
			beside: []string{rawMemory}, onlyBeside: true,
			help: "copies into the peer's mapped window, on one node only; anchor: the same within one process",
		},
		{
			name: "mmap_load", group: groupRMA, dir: "read", kind: bandwidth, load: onMapped(true), anchor: newCopying,
			beside: []string{rawMemory}, onlyBeside: true,
			help: "copies out of the peer's mapped window, on one node only; anchor: the same within one process",
		},
		{
			name: "mmap_rtt", group: groupRMA, dir: "store", kind: wholeTrip, fixed: 8, window: one, load: newMirrored,
			help: "a store into the peer's mapped window until its answer is seen there; on one node only",
		},
	}
}

func atomicTests() []*test {
	word := func(name, help string, kind atomicKind) *test {
		return &test{name: name, group: groupAtomics, dir: "atomic", kind: wholeTrip, fixed: 8, window: one,
			load: onWord(kind, false), anchor: onMessages(opAck), help: help}
	}
	return []*test{
		word("atomic_fadd", "a fetch-and-add of 64 bits; anchor: a message and a short answer", fetchAdd64),
		word("atomic_fadd32", "a fetch-and-add of 32 bits", fetchAdd32),
		word("atomic_swap", "a swap of 64 bits", swap64),
		word("atomic_swap32", "a swap of 32 bits", swap32),
		word("atomic_cas", "a compare-and-swap of 64 bits", compareSwap64),
		word("atomic_cas32", "a compare-and-swap of 32 bits", compareSwap32),
		{
			name: "atomic_add", group: groupAtomics, dir: "atomic", kind: rate, fixed: 8, load: onPosted(fetchAdd64),
			help: "posted additions of 64 bits, which return no old value, until the last has been made: how many a second",
		},
		{
			name: "atomic_add32", group: groupAtomics, dir: "atomic", kind: rate, fixed: 8, load: onPosted(fetchAdd32),
			help: "atomic_add of 32 bits",
		},
		{
			name: "atomic_rate", group: groupAtomics, dir: "atomic", kind: rate, fixed: 8,
			window: func(int64) int64 { return atomicWindow }, windowed: true, load: newAdders,
			help: "fetch-and-adds of 64 bits by 16 goroutines, how many a second",
		},
		{
			name: "atomic_contended", group: groupAtomics, dir: "atomic", kind: wholeTrip, fixed: 8, pairs: 4, window: one, load: onWord(fetchAdd64, true),
			help: "atomic_fadd by four pairs on one word",
		},
	}
}

func fenceTests() []*test {
	return []*test{
		{
			name: "fence_mark_wait", group: groupFences, dir: "write", kind: wholeTrip, window: one,
			load: onWindow(rmaLoad{style: fenced}), anchor: onMessages(opAck),
			help: "a write, a mark behind it, and a wait for the mark; anchor: a message and a short answer",
		},
		{
			name: "fence_signal_rtt", group: groupFences, dir: "signal", kind: wholeTrip, fixed: 8, window: one, load: newSignals,
			help: "a signal into the peer's memory until the one that answers it is here",
		},
	}
}

func registrationTests() []*test {
	return []*test{
		{
			name: "reg", group: groupRegistration, dir: "register", kind: wholeTrip, window: one, load: onRegistration(false),
			help: "to register memory, until the peer has the window",
		},
		{
			name: "unreg", group: groupRegistration, dir: "unregister", kind: wholeTrip, window: one, load: onRegistration(true),
			help: "to unregister it",
		},
		{
			name: "window_open_cached", group: groupRegistration, dir: "use", kind: wholeTrip, window: one, special: manyOpenings, load: onOpening(true),
			help: "8 bytes written to a window of the peer: the first use, and one of a window that is known",
		},
		{
			name: "window_scale", group: groupRegistration, dir: "register", sizeless: true, special: scaleWindows,
			help: "1, 10, 100, … windows at once on one connection: registrations a second, memory of each",
		},
		{
			name: "mmap", group: groupRegistration, dir: "map", kind: wholeTrip, window: one, load: newMapping,
			help: "to map the peer's window; on one node only",
		},
	}
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
var clusterTests = []struct{ name, help string }{
	{"fail_detect", "kill daemons; until every survivor knows and blocked receives return"},
	{falseTest, "daemons on a machine that is too busy; how often one is taken for lost"},
	{"idle", "what idle daemons cost"},
}

// noTest says what there is instead of a test of this name.
func noTest(name string) error {
	var alone, names []string
	for _, t := range clusterTests {
		if t.name == name {
			return usagef("%s starts daemons of its own and is run alone: `fabric-bench run %s`", name, name)
		}
		alone = append(alone, t.name)
	}
	for _, t := range tests() {
		names = append(names, t.name)
	}
	return usagef("there is no test %q; there are %s, and with `run` alone %s",
		name, strings.Join(names, ", "), strings.Join(alone, ", "))
}

// testNamed returns a test that exists.
func testNamed(name string) *test {
	all := tests()
	return all[slices.IndexFunc(all, func(t *test) bool { return t.name == name })]
}
