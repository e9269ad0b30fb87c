// Command fabric-bench measures a fabric: messages, remote memory, fences,
// connections, and how soon the loss of a node is seen. What it measures over
// QUIC it shows beside quic-go alone, measured in turns in the same run.
//
// Exit codes: 0 for success, 1 when something failed or bytes were wrong, 2
// when the command line is wrong, 3 when `compare` finds something worse or gone, or,
// with --fail-on-cliff, when a cliff stays. A target that is not reached is shown and is
// no failure: machines differ.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitOK    = 0
	exitFail  = 1
	exitUsage = 2
	exitWorse = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit code. The end of ctx is
// what a signal is.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{args: args, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(stderr, "fabric-bench:", strings.TrimSuffix(line, "\n"))
	}
	if _, bad := errors.AsType[usageError](err); bad || !a.parsed {
		fmt.Fprintln(stderr, "fabric-bench: `fabric-bench --help` explains the commands")
		return exitUsage
	}
	return exitCodeOf(err)
}

// exitCodeOf returns the exit code of a command that has failed.
func exitCodeOf(err error) int {
	if errors.Is(err, errRegressed) || errors.Is(err, errCliff) {
		return exitWorse
	}
	return exitFail
}

// A usageError is an argument that parses but is not allowed.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is what all commands share.
type app struct {
	args           []string
	stdout, stderr io.Writer
	parsed         bool // the command line was understood and its command began
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fabric-bench",
		Short: "Measure a fabric beside what carries it",
		Long: `fabric-bench measures messages, remote memory, fences and connections of a
fabric, and how soon it sees that a node is new or lost. Over QUIC each test is
measured in turns with quic-go alone, with the same settings and in the same
process, and the ratio of the two is printed. TCP, TLS and Unix sockets are the
anchors of what goes over them.`,
		Example: `  fabric-bench local                              all tests, both ends in this process
  fabric-bench run msg_lat --size 64 --reps 9     one test in depth
  fabric-bench run msg_bw --sweep --format csv    sizes from 1 B to 4 MiB
  fabric-bench serve                              beside one fabricd, and
  fabric-bench run msg_lat --peer 0:2060          beside another: across machines
  fabric-bench run fail_detect                    eight daemons, fifty kills
  fabric-bench compare old.json new.json          exit code 3 if something is worse or gone
  fabric-bench deployed                           an application and a fabricd on each side`,
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: func(*cobra.Command, []string) { a.parsed = true },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(a.localCommand(), a.runCommand(), a.compareCommand(), a.serveCommand(), a.listCommand(), a.hogProcess(), a.deployedCommand(), a.deployedEndProcess())
	return root
}
