package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

func (a *app) backupCommand() *cobra.Command {
	var f askFlags
	var dir, file string
	cmd := &cobra.Command{
		Use: "backup", Short: "Write the state of the cluster's host to one file, also while it runs",
		Long: `backup runs on the machine of the cluster's host, as a user who may read the host's state
directory or, while fabricd runs, use its admin socket. It writes the state of the host,
identities, leases, keys, tokens and the authority, to a new file with mode 0600. It is as
secret as the state directory: the holder of the file is the cluster. A host that runs is
asked through its admin socket and goes on; of one that does not run the directory is
read, and not changed.

Back up after what a restored host has to know: nodes that have joined, a ban, a
revoked token, a rotated key or authority. An older backup is safe all the same: no ID
and generation is granted twice. The audit log is not in it.`,
		Example: `  fabricd backup --out /backup/fabricd-1
  fabricd backup --state-dir /var/lib/fabricd --out /backup/fabricd-1 --json`,
	}
	f.addTo(cmd)
	cmd.Flags().StringVar(&dir, "state-dir", "", "directory of the host (default $FABRIC_STATE_DIR or "+daemon.Default().StateDir+")")
	cmd.Flags().StringVar(&file, "out", "", "new file to write")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return usagef("out: want --out FILE, a new file")
		}
		b, err := a.takeBackup(cmd, &f, dir)
		if err != nil {
			return err
		}
		if err := b.Write(file); err != nil {
			return err
		}
		if f.json {
			return json.NewEncoder(a.stdout).Encode(b)
		}
		return printLine(a.stdout, "%s: host %q of cluster %s, term %d, %s of nodes; keep it as secret as its keys",
			b.File, b.Name, b.Cluster, b.Term, plural(b.IDs, "ID"))
	}
	return cmd
}

// takeBackup asks the fabricd that runs, and reads the directory if none does. A
// directory that is named is read first: another host may run on the machine.
func (a *app) takeBackup(cmd *cobra.Command, f *askFlags, dir string) (b daemon.Backup, err error) {
	if dir == "" {
		b, err = a.askBackup(cmd, f)
		if f.admin != "" || !daemon.IsAbsent(err) {
			return b, err
		}
		b, read := daemon.BackupStopped(a.stateDir(""))
		if read != nil {
			read = errors.Join(err, read)
		}
		return b, read
	}
	b, err = daemon.BackupStopped(dir)
	if err == nil || !daemon.IsRunning(err) && !errors.Is(err, fs.ErrPermission) {
		return b, err
	}
	b, err = a.askBackup(cmd, f)
	if own, _ := filepath.Abs(dir); err == nil && own != b.StateDir {
		return b, fmt.Errorf("the fabricd that answers has the state directory %s, want %s: --admin names the socket of another one", b.StateDir, own)
	}
	return b, err
}

// askBackup asks a fabricd that runs.
func (a *app) askBackup(cmd *cobra.Command, f *askFlags) (b daemon.Backup, err error) {
	err = a.ask(cmd, f, func(ctx context.Context, c *daemon.Client) error {
		b, err = c.Backup(ctx)
		return err
	})
	return b, err
}

// stateDir returns a directory of the flags, the environment or the default.
func (a *app) stateDir(flag string) string {
	for _, dir := range []string{flag, a.getenv("FABRIC_STATE_DIR")} {
		if dir != "" {
			return dir
		}
	}
	return daemon.Default().StateDir
}

func (a *app) restoreCommand() *cobra.Command {
	var dir string
	var force, asJSON bool
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make a host's state directory from a backup",
		Long: `restore runs on the machine that is to be the cluster's host, as root or the user of its
fabricd, and needs a file of "fabricd backup" that no other user may read. It makes the state
directory from it, before fabricd is started there. The host that the backup is of must not
run any more, anywhere: a cluster has one.

No ID and generation is granted twice, however old the backup is: the restored host
begins far above all that can have been granted since, and members show it what they
were granted. New nodes wait for a few seconds after its start. What happened after
the backup is forgotten: nodes that have joined since join again with a new state
directory and a token, and what was banned, revoked or rotated since has to be again.

A directory that holds state is left as it is unless --force is given; then the state
of the same cluster is kept in a directory below it.`,
		Example: `  fabricd restore /backup/fabricd-1 --state-dir /var/lib/fabricd
  fabricd restore /backup/fabricd-1 --force --json`,
		Args: oneArgument("the file of a backup"),
	}
	cmd.Flags().StringVar(&dir, "state-dir", "", "directory to make (default $FABRIC_STATE_DIR or "+daemon.Default().StateDir+")")
	cmd.Flags().BoolVar(&force, "force", false, "replace the state of the same cluster's host, and keep it aside")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := daemon.Restore(args[0], a.stateDir(dir), force)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(a.stdout).Encode(b)
		}
		if err := printLine(a.stdout, "%s: host %q of cluster %s, as of %s", b.StateDir, b.Name, b.Cluster, b.Made.Format(time.RFC3339)); err != nil {
			return err
		}
		if b.Kept == "" {
			return nil
		}
		return printLine(a.stdout, "what was there is kept in %s", b.Kept)
	}
	return cmd
}
