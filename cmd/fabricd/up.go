package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const (
	upMaxNodes = 16
	upJoin     = 30 * time.Second // for one node to join, on a busy machine
	upRestart  = 2 * time.Second  // from the end of a node to its next start
	upLeave    = 5 * time.Second  // for nodes to leave; then they are killed
	// upSameSignal is how soon after the first signal a second one is the same
	// request: timeout(1) and make repeat the signal of the terminal.
	upSameSignal = 300 * time.Millisecond
	upTail       = 15 // lines of the log of a node that failed
)

// upFlags are the flags of up.
type upFlags struct {
	nodes         int
	dir           string
	restart       bool
	faults        bool
	json, verbose bool
}

func (a *app) upCommand() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use: "up", Short: "Run a local cluster on this machine until Ctrl-C", Args: noArguments,
		Long: `up runs a cluster of fabricd processes on loopback: a host and further nodes, with
free ports, and sockets, state and logs in one directory. It prints what an
application and an operator need for each node, and then what happens: a node
joins or is lost, or its process ends. Ctrl-C stops all; a second one kills them.

Without --dir the directory is a new temporary one, and is removed at the end. With
--dir it stays, and the next "fabricd up --dir" continues the same cluster, with
nodes of the same IDs. It needs no privilege. It is for one machine and for trying
things out: "fabricd init" and "fabricd run" make a cluster of machines.`,
		Example: `  fabricd up
  fabricd up --nodes 5 --restart
  fabricd up --dir ./cluster -v
  fabricd up --json | jq -r 'select(.event == "node") | .socket'`,
	}
	cmd.Flags().IntVarP(&f.nodes, "nodes", "n", 3, fmt.Sprintf("how many nodes, the host included, 1 to %d", upMaxNodes))
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory that keeps the cluster; a temporary one if empty")
	cmd.Flags().BoolVar(&f.restart, "restart", false, fmt.Sprintf("start a node whose process has ended again, after %v", upRestart))
	cmd.Flags().BoolVar(&f.faults, "enable-faults", false, "let \"fabricd faults\" break the nodes on purpose")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object per line: the nodes, then what happens to them")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "print what the nodes log too, to standard error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.nodes < 1 || f.nodes > upMaxNodes {
			return usagef("nodes: %d: want 1 to %d", f.nodes, upMaxNodes)
		}
		return a.up(cmd.Context(), f)
	}
	return cmd
}

// up runs a cluster until ctx is done, and cleans up behind it.
func (a *app) up(ctx context.Context, f upFlags) error {
	// Children die with the thread that started them; this goroutine keeps it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, hurry, release := upSignals(ctx)
	defer release()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := openUpDir(f.dir)
	if err != nil {
		return err
	}
	c := &crew{exe: exe, dir: dir.path, limit: upJoin, keepLogs: true, settings: []string{fmt.Sprintf("--enable-faults=%t", f.faults)}}
	if f.verbose {
		var mu sync.Mutex
		c.echo = func(name string) io.Writer { return &logEcho{mu: &mu, out: a.stderr, name: name} }
	}
	u := &upCluster{crew: c, flags: f, self: commandName(os.Args[0], exe), kept: f.dir != "",
		out: upPrinter{out: a.stdout, json: f.json}, work: make(chan func() error), over: make(chan struct{}),
		incarnation: incarnations{}}
	err = u.run(ctx)
	if ctx.Err() != nil {
		err = nil // a signal ended it: errors of interrupted steps do not count
	}
	if err != nil && u.failed != nil {
		a.explainFailure(u.failed)
	}
	err = errors.Join(err, u.stop(ctx, hurry), dir.close())
	if err == nil {
		u.out.stopped(dir)
	}
	return err
}

// explainFailure prints the last lines that a process has logged.
func (a *app) explainFailure(p *process) {
	text, err := p.tail(upTail)
	if err != nil {
		text = err.Error()
	}
	for line := range strings.Lines(text) {
		_ = printLine(a.stderr, "%s: %s", p.name, strings.TrimSuffix(line, "\n")) // the error reports it too
	}
}

// upSignals returns a context that ends with ctx, or when the terminal goes away,
// and one that ends with the second signal. While they are in use a reader of
// standard output that went away is an error of the write, not the end of this
// process, which has a cluster to stop.
func upSignals(ctx context.Context) (until, hurry context.Context, release func()) {
	until, stopUntil := context.WithCancel(ctx)
	hurry, stopHurry := context.WithCancel(context.Background())
	asked := make(chan os.Signal, 4) // of more the reader has not seen the first, and they are the same request
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup does
		signal.Notify(asked, syscall.SIGHUP)
	}
	stopPipe := surviveBrokenPipe()
	done := make(chan struct{})
	over := make(chan struct{})
	go func() { // ends with release
		defer close(over)
		var first time.Time
		for {
			select {
			case <-asked:
				switch {
				case first.IsZero():
					first = time.Now()
					stopUntil()
				case time.Since(first) > upSameSignal:
					stopHurry()
				}
			case <-done:
				return
			}
		}
	}()
	return until, hurry, func() {
		signal.Stop(asked)
		stopPipe()
		close(done)
		<-over
		stopUntil()
		stopHurry()
	}
}

// surviveBrokenPipe makes a reader of standard output that went away an error of the
// write, for a command that has to clean up, until release is called.
func surviveBrokenPipe() (release func()) {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	return func() { signal.Stop(broken) }
}
