// Command fabric-bench measures deployments: an application and a fabricd on each of two machines,
// compared with bare programs and stunnel on the same network; two applications of one node,
// compared with UCX; and the time to detect the loss of a node.
//
// Exit codes: 0 for success, 1 if something failed or bytes were wrong, 2 if the command line is
// wrong, 3 if `compare` finds a worse or missing figure. A missed target is shown but is no
// failure: machines differ.
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

// execute runs one command line and returns its exit code. The end of ctx acts as a signal.
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
	if errors.Is(err, errRegressed) {
		return exitWorse
	}
	return exitFail
}

// A usageError is an argument that parses but is not allowed.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is the state that all commands share.
type app struct {
	args           []string
	stdout, stderr io.Writer
	parsed         bool // the command line was valid and its command began
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fabric-bench",
		Short: "Measure a fabric beside what carries it",
		Long: `fabric-bench measures messages, remote memory, connections and unmodified
applications between two applications, each attached to a fabricd, in turns with bare
programs over TCP, crypto/tls and quic-go and with stunnel on the same way, and how
soon a fabric sees that a node is lost.`,
		Example: `  fabric-bench run                     everything, and how many targets are reached
  fabric-bench run --quick             whether all of it works, in about a minute
  fabric-bench list                    the cases
  fabric-bench compare old.json new.json
  fabric-bench page report.json --out report.html`,
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: func(*cobra.Command, []string) { a.parsed = true },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(a.runCommand(), a.listCommand(), a.compareCommand(), a.pageCommand(), a.targetsCommand(),
		a.endProcess(), a.relayProcess(), a.hogProcess())
	return root
}
