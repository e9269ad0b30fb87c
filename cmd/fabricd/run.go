package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/gateway"
	"github.com/fabricd/fabricd/internal/hook"
)

// leaveTimeout bounds the leave of a node after a signal to end.
const leaveTimeout = 2 * time.Second

func (a *app) runCommand() *cobra.Command {
	var file string
	var rebuild bool
	cmd := &cobra.Command{
		Use: "run", Short: "Run a node until SIGTERM or SIGINT, on which it leaves the cluster", Args: noArguments,
		Long: `run is a node of a cluster. Every flag can also be an environment variable
(--data-port is FABRIC_DATA_PORT) or a line of the YAML file (data-port: 7700);
a flag overrides a variable, and a variable overrides the file. A wrong value
ends fabricd at once with exit code 2 and one line that says what is allowed.
On SIGHUP, and when the file has changed, a node reads them again and takes over
the access rules (docs/access.md) and the gateways (docs/connect.md); a wrong value then changes nothing.
docs/rings.md says what the settings of rings are worth. With --explain nothing is
run: it prints each setting, what has set it, and what is allowed.`,
		Example: `  fabricd run --role host
  fabricd run --join 10.0.0.1:7700 --token-file join.token
  fabricd run --config /etc/fabricd.yaml --log-format json
  fabricd run --config /etc/fabricd.yaml --explain
  fabricd run --explain=json | jq '.[] | select(.source != "default")'`,
	}
	var how string
	cmd.Flags().StringVar(&how, "explain", "", "print the settings, where each was set and what is allowed, and do not run: table or json")
	cmd.Flags().Lookup("explain").NoOptDefVal = explainTable
	cmd.Flags().BoolVar(&rebuild, "rebuild-leases", false, "host: start once with a new lease table if it is damaged or lost")
	addSettings(cmd, &file)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if how != "" {
			return a.explain(cmd, file, how)
		}
		c, err := a.settings(cmd, file)
		if err != nil {
			return err
		}
		faults := daemon.NewFaults(c)
		log, err := daemon.NewLogger(c.Log, a.stderr, faults.Now)
		if err != nil {
			return err
		}
		for _, line := range daemon.UnknownEnv(a.environ) {
			log.Warn().Str("op", "config").Msg(line)
		}
		level, log := daemon.NewLogLevel(log)
		notify := daemon.NewNotifier(a.getenv)
		defer notify.Close()
		return runNode(cmd.Context(), c, notify, daemon.Options{Log: log, LogLevel: level, Version: buildVersion(), RebuildLeases: rebuild, Faults: faults,
			Settings: func() (daemon.Config, error) { return a.settings(cmd, file) }, SettingsFile: a.configFile(file), Gateways: newGateways})
	}
	return cmd
}

// newGateways returns the gateways of d, which are an application of its own process.
func newGateways(d *daemon.Daemon, log zerolog.Logger) daemon.Gateways {
	return gateway.New(func(ctx context.Context) (*fabric.Node, error) {
		s, err := client.AttachTo(ctx, d)
		if err != nil {
			return nil, err
		}
		return hook.Node(s).(*fabric.Node), nil
	}, log)
}

// addSettings gives cmd a flag for each setting, and one for the file.
func addSettings(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "config", "", "YAML file to read (default $FABRIC_CONFIG)")
	def := daemon.Default()
	for _, s := range daemon.Settings() {
		cmd.Flags().String(s.Key, s.Value(def), s.Usage+": "+s.Allowed)
		if s.Switch() {
			cmd.Flags().Lookup(s.Key).NoOptDefVal = "true"
		}
	}
	completeSettings(cmd)
}

// settings returns the configuration of cmd's flags, the environment and the file.
func (a *app) settings(cmd *cobra.Command, file string) (daemon.Config, error) {
	return daemon.Load(a.configFile(file), a.environ, changed(cmd))
}

// configFile returns the file of the flag --config, else that of the environment.
func (a *app) configFile(flag string) string {
	if flag != "" {
		return flag
	}
	return a.getenv("FABRIC_CONFIG")
}

// changed returns the settings that the command line gave.
func changed(cmd *cobra.Command) map[string]string {
	flags := map[string]string{}
	for _, s := range daemon.Settings() {
		if f := cmd.Flags().Lookup(s.Key); f.Changed {
			flags[s.Key] = f.Value.String()
		}
	}
	return flags
}

// heapFloor is how many bytes a node allocates at least before it collects garbage. Its
// live heap is a few megabytes, and by that measure alone it would collect every few
// milliseconds under load: with 1 % of the packets lost, when a link depends on fast
// acknowledgements, that cost a fifth of its goodput. The kernel gives no memory for
// bytes that are never touched.
const heapFloor = 8 << 20

// readyEvery is how often a node that does not serve yet is checked.
const readyEvery = 100 * time.Millisecond

// serve returns when the node ends or ctx is done. Until then each signal of hup
// reloads its settings, and the service manager is notified of its state.
func serve(ctx context.Context, d *daemon.Daemon, log zerolog.Logger, hup <-chan os.Signal, notify *daemon.Notifier) {
	look, ready := time.NewTicker(readyEvery), false
	defer look.Stop()
	for {
		select {
		case <-look.C:
			h := d.Health() // which takes the locks that a stuck node would hold
			if h.Healthy && !ready {
				ready = true
				notify.Ready()
				look.Reset(notify.Every())
			}
			notify.Alive(h.Detail)
		case <-hup:
			_ = d.ReloadSettings() // which has logged it
		case <-ctx.Done():
			log.Info().Str("op", "leave").Msg("stopping: a signal asked for it")
			return
		case <-d.Done():
			log.Error().Str("op", "run").Err(d.Err()).Msg("node ended")
			return
		}
	}
}

// runNode runs a node until ctx is done and then leaves.
func runNode(ctx context.Context, c daemon.Config, notify *daemon.Notifier, o daemon.Options) error {
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	o.Waits = notify.Status
	o.Heap = daemon.NewHeap()
	defer o.Heap.Close()
	log := o.Log.With().Str("node", c.Name).Logger()
	hup := make(chan os.Signal, 1) // before the start: SIGHUP without a receiver ends the process
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	d, err := daemon.Start(ctx, c, o)
	if err != nil && ctx.Err() != nil {
		log.Info().Str("op", "run").Err(err).Msg("stopped by a signal before the node had joined")
		return nil
	}
	if err != nil {
		return err
	}
	log = o.Log.With().Str("node", d.Status().Name).Logger() // the node may have kept an earlier name
	serve(ctx, d, log, hup, notify)
	notify.Stopping()
	leaving, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := d.Leave(leaving); err != nil {
		log.Warn().Str("op", "leave").Err(err).Msg("stopped without a leave message; peers detect it by timeout")
	}
	if err := d.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return d.Err()
}
