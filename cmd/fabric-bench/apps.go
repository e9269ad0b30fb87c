package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// The paths between an unmodified application's connections and its server.
const (
	carryForward = "forwarder" // fabricd expose at the server, fabricd forward at the client
	carryDirect  = "direct"    // TCP from the client to the server
)

// An appClient is one way to load a server.
type appClient struct {
	name, what, server string
	unit               string
	// command runs for the given seconds against the server at host and port.
	command func(b *bench, host, port string, seconds int) []string
	// read returns the figure, and the number of bytes or operations behind it.
	read func(text []byte, seconds int) (value, amount figure, err error)
}

var appClients = []appClient{
	{"iperf3", "iperf3, one stream", "iperf3", megabytes, func(_ *bench, host, port string, seconds int) []string {
		return []string{"iperf3", "-c", host, "-p", port, "-t", strconv.Itoa(seconds), "-J"}
	}, readIperf},
	{"pgbench-select-1", "pgbench -S, 1 client", "postgres", perSecond, pgbench("-S", "-c", "1"), readPgbench},
	{"pgbench-select-8", "pgbench -S, 8 clients", "postgres", perSecond, pgbench("-S", "-c", "8"), readPgbench},
	{"pgbench", "pgbench, its own transactions, 1 client", "postgres", perSecond, pgbench("-c", "1"), readPgbench},
	{"redis-1", "redis GET, 1 client", "redis", perSecond, redisGet(1, 5000), readRedis},
	{"redis-50", "redis GET, 50 clients", "redis", perSecond, redisGet(50, 5000), readRedis},
	{"http", "HTTP, 1 client, connection kept", "nginx", perSecond, wrk(), readWrk},
	{"http-new", "HTTP, 1 client, a new connection for each", "nginx", perSecond, wrk("-H", "Connection: close"), readWrk},
	{"http-1G", "HTTP, a file of 1 GiB", "nginx", megabytes, func(b *bench, host, port string, _ int) []string {
		file := "file"
		if b.o.quick {
			file = "smaller"
		}
		return []string{"curl", "-sSf", "-o", "/dev/null", "-w", "%{speed_download} %{size_download}", "http://" + net.JoinHostPort(host, port) + "/" + file}
	}, readCurl},
}

// appCases are the third-party programs, through fabricd expose and forward, through stunnel, and
// directly.
func appCases() (all []benchCase) {
	for _, a := range appClients {
		row := rowSpec{what: "forwarder: " + a.what, unit: a.unit, cpuUnit: cpuPerOp, baseline: carryStunnel, target: to(1.5), cpuTarget: to(0.7)}
		if a.unit == megabytes {
			row.cpuUnit = cpuPerGB
		}
		all = append(all, benchCase{name: "apps-" + a.name, setup: onPaths, sources: []string{carryForward, carryStunnel, carryDirect}, rows: []rowSpec{row},
			measure: func(ctx context.Context, b *bench, source string) ([]reading, error) { return b.useApp(ctx, a, source) }})
	}
	return all
}

// useApp runs a client once over a carrier. The processor time is that of the processes that carry
// the bytes: the fabricds, or the two stunnels.
func (b *bench) useApp(ctx context.Context, a appClient, source string) ([]reading, error) {
	if b.apps == nil {
		b.apps = &appServers{lab: b.lab, running: map[string]*appServer{}}
	}
	s, err := b.apps.server(ctx, a.server)
	if err != nil {
		return nil, err
	}
	at, helpers, err := b.apps.reach(ctx, s, source)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	seconds := int(math.Ceil(6 * b.o.during.Seconds()))
	command := a.command(b, host, port, seconds)
	if _, err := tools.Find(command[0]); err != nil {
		return nil, err
	}
	before, err := spentBy(helpers)
	if err != nil {
		return nil, err
	}
	text, err := b.lab.output(ctx, time.Minute+10*time.Duration(seconds)*time.Second, 0, command...)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, b.lab.tails(5))
	}
	after, err := spentBy(helpers)
	if err != nil {
		return nil, err
	}
	value, amount, err := a.read(text, seconds)
	if err != nil {
		return nil, err
	}
	cpu := absent
	if len(helpers) > 0 {
		scale := figure(1e6)
		if a.unit == megabytes {
			scale = 1e9
		}
		cpu = figure((after - before).Seconds()) * scale / max(amount, 1)
	}
	return []reading{{value, cpu}}, nil
}

func pgbench(args ...string) func(*bench, string, string, int) []string {
	return func(_ *bench, host, port string, seconds int) []string {
		return append(append([]string{pgBin("pgbench"), "-n", "-j", "1", "-T", strconv.Itoa(seconds), "-h", host, "-p", port, "-U", "postgres"}, args...), "postgres")
	}
}

func redisGet(clients, requestsPerSecond int) func(*bench, string, string, int) []string {
	return func(_ *bench, host, port string, seconds int) []string {
		return []string{"redis-benchmark", "-h", host, "-p", port, "-c", strconv.Itoa(clients), "-n", strconv.Itoa(requestsPerSecond * seconds), "-t", "get", "--csv"}
	}
}

func wrk(args ...string) func(*bench, string, string, int) []string {
	return func(_ *bench, host, port string, seconds int) []string {
		return append(append([]string{"wrk", "-t", "1", "-c", "1", "-d", strconv.Itoa(seconds) + "s"}, args...), "http://"+net.JoinHostPort(host, port)+"/small")
	}
}

func readIperf(text []byte, seconds int) (value, amount figure, err error) {
	rate, err := tools.ParseIperf(text)
	return figure(rate / 1e6), figure(rate * float64(seconds)), err
}

var (
	pgbenchRate  = regexp.MustCompile(`tps = ([0-9.]+)`)
	pgbenchCount = regexp.MustCompile(`transactions actually processed: ([0-9]+)`)
	redisRate    = regexp.MustCompile(`"GET","([0-9.]+)"`)
	wrkRate      = regexp.MustCompile(`Requests/sec: +([0-9.]+)`)
	wrkCount     = regexp.MustCompile(`([0-9]+) requests in`)
	wrkErrors    = regexp.MustCompile(`(?m)^ *(Socket errors|Non-2xx).*$`)
)

func readPgbench(text []byte, _ int) (value, amount figure, err error) {
	value, err1 := numberIn(text, pgbenchRate)
	amount, err2 := numberIn(text, pgbenchCount)
	return value, amount, errors.Join(err1, err2)
}

func readRedis(text []byte, seconds int) (value, amount figure, err error) {
	value, err = numberIn(text, redisRate)
	return value, value * figure(seconds), err
}

func readWrk(text []byte, _ int) (value, amount figure, err error) {
	if wrong := wrkErrors.Find(text); wrong != nil {
		return absent, absent, fmt.Errorf("wrk: %s", wrong)
	}
	value, err1 := numberIn(text, wrkRate)
	amount, err2 := numberIn(text, wrkCount)
	return value, amount, errors.Join(err1, err2)
}

func readCurl(text []byte, _ int) (value, amount figure, err error) {
	rate, size, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	r, err1 := strconv.ParseFloat(rate, 64)
	n, err2 := strconv.ParseFloat(size, 64)
	return figure(r / 1e6), figure(n), errors.Join(err1, err2)
}

// numberIn returns the number that the first group of a pattern matches.
func numberIn(text []byte, pattern *regexp.Regexp) (figure, error) {
	m := pattern.FindSubmatch(text)
	if m == nil {
		return absent, fmt.Errorf("nothing like %q in %q", pattern, clip(string(text)))
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	return figure(v), err
}
