package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	// backupKind is the kind of a backup in its header; see [Seal].
	backupKind = "backup"
	// MaxBackup bounds an encoded backup, in bytes: a full lease table and every
	// other file at its bound, in base64.
	MaxBackup = 256 << 20
)

// A Backup is a copy of a host's state directory at one moment. It holds the
// cluster's secrets.
type Backup struct {
	Identity Identity
	Made     time.Time
	Term     uint64 // the host's
	Leases   int    // IDs in the lease table

	files map[string][]byte // as they lie in the directory, by name
	table leaseCopy
}

// A leaseCopy is the content of a lease file.
type leaseCopy struct {
	grants map[addr.NodeID]verdict.Lease
	meta   leaseMeta
}

// backupJSON is the content of a backup file.
type backupJSON struct {
	Made  int64             `json:"made"` // seconds since 1970
	Files map[string][]byte `json:"files"`
}

// Backup returns a copy of the open directory. No writes happen meanwhile, so it
// equals the state that a crash at this moment would leave.
func (s *State) Backup() (Backup, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return Backup{}, ErrClosed
	}
	if s.leases != nil {
		s.leases.mu.Lock()
		defer s.leases.mu.Unlock()
	}
	return readBackup(s.fs, s.dir, s.now())
}

// BackupOf returns a copy of a directory that no process has open. It changes
// nothing there. Root has the rights of the directory's user meanwhile, as in [Restore].
func BackupOf(dir string, opts Options) (b Backup, err error) {
	err = asOwner(dir, func() error {
		s, err := lockDir(dir, opts, false)
		if err != nil {
			return err
		}
		b, err = readBackup(s.fs, dir, s.now())
		return errors.Join(err, s.Close())
	})
	return b, err
}

// readBackup reads the files of a directory that does not change, and checks them.
func readBackup(fsys FS, dir string, now time.Time) (Backup, error) {
	b := Backup{Made: now.UTC().Truncate(time.Second), files: map[string][]byte{}}
	names, err := fsys.List(dir)
	if err != nil {
		return b, fmt.Errorf("state directory %s: %w", dir, err)
	}
	if !slices.Contains(names, fileIdentity) {
		return b, fmt.Errorf("state directory %s: %w", dir, ErrNotInitialized)
	}
	for _, name := range names {
		if !inBackup(name) {
			continue
		}
		if b.files[name], err = fsys.ReadFile(filepath.Join(dir, name), maxLeaseFile); err != nil {
			return b, fmt.Errorf("state file %s: %w", filepath.Join(dir, name), err)
		}
	}
	if err := b.parse(); err != nil {
		return b, fmt.Errorf("state directory %s: %w", dir, err)
	}
	return b, nil
}

// inBackup reports whether a file belongs to a backup: all of the host's state, but
// not its log.
func inBackup(name string) bool { return name == fileIdentity || isStateFile(name) }

// parse checks every file and fills in their values.
func (b *Backup) parse() error {
	for name, text := range b.files {
		if !inBackup(name) {
			return damaged("it has a file %.40q", name)
		}
		if name == fileLeases {
			continue
		}
		if _, err := Unseal(name, text); err != nil {
			return fmt.Errorf("file %s: %w", name, err)
		}
	}
	id, err := Unseal(fileIdentity, b.files[fileIdentity])
	if err == nil {
		b.Identity, err = decodeIdentity(id)
	}
	if err != nil {
		return fmt.Errorf("file %s: %w", fileIdentity, err)
	}
	if b.Identity.Role != Host {
		return fmt.Errorf("%w: it is a plain node's; only the host's is backed up", ErrRole)
	}
	if b.Term, err = b.counter(fileTerm); err != nil {
		return err
	}
	if _, err = b.counter(fileEpoch); err != nil {
		return err
	}
	return b.parseTable()
}

// counter returns the number in a file.
func (b *Backup) counter(name string) (n uint64, err error) {
	text, err := Unseal(name, b.files[name])
	if err == nil {
		n, err = decodeCounter(text)
	}
	if err != nil {
		return 0, fmt.Errorf("file %s: %w", name, err)
	}
	return n, nil
}

func (b *Backup) parseTable() (err error) {
	if b.table.grants, b.table.meta, err = parseLeases(b.files[fileLeases]); err != nil {
		return fmt.Errorf("file %s: %w", fileLeases, err)
	}
	seal, err := decodeSealFile(b.files[fileSealed])
	if err == nil {
		err = b.table.meta.matches(seal)
	}
	if err != nil {
		return fmt.Errorf("file %s: %w", fileSealed, err)
	}
	b.Leases = len(b.table.grants)
	return nil
}

// Encode returns the bytes of a backup file. They hold the cluster's secrets.
func (b *Backup) Encode() []byte {
	return Seal(backupKind, mustJSON(backupJSON{b.Made.Unix(), b.files}))
}

// DecodeBackup reads a backup file: exactly the output of [Backup.Encode], or an
// error that wraps [ErrDamaged], [ErrNewer] or [ErrRole].
func DecodeBackup(text []byte) (Backup, error) {
	content, err := Unseal(backupKind, text)
	if err != nil {
		return Backup{}, err
	}
	var j backupJSON
	if err := json.Unmarshal(content, &j); err != nil {
		return Backup{}, damaged("%w", err)
	}
	b := Backup{Made: time.Unix(j.Made, 0).UTC(), files: j.Files}
	return b, b.parse()
}

// ReadBackup reads a backup file.
func ReadBackup(path string) (Backup, error) {
	text, err := OS{}.ReadFile(path, MaxBackup)
	if err != nil {
		return Backup{}, err
	}
	return DecodeBackup(text)
}

// WriteBackup writes a backup to a new file with mode 0600, on the disk when it
// returns. After an error there is none.
func WriteBackup(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		return OS{}.SyncDir(filepath.Dir(path))
	}
	return errors.Join(err, os.Remove(path))
}
