package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
)

// defaultPort is where `fabric-bench serve` listens.
const defaultPort = 2060

// options is what the flags of local and run say.
type options struct {
	provider   string
	peer       string
	socket     string
	sizes      []string
	sweep      bool
	iters      int64
	duration   time.Duration
	warmup     int64
	reps       int
	seed       uint64
	validate   bool
	format     string
	cpuprofile string
	quiet      bool
	admin      string
	fabricd    string
	pairs      int64
	window     int64
	rate       float64
	conns      int64
	chaos      string
	cliffFails bool
}

// mostPairs bounds how many connections are measured at once.
const mostPairs = 256

// cliffFailsHelp is of --fail-on-cliff.
const cliffFailsHelp = "exit code 3 if time more than doubles beyond the ratio of two neighbouring sizes, and again when both are measured again"

// standardSizes is what a run measures by default, in bytes.
var standardSizes = []string{"64", "4K", "64K", "1M"}

// sweepSizes returns the powers of two from 1 B to 4 MiB, the points half-way
// between them, and those around which implementations have cliffs.
func sweepSizes() []int64 {
	sizes := []int64{3000, 8191, 8193, 65535, 65537}
	for s := int64(1); s <= 4<<20; s *= 2 {
		sizes = append(sizes, s)
		if s > 1 && s < 4<<20 {
			sizes = append(sizes, s+s/2)
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// parseSize reads a number of bytes: "64", "4K", "1M", "1GiB".
func parseSize(s string) (int64, error) {
	digits, unit := strings.TrimSuffix(strings.TrimSuffix(s, "iB"), "B"), int64(1)
	switch {
	case strings.HasSuffix(digits, "K"), strings.HasSuffix(digits, "k"):
		digits, unit = digits[:len(digits)-1], 1<<10
	case strings.HasSuffix(digits, "M"):
		digits, unit = digits[:len(digits)-1], 1<<20
	case strings.HasSuffix(digits, "G"):
		digits, unit = digits[:len(digits)-1], 1<<30
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > maxSize/unit {
		return 0, usagef("--size %q: a number of bytes from 1 to 1G, such as 64, 4K, 1M or 1GiB", s)
	}
	return n * unit, nil
}

// sizesOf returns the sizes to measure, in order and once each.
func (o *options) sizesOf() ([]int64, error) {
	if o.sweep {
		return sweepSizes(), nil
	}
	var sizes []int64
	for _, s := range o.sizes {
		n, err := parseSize(s)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes), nil
}

// flags adds the flags that say how to measure.
func (o *options) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.sizes, "size", standardSizes, "sizes of messages and transfers in bytes, with K, M or G: up to 64M, of "+strings.Join(largeTests(), ", ")+" up to 1G")
	f.BoolVar(&o.sweep, "sweep", false, "instead of --size: 1 B to 4 MiB, with the points where cliffs are")
	f.BoolVar(&o.cliffFails, "fail-on-cliff", false, cliffFailsHelp)
	f.Int64Var(&o.iters, "iters", 0, "timed operations per repetition (default 10000, or what takes 50 ms if that is more); of more than 64K each, fewer in proportion, but at least 100, and of 1G 6")
	f.DurationVar(&o.duration, "duration", o.duration, "instead of --iters: about how long a repetition takes")
	f.Int64Var(&o.warmup, "warmup", -1, "untimed operations before each repetition (default a tenth of --iters, at most 1000, but a tenth of the time)")
	f.Lookup("warmup").DefValue = "0" // so that the help does not show -1 beside its words
	f.IntVar(&o.reps, "reps", 5, "repetitions; the report has their minimum, median and maximum")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the contents, and of what is random in --chaos")
	f.BoolVar(&o.validate, "validate", false, "check all bytes on both ends; costs bandwidth")
	f.StringVar(&o.format, "format", "table", strings.Join(formats, ", ")+": the last three as ucx_perftest and OSU print, and a log of HdrHistogram")
	f.Int64Var(&o.pairs, "pairs", 0, "connections that are measured at once (default: 1, or as the test has it)")
	f.Int64Var(&o.window, "window", 0, "operations under way at once in *_bw and *_rate (default: as many as the transport takes; rma: up to 1024 or 4 MiB)")
	f.Float64Var(&o.rate, "rate", 0, "messages a second of msg_fixed_rate (default "+strconv.Itoa(defaultRate)+")")
	f.Int64Var(&o.conns, "conns", defaultConns, "up to how many connections conn_scale opens")
	f.StringVar(&o.chaos, "chaos", "", "break links meanwhile, by a `PLAN`: a file that ends with .yaml, or faults as drop=5%,at=1s,for=2s")
	f.StringVar(&o.cpuprofile, "cpuprofile", "", "write a CPU profile of the measurements to this file")
	f.BoolVar(&o.quiet, "quiet", false, "no progress on standard error")
}

func (o *options) providerFlags(f *pflag.FlagSet) {
	f.StringVar(&o.provider, "provider", providerQUIC, strings.Join(providers, ", ")+
		": two nodes over QUIC or TCP, two applications of one fabricd, nodes or one node in memory, or an anchor alone")
	f.StringVar(&o.fabricd, "fabricd", "", "the fabricd that attach runs (default: beside this program, ./bin, $PATH)")
}

// check refuses values that make no sense.
func (o *options) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case !slices.Contains(formats, o.format):
		return usagef("--format %q: one of %s", o.format, strings.Join(formats, ", "))
	case changed("pairs") && (o.pairs < 1 || o.pairs > mostPairs):
		return usagef("--pairs %d: 1 to %d", o.pairs, mostPairs)
	case changed("window") && (o.window < 1 || o.window > maxUnderWay):
		return usagef("--window %d: 1 to %d", o.window, maxUnderWay)
	case math.IsNaN(o.rate) || changed("rate") && (o.rate < 1 || o.rate > 10e6):
		return usagef("--rate %v: 1 to 10 million a second", o.rate)
	case o.conns < 1 || o.conns > 100_000:
		return usagef("--conns %d: 1 to 100000", o.conns)
	case o.reps < 1 || o.reps > 1000:
		return usagef("--reps %d: 1 to 1000", o.reps)
	case changed("iters") && (o.iters < 1 || o.iters > maxIters):
		return usagef("--iters %d: 1 to %d", o.iters, maxIters)
	case changed("warmup") && (o.warmup < 0 || o.warmup > maxIters):
		return usagef("--warmup %d: 0 to %d", o.warmup, maxIters)
	case o.duration < 0 || o.duration > time.Hour:
		return usagef("--duration %v: up to 1h", o.duration)
	case changed("iters") && changed("duration"):
		return usagef("--iters and --duration exclude each other")
	case changed("size") && o.sweep:
		return usagef("--size and --sweep exclude each other")
	case o.seed == 0:
		return usagef("--seed 0: any other number")
	case o.peer != "" && changed("provider"):
		return usagef("--peer and --provider exclude each other: the link to a peer has the provider that it has")
	}
	if o.iters > 0 {
		o.duration = 0
	}
	return o.checkChaos()
}

func (a *app) localCommand() *cobra.Command {
	o := &options{duration: 200 * time.Millisecond}
	cmd := &cobra.Command{
		Use: "local [TEST...]", Short: "Measure all tests, or some, with both ends in this process",
		Long: "local measures with nodes in this process, or with two applications of one\nfabricd, in turns with an anchor: quic-go, TCP, crypto/tls or Unix sockets alone.\n\n" + testList(),
		Example: `  fabric-bench local
  fabric-bench local msg_lat rma_write_lat --size 64 --validate
  fabric-bench local --provider mem --format json > run.json
  fabric-bench local pairs incast ring --provider attach
  fabric-bench local conn_scale --conns 10000`,
	}
	o.flags(cmd.Flags())
	o.providerFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.measure(cmd, o, args) }
	return cmd
}

func (a *app) runCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use: "run TEST...", Short: "Measure tests in depth, here or against a peer", Args: someTest,
		Long: "run measures the named tests with 10000 operations per repetition, of large sizes\n" +
			"fewer. With --peer it attaches to this machine's fabricd and measures against\n" +
			"`fabric-bench serve` on another node, or on this one; otherwise both ends are in this\n" +
			"process. Rows of a peer say which provider its link has, as the admin socket tells, or\n" +
			"unknown where it does not, and attach if the peer is on the same node.\n\n" + chaosHelp + testList(),
		Example: `  fabric-bench run msg_lat --size 64 --reps 9
  fabric-bench run rma_write_bw --sweep --format csv
  fabric-bench run msg_lat rma_write_lat --sweep --fail-on-cliff
  fabric-bench run msg_bw --size 1M --cpuprofile cpu.out
  fabric-bench run msg_fixed_rate --size 64 --rate 5000 --duration 10s --format hdr > run.hdr
  fabric-bench run msg_bw --sweep --format osu
  fabric-bench run rma_write_bw rma_read_bw --size 64M,1GiB --provider tcp --reps 3
  fabric-bench run msg_lat msg_bw --peer 3:2060
  fabric-bench run msg_lat --size 64 --duration 2s --chaos loss=5%,delay=1ms+-200us,at=1s,for=2s
  fabric-bench run rma_write_bw --provider tcp --chaos plan.yaml --seed 7`,
	}
	o.flags(cmd.Flags())
	o.providerFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.peer, "peer", "", "the peer that runs fabric-bench serve: `NODE[:PORT]`")
	cmd.Flags().StringVar(&o.socket, "socket", "", "socket of this machine's fabricd (default $FABRIC_SOCKET, then "+fabric.DefaultSocket+")")
	cmd.Flags().StringVar(&o.admin, "admin", "", "admin socket of this machine's fabricd, which tells what the link is over, and counts what it carries (default $FABRIC_ADMIN, then /run/fabricd/admin.sock)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.measure(cmd, o, args) }
	cmd.AddCommand(a.failDetectCommand(), a.falseCommand(), a.idleCommand())
	return cmd
}

// someTest is the Args of run.
func someTest(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("want the name of a test; `fabric-bench list` has them")
	}
	return nil
}

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the tests", Args: cobra.NoArgs,
		Run: func(*cobra.Command, []string) { fmt.Fprint(a.stdout, testList()) },
	}
}

func testList() string {
	var b strings.Builder
	b.WriteString("Tests:\n")
	group := ""
	for _, t := range tests() {
		if t.group != group {
			group = t.group
			fmt.Fprintf(&b, " %s\n", group)
		}
		fmt.Fprintf(&b, "  %-16s %s\n", t.name, t.help)
	}
	b.WriteString("Tests of a whole cluster, with `run`:\n")
	for _, t := range clusterTests {
		fmt.Fprintf(&b, "  %-16s %s\n", t.name, t.help)
	}
	return b.String()
}

func (a *app) serveCommand() *cobra.Command {
	var socket string
	var port uint16
	cmd := &cobra.Command{
		Use: "serve", Short: "Be the peer of `fabric-bench run --peer`", Args: cobra.NoArgs,
		Long:    "serve attaches to this machine's fabricd and answers the tests of other nodes,\nuntil SIGTERM or SIGINT.",
		Example: "  fabric-bench serve --port 2060",
	}
	cmd.Flags().StringVar(&socket, "socket", "", "socket of this machine's fabricd (default $FABRIC_SOCKET, then "+fabric.DefaultSocket+")")
	cmd.Flags().Uint16Var(&port, "port", defaultPort, "port to listen on; 0: a free one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		node, err := fabric.Attach(cmd.Context(), socket)
		if err != nil {
			return err
		}
		defer node.Close()
		s, err := serve(node, fabric.Port(port))
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "fabric-bench: answering at %v\n", s.addr())
		select {
		case <-cmd.Context().Done():
			return s.close()
		case <-node.Done():
			return errors.Join(errors.New("fabricd has ended"), s.close())
		}
	}
	return cmd
}

// measure runs the tests and reports.
func (a *app) measure(cmd *cobra.Command, o *options, names []string) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	picked, err := testsNamed(names)
	if err != nil {
		return err
	}
	sizes, err := o.sizesOf()
	if err != nil {
		return err
	}
	if err := checkLarge(picked, sizes); err != nil {
		return err
	}
	var broken *plan
	if o.chaos != "" {
		if broken, err = readPlan(o.chaos, o.seed, picked); err != nil {
			return err
		}
	}
	b, err := a.prepare(cmd.Context(), o, broken)
	if err != nil {
		return err
	}
	d := a.newDocument(b.row)
	stop, err := profile(o.cpuprofile)
	if err == nil {
		err = b.runAll(cmd.Context(), picked, sizes, d)
		err = first(err, stop())
	}
	found, pairs, failed := b.cliffs(cmd.Context(), d.Results)
	d.Cliffs, d.CliffPairs, err = found, pairs, first(err, failed)
	if b.ending != nil {
		b.notes = append(b.notes, b.ending(context.WithoutCancel(cmd.Context()))...)
	}
	for _, n := range b.notes {
		d.note("%s", n)
	}
	err = errors.Join(err, b.close())
	if cmd.Context().Err() != nil {
		err = errInterrupted // what was cut off has failed in many ways
	}
	if err = errors.Join(err, a.report(d, o.format)); err != nil {
		return err
	}
	return judgeCliffs(a.stderr, d.Cliffs, o.cliffFails)
}

var errInterrupted = errors.New("interrupted; what had been measured is in the report")

// prepare starts the sides; broken is the plan by which they will be broken, nil
// for none.
func (a *app) prepare(ctx context.Context, o *options, broken *plan) (*bench, error) {
	b := &bench{
		row:    thisMachine(),
		budget: budget{iters: o.iters, duration: o.duration, warmup: o.warmup, uneven: broken != nil},
		reps:   o.reps, seed: o.seed, check: o.validate, progress: a.progress(o.quiet),
		pairs: o.pairs, window: o.window, rate: o.rate, conns: o.conns, plan: broken,
	}
	if o.peer != "" {
		peer, err := parsePeer(o.peer)
		if err != nil {
			return nil, err
		}
		ours, err := attachNodes(ctx, o.socket, adminSocket(o.admin), peer)
		if err != nil {
			return nil, err
		}
		b.ours, b.ending = ours, ours.carrierNotes
		b.notes = []string{"system calls are not counted: those of fabricd are in another process"}
		return b, nil
	}
	return b, b.start(ctx, bed{fabricd: o.fabricd, faults: broken != nil}, o.provider)
}

// start starts the sides of a provider and its anchor.
func (b *bench) start(ctx context.Context, beds bed, provider string) (err error) {
	if b.ours, err = beds.side(ctx, provider); err != nil {
		return err
	}
	b.countCalls()
	if !isAnchorName(provider) {
		b.meshOf = func(ctx context.Context, n int) (*mesh, error) { return beds.mesh(ctx, provider, n) }
	}
	if b.plan != nil {
		b.notes = append(b.notes, "anchors are not measured under chaos: a plan breaks nothing of theirs")
		return nil
	}
	if anchor := anchorOf(provider); anchor != "" {
		if b.anchor, err = beds.side(ctx, anchor); err != nil {
			return errors.Join(err, b.ours.close())
		}
	}
	b.others, b.sideOf = map[string]side{}, beds.anchor
	return nil
}

// adminSocket returns where the fabricd of this machine tells of its links.
func adminSocket(flag string) string {
	return cmp.Or(flag, os.Getenv("FABRIC_ADMIN"), "/run/fabricd/admin.sock")
}

// countCalls lets b count system calls, if the kernel does.
func (b *bench) countCalls() {
	c, err := newCallCounter()
	if err != nil {
		b.notes = append(b.notes, uncounted(err).Error())
		return
	}
	c.close()
	b.counter = newCallCounter
}

// uncounted says why system calls are not counted.
func uncounted(err error) error {
	return fmt.Errorf("system calls are not counted: %w (root can, where the kernel has tracepoints)", err)
}

// parsePeer reads NODE or NODE:PORT.
func parsePeer(s string) (fabric.Addr, error) {
	if !strings.Contains(s, ":") {
		s += ":" + strconv.Itoa(defaultPort)
	}
	a, err := addr.Parse(s)
	if err != nil || a.Port == 0 {
		return a, usagef("--peer %q: NODE or NODE:PORT, such as 3:%d", s, defaultPort)
	}
	return a, nil
}

// profile starts a CPU profile, if path names a file; stop ends it.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error { pprof.StopCPUProfile(); return f.Close() }, nil
}

// progressEvery is the least time between two lines of progress.
const progressEvery = 2 * time.Second

// progress returns a function that tells on standard error how far a long run
// is.
func (a *app) progress(quiet bool) func(format string, args ...any) {
	last := time.Now()
	return func(format string, args ...any) {
		if quiet || time.Since(last) < progressEvery {
			return
		}
		last = time.Now()
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

// newDocument returns the report of a run on the machine that row describes.
func (a *app) newDocument(row Row) *Document {
	return &Document{
		Schema: schemaVersion, RunID: row.RunID, Started: time.Now().UTC().Format(time.RFC3339),
		Command: slices.Concat([]string{"fabric-bench"}, a.args), Machine: describeMachine(),
	}
}

// rowOf returns a row of this machine that belongs to a document.
func rowOf(d *Document) Row {
	r := thisMachine()
	r.RunID = d.RunID
	return r
}

// thisMachine returns a row that says where and by what is measured.
func thisMachine() Row {
	r := newRow()
	r.RunID = time.Now().UTC().Format("20060102T150405.000Z")
	r.Git = revision()
	r.Host, _ = os.Hostname() // without one the column is empty
	r.CPU = fmt.Sprintf("%s x%d", cpuModel(), runtime.GOMAXPROCS(0))
	r.Kernel = kernelRelease()
	r.Go = runtime.Version()
	return r
}
