// Command fabricd is one node of a fabric, and the commands for its operators.
//
// Exit codes: 0 for success, 1 when something failed, 2 when the command line
// or the configuration is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

const (
	exitOK    = 0
	exitFail  = 1
	exitUsage = 2
)

func main() {
	// fabricd logs small UDP buffers itself; quic-go would print a second warning.
	_ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "1") // fails for malformed names only
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit code. The end of ctx stands
// for a signal.
func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	a := &app{environ: environ, stdout: stdout, stderr: stderr}
	root := a.root()
	// Not by cobra: its template would have the linker keep every exported method.
	if slices.Equal(args, []string{"--version"}) {
		args = []string{"version"}
	}
	root.SetArgs(args)
	err := misnamed(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(err.Error()) {
		_ = printLine(stderr, "fabricd: %s", strings.TrimSuffix(line, "\n")) // the exit code reports it too
	}
	if _, bad := errors.AsType[*daemon.ConfigError](err); bad {
		return exitUsage
	}
	if !a.parsed {
		fmt.Fprintln(stderr, "fabricd:", whereToRead(root, args))
		return exitUsage
	}
	if _, bad := errors.AsType[usageError](err); bad {
		return exitUsage
	}
	return exitFail
}

// A usageError is an argument that parses but is not allowed.
type usageError struct{ error }

// usagef returns a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is the state that all commands share.
type app struct {
	environ        []string
	stdout, stderr io.Writer
	parsed         bool // the command line was understood and its command began
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fabricd",
		Short: "A fabric between processes, containers and machines: ports, messages, remote memory, fences",
		Long: `fabricd gives the applications of a machine a place in a fabric: a node with a
small ID, ports, connections that carry messages, windows of memory that a peer
reads and writes, fences, and an event when a node is lost.`,
		Example: `  fabricd demo                    three nodes, two applications and a failure, on this machine
  fabricd up                      a cluster on this machine, until Ctrl-C
  fabricd init --state-dir /var/lib/fabricd --token-file join.token
  fabricd run --role host         the cluster's host
  fabricd run --join HOST:7700 --token-file join.token
  fabricd nodes                   the nodes of the cluster`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRun:  func(*cobra.Command, []string) { a.parsed = true },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	root.Flags().Bool("version", false, "print the version of this program") // the command: see execute
	root.SetFlagErrorFunc(flagError)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(a.initCommand(), a.runCommand(), a.tokenCommand(), a.keysCommand(), a.caCommand())
	root.AddCommand(a.statusCommand(), a.nodesCommand())
	root.AddCommand(a.tableCommands()...)
	root.AddCommand(a.pingCommand(), a.whyCommand(), a.doctorCommand(), a.eventsCommand(), a.healthCommand(), a.faultsCommand())
	root.AddCommand(a.backupCommand(), a.restoreCommand(), a.logLevelCommand(), a.debugCommand(), a.topCommand(), a.manCommand())
	root.AddCommand(a.exposeCommand(), a.forwardCommand(), a.gatewaysCommand(), a.ncCommand(), a.cpCommand())
	root.AddCommand(a.chaosCommand(), a.demoCommand(), a.demoAppCommand(), a.upCommand(), a.versionCommand())
	a.completeAlone(root)
	return root
}

// getenv returns a variable of the environment that the command was given.
func (a *app) getenv(name string) string {
	for i := len(a.environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(a.environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}
