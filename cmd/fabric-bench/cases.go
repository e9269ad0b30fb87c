package main

import (
	"context"
	"slices"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

const (
	micros    = "µs"
	millis    = "ms"
	megabytes = "MB/s"
	kibibytes = "KiB"
	perSecond = "1/s"
	perOp     = "allocs/op"
	cpuPerGB  = "s/GB"
	cpuPerOp  = "µs/op"
)

const mib = 1 << 20

// The deployed setups.
var (
	onPaths      = setup{paths: "lazy"}
	onPlainPaths = setup{paths: "lazy", providers: "tcp", plaintext: true}
	onLinks      = setup{paths: "off", providers: "quic"}
	onWay        = setup{paths: "lazy", way: "25ms/1Gbit"}
	onPlainWay   = setup{paths: "lazy", providers: "tcp", plaintext: true, way: "25ms/1Gbit"}
)

// allocsTolerance still counts as no allocation per operation: the runtime and the kernel's signals
// allocate now and then.
const allocsTolerance = 0.05

// allCases are the rows of DESIGN.md §7 that are measured, in the order of the report.
func allCases() []benchCase {
	return slices.Concat(messageCases(), memoryCases(), wayCases(), linkCases(), nodeCases(), appCases(), connCases(), clusterCases())
}

func messageCases() (all []benchCase) {
	for _, v := range []struct {
		suffix, name, baseline string
		setup                  setup
	}{{"tls", "TLS", carryTLS, onPaths}, {"plain", "plaintext", carryTCP, onPlainPaths}} {
		others := []string{carryFabric, v.baseline}
		if v.baseline == carryTLS {
			others = append(others, carryTCP, carryStunnel)
		}
		all = append(all,
			orderCase("message-8-"+v.suffix, v.setup, others, work{kind: kindEcho, size: 8},
				rowSpec{what: "message 8 B, half round trip, " + v.name, unit: micros, baseline: v.baseline, target: to(1.15)}, true),
			orderCase("message-64K-"+v.suffix, v.setup, others, work{kind: kindStream, size: 64 << 10},
				rowSpec{what: "messages 64 KiB, " + v.name, unit: megabytes, baseline: v.baseline, target: to(0.95), cpuTarget: to(1.15)}, false),
			orderCase("message-1M-"+v.suffix, v.setup, others, work{kind: kindStream, size: mib},
				rowSpec{what: "messages 1 MiB, " + v.name, unit: megabytes, baseline: v.baseline, target: to(0.95), cpuTarget: to(1.15)}, false))
	}
	return append(all, orderCase("connect", onPaths, []string{carryFabric, carryTLS, carryTCP, carryStunnel}, work{kind: kindConnect, size: 1},
		rowSpec{what: "connect, and a byte there and back", unit: micros, baseline: carryTLS}, false))
}

func memoryCases() []benchCase {
	small := []string{carryFabric, carryTCP}
	large := []string{carryFabric, carryTLS}
	return []benchCase{
		orderCase("rma-write-8", onPaths, small, work{kind: kindPut, size: 8, as: kindTrip},
			rowSpec{what: "RMA write 8 B and fence, beside a round trip", unit: micros, baseline: carryTCP, target: to(1.3)}, true),
		orderCase("rma-add", onPaths, small, work{kind: kindAdd, size: 8, as: kindTrip},
			rowSpec{what: "RMA fetch-add, beside a round trip", unit: micros, baseline: carryTCP, target: to(1.3)}, true),
		orderCase("rma-write-1M", onPaths, large, work{kind: kindWrite, size: mib, as: kindStream},
			rowSpec{what: "RMA write 1 MiB, 16 under way, beside messages", unit: megabytes, baseline: carryTLS, target: to(0.95)}, false),
		orderCase("rma-read-1M", onPaths, large, work{kind: kindReads, size: mib, as: kindStream},
			rowSpec{what: "RMA read 1 MiB, 8 under way, beside messages", unit: megabytes, baseline: carryTLS, target: to(0.95)}, false),
	}
}

// wayCases run on a long network: the number of bytes in flight decides.
func wayCases() (all []benchCase) {
	both := []string{carryFabric, carryTCP}
	one := func(name, what string, s setup, w work) {
		w.long = true
		all = append(all, orderCase("way-"+name, s, both, w,
			rowSpec{what: "25 ms, 1 Gbit/s: " + what, unit: megabytes, baseline: carryTCP, target: to(0.9)}, false))
	}
	one("message-tls", "messages 1 MiB, TLS", onWay, work{kind: kindStream, size: mib})
	one("rma-write", "RMA write 1 MiB, 16 under way, beside messages", onWay, work{kind: kindWrite, size: mib, as: kindStream})
	one("rma-read", "RMA read 1 MiB, 8 under way, beside messages", onWay, work{kind: kindReads, size: mib, as: kindStream})
	one("message-plain", "messages 1 MiB, plaintext", onPlainWay, work{kind: kindStream, size: mib})
	return all
}

// linkCases compare QUIC links with bare quic-go: attached over the link without paths, and nodes
// embedded in two processes.
func linkCases() []benchCase {
	return []benchCase{
		orderCase("link-64K", onLinks, []string{carryFabric, carryQUIC}, work{kind: kindStream, size: 64 << 10},
			rowSpec{what: "link alone, QUIC: messages 64 KiB", unit: megabytes, baseline: carryQUIC, target: to(0.7), cpuTarget: to(1.5)}, false),
		orderCase("link-64", onLinks, []string{carryFabric, carryQUIC}, work{kind: kindEcho, size: 64},
			rowSpec{what: "link alone, QUIC: message 64 B, half round trip", unit: micros, baseline: carryQUIC}, false),
		orderCase("quic-64", onLinks, []string{carryEmbedded, carryQUIC}, work{kind: kindEcho, size: 64},
			rowSpec{what: "embedded nodes, QUIC: message 64 B, half round trip", unit: micros, baseline: carryQUIC, target: to(1.15)}, true),
		orderCase("quic-1M", onLinks, []string{carryEmbedded, carryQUIC}, work{kind: kindStream, size: mib},
			rowSpec{what: "embedded nodes, QUIC: messages 1 MiB", unit: megabytes, baseline: carryQUIC, target: to(0.95)}, false),
	}
}

const (
	ucxPosix  = "UCX posix"
	libfabric = "libfabric shm"
)

// nodeCases compare two applications of one fabricd with UCX and libfabric.
func nodeCases() []benchCase {
	one := func(name, what, unit, carrier string, target figure, w work, allocs bool) benchCase {
		return orderCase("node-"+name, onPaths, []string{carrier, ucxPosix}, w,
			rowSpec{what: "one node: " + what, unit: unit, baseline: ucxPosix, target: to(target)}, allocs)
	}
	message := one("message-8", "message 8 B, half round trip, spinning", micros, carryNodeLow, 1, work{kind: kindEcho, size: 8}, true)
	message.sources = append(message.sources, libfabric)
	return []benchCase{
		besideTools(message, "ucp_am_lat", 8, 100_000, func(r tools.UCX) float64 { return r.P50 }),
		besideTools(one("rate-8", "messages 8 B, rate", perSecond, carryNodeLow, 1, work{kind: kindRate, size: 8}, false),
			"tag_bw", 8, 500_000, func(r tools.UCX) float64 { return r.Rate }),
		besideTools(one("write-1M", "RMA write 1 MiB", megabytes, carryNode, 0.97, work{kind: kindWrite, size: mib}, true),
			"ucp_put_bw", mib, 2000, ucxMB),
		besideTools(one("read-1M", "RMA read 1 MiB", megabytes, carryNode, 0.97, work{kind: kindRead, size: mib}, true),
			"ucp_get", mib, 2000, ucxMB),
	}
}

func ucxMB(r tools.UCX) float64 { return r.MiB * (1 << 20) / 1e6 }

// besideTools makes ucx_perftest and fi_pingpong sources of a case.
func besideTools(c benchCase, test string, size, iterations int64, pick func(tools.UCX) float64) benchCase {
	ours := c.measure
	c.measure = func(ctx context.Context, b *bench, source string) ([]reading, error) {
		n := iterations
		if b.o.quick {
			n /= 200
		}
		limited, cancel := b.bounded(ctx, quickTool)
		defer cancel()
		switch source {
		case ucxPosix:
			pair := tools.UCXTest{Transport: "posix", Name: test, Size: size, Iterations: n, Warmup: n / 10}.Pair
			r, err := besideRun(limited, b, pair, tools.ParseUCX)
			return alone(figure(pick(r)), len(c.rows)), foreign(err)
		case libfabric:
			pair := func(port int) tools.Pair { return tools.PingPongPair(port, "shm", "rdm", size, 5000) }
			r, err := besideRun(limited, b, pair, tools.ParsePingPong)
			return alone(figure(r.Micros), len(c.rows)), foreign(err)
		}
		return ours(ctx, b, source)
	}
	return c
}

// besideRun runs a third-party benchmark and reads its output.
func besideRun[T any](ctx context.Context, b *bench, pair func(port int) tools.Pair, parse func(string) (T, error)) (r T, err error) {
	port, err := tools.FreePort()
	if err != nil {
		return r, err
	}
	text, err := b.lab.runPair(ctx, pair(port))
	if err != nil {
		return r, err
	}
	return parse(string(text))
}

// foreign marks a failure of a third-party program, which does not fail the run.
func foreign(err error) error {
	if err == nil {
		return nil
	}
	return foreignError{err}
}

type foreignError struct{ error }

func (e foreignError) Unwrap() error { return e.error }

// alone returns a reading of the first of n rows.
func alone(f figure, n int) []reading {
	all := slices.Repeat([]reading{{absent, absent}}, n)
	all[0].value = f
	return all
}
