package daemon

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"time"

	"github.com/fabricd/fabricd/membership/state"
)

// A Backup describes a backup of a host's state.
type Backup struct {
	Cluster  string    `json:"cluster"`
	Name     string    `json:"name"`
	Made     time.Time `json:"made"`
	Term     uint64    `json:"term"`
	IDs      int       `json:"ids"` // in the lease table
	StateDir string    `json:"state_dir"`
	// File is the path written to or read from, and Kept the directory with the state that a
	// restore has replaced.
	File string `json:"file,omitempty"`
	Kept string `json:"kept,omitempty"`
	// Data are the bytes of the file, with all secrets of the cluster.
	Data []byte `json:"data,omitempty"`
}

func backupOf(b state.Backup, dir string) Backup {
	return Backup{Cluster: b.Identity.Cluster.String(), Name: b.Identity.Name, Made: b.Made, Term: b.Term,
		IDs: b.Leases, StateDir: absolute(dir)}
}

// Backup returns a copy of the state of this host, which runs on.
func (d *Daemon) Backup() (Backup, error) {
	if d.cfg.Role != RoleHost {
		return Backup{}, errors.New("this node is not the host; only the host's state is backed up")
	}
	b, err := d.state.Backup()
	if err != nil {
		return Backup{}, err
	}
	answer := backupOf(b, d.cfg.StateDir)
	answer.Data = b.Encode()
	return answer, nil
}

// BackupStopped returns a copy of the state of a host that does not run. The error
// wraps state.ErrLocked if it does.
func BackupStopped(dir string) (Backup, error) {
	b, err := state.BackupOf(dir, state.Options{})
	if err != nil {
		return Backup{}, stateProblem(dir, err)
	}
	answer := backupOf(b, dir)
	answer.Data = b.Encode()
	return answer, nil
}

// IsRunning reports whether an error means that a fabricd has the directory open.
func IsRunning(err error) bool { return errors.Is(err, state.ErrLocked) }

// Write writes the bytes of a backup to a new file that only this user can read, and
// forgets them.
func (b *Backup) Write(file string) error {
	if err := state.WriteBackup(file, b.Data); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return problem("out", file, "exists already; want a new file", err)
		}
		return problem("out", file, "cannot be written: "+cause(err).Error(), err)
	}
	b.File, b.Data = absolute(file), nil
	return nil
}

// Restore makes dir the state directory of the host that a backup file is of. An existing directory
// is replaced only with force, and kept.
func Restore(file, dir string, force bool) (Backup, error) {
	if _, err := checkSecret("backup", file); err != nil {
		return Backup{}, err
	}
	b, err := state.ReadBackup(file)
	if err != nil {
		return Backup{}, problem("backup", file, "cannot be restored: "+oneLine(cause(err).Error()), err)
	}
	kept, err := state.Restore(dir, b, force, state.Options{})
	if err != nil {
		return Backup{}, stateProblem(dir, err)
	}
	answer := backupOf(b, dir)
	answer.File = absolute(file)
	if kept != "" {
		answer.Kept = filepath.Clean(absolute(kept))
	}
	return answer, nil
}

func (a *admin) backupRoute(mux *http.ServeMux) {
	// Not a GET: the audit log names the process that took the secrets.
	a.on(mux, "POST /v1/backup", taking(func(http.ResponseWriter, *http.Request, struct{}) (any, error) { return a.subject.Backup() }))
}

// Backup asks the host for a copy of its state.
func (c *Client) Backup(ctx context.Context) (Backup, error) {
	return post[Backup](ctx, c, "backup", struct{}{})
}
