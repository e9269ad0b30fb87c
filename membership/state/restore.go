package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

const (
	// restoreSkew is how far a clock may be behind that of the machine of the backup.
	restoreSkew = time.Hour
	// dirStaged is where the files of a backup are written before they take their
	// places, and keptPrefix begins the name of the directory of those that were
	// there.
	dirStaged  = "restoring"
	keptPrefix = "before-restore-"
)

// ErrClock means that a clock cannot be right.
var ErrClock = errors.New("the clock is wrong")

// Restore makes dir the state directory of the backup's host. Only with replace it
// does so where there is state: of the same cluster, and kept in the directory that
// is returned. The lease table begins anew at a generation above all that this
// cluster can have granted since the backup; see [Leases.Floor].
//
// The identity is the last file to take its place. A directory in which a crash has
// left a part is refused, until Restore has run again with replace.
//
// Root restores as the owner of the directory, because that user could swap names in
// it meanwhile: the whole process has that user's rights until Restore returns.
func Restore(dir string, b Backup, replace bool, opts Options) (kept string, err error) {
	err = asOwner(dir, func() error {
		s, err := lockDir(dir, opts, true)
		if err != nil {
			return err
		}
		kept, err = s.restore(b, replace)
		return errors.Join(err, s.Close())
	})
	return kept, err
}

// asOwner runs f with the rights of the user that owns dir, if root calls it.
func asOwner(dir string, f func() error) error {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return f() // f makes the directory, or returns why not
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 {
		return f()
	}
	group := os.Getegid()
	groups, err := syscall.Getgroups()
	if err != nil {
		return err
	}
	err = errors.Join(syscall.Setgroups(nil), syscall.Setregid(-1, int(st.Gid)), syscall.Setreuid(-1, int(st.Uid)))
	if err == nil {
		if _, serr := os.Stat(dir); serr != nil {
			err = fmt.Errorf("its user %d, as whom root works there, cannot reach it: %w", st.Uid, serr)
		} else {
			err = f()
		}
	}
	return errors.Join(err, syscall.Setreuid(-1, 0), syscall.Setregid(-1, group), syscall.Setgroups(groups))
}

func (s *State) restore(b Backup, replace bool) (kept string, err error) {
	if now := s.now(); now.Before(b.Made.Add(-restoreSkew)) {
		return "", fmt.Errorf("%w: it says %s, the backup was made at %s: set the clock first", ErrClock,
			now.UTC().Format(time.RFC3339), b.Made.Format(time.RFC3339))
	}
	old, err := s.present()
	if err != nil {
		return "", err
	}
	if len(old) > 0 {
		if err := s.mayReplace(b, replace); err != nil {
			return "", err
		}
	}
	floor, err := s.restoredFloor(b)
	if err != nil {
		return "", err
	}
	staged := s.path(dirStaged)
	if err := os.RemoveAll(staged); err != nil {
		return "", writeError(staged, err)
	}
	defer os.RemoveAll(staged) // empty if all went well
	if err := b.stage(s, staged, floor); err != nil {
		return "", err
	}
	if len(old) > 0 {
		kept = s.path(keptPrefix + s.now().UTC().Format("20060102T150405.000Z"))
		if err := os.Mkdir(kept, 0o700); err != nil {
			return "", writeError(kept, err)
		}
	}
	return kept, s.exchange(staged, kept, old)
}

// present returns the state files that are there.
func (s *State) present() (names []string, err error) {
	all, err := s.fs.List(s.dir)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", s.dir, err)
	}
	for _, name := range all {
		if inBackup(name) || name == fileMarker {
			names = append(names, name)
		}
	}
	return names, nil
}

// mayReplace refuses to replace state without --force, and that of another
// cluster or of a plain node at all. Damaged state may be replaced.
func (s *State) mayReplace(b Backup, replace bool) error {
	if !replace {
		return fmt.Errorf("state directory %s: %w: it was left as it is; --force keeps it aside", s.dir, ErrInitialized)
	}
	var id Identity
	switch err := load(s, fileIdentity, &id, decodeIdentity); {
	case err != nil:
		return nil
	case id.Cluster != b.Identity.Cluster:
		return fmt.Errorf("state directory %s: %w: it is of %s, the backup of %s: use another --state-dir or move it away",
			s.dir, ErrOtherCluster, id.Cluster, b.Identity.Cluster)
	case id.Role != Host:
		return fmt.Errorf("state directory %s: %w: it is a plain node's", s.dir, ErrRole)
	}
	return nil
}

// restoredFloor returns a generation above all those in the backup, and above all
// granted since: far above the terms, which are above the age of the cluster in
// seconds. The remaining files of the replaced state count too.
func (s *State) restoredFloor(b Backup) (addr.Generation, error) {
	s.id = b.Identity
	last := max(b.Term, b.table.highest(), s.ageLocked())
	var term uint64
	if load(s, fileTerm, &term, decodeCounter) == nil {
		last = max(last, term)
	}
	if text, err := readLimited(s.path(fileLeases), maxLeaseFile); err == nil {
		var old leaseCopy
		if old.grants, old.meta, err = parseLeases(text); err == nil {
			last = max(last, old.highest())
		}
	}
	// The same backup may be restored again: generations granted after the restore
	// before this one are below the seconds since.
	if since := s.now().Sub(b.Made); since > 0 {
		last += uint64(since / time.Second)
	}
	if last+rebuildStep >= maxTerm {
		return 0, fmt.Errorf("restore: term %d leaves no room for later ones", last)
	}
	return addr.Generation(last + rebuildStep), nil
}

// highest returns the highest number that a table knows to be used up.
func (t *leaseCopy) highest() uint64 {
	most := max(t.meta.Term, uint64(t.meta.Floor))
	for _, g := range t.grants {
		most = max(most, uint64(g.Generation))
	}
	return most
}

// stage writes the restored files to a directory of their own.
func (b *Backup) stage(s *State, dir string, floor addr.Generation) error {
	if err := s.fs.MakeDir(dir); err != nil {
		return writeError(dir, err)
	}
	epoch, err := b.counter(fileEpoch)
	if err != nil {
		return err
	}
	if now := s.now(); now.After(epochBase) { // as loadEpoch does
		epoch = max(epoch, uint64(now.Unix())<<32)
	}
	own := map[string][]byte{
		fileTerm:  Seal(fileTerm, encodeCounter(uint64(floor))),
		fileEpoch: Seal(fileEpoch, encodeCounter(epoch)),
	}
	for name, text := range b.files {
		if name == fileLeases || name == fileSealed {
			continue
		}
		if own[name] != nil {
			text = own[name]
		}
		if err := s.fs.WriteFile(filepath.Join(dir, name), text); err != nil {
			return writeError(filepath.Join(dir, name), err)
		}
	}
	l := newLeases(s.fs, dir, &s.trouble)
	l.grants, l.meta = b.table.grants, b.table.meta
	l.meta.Seq++
	l.meta.Term, l.meta.Floor = uint64(floor), floor
	return errors.Join(l.save(), l.close())
}

// exchange moves the old files to kept and the staged ones to their place, one name
// after the other and the identity first and last: in between the directory is one
// without an identity, which nothing opens or makes anew.
func (s *State) exchange(staged, kept string, old []string) error {
	staging, err := s.fs.List(staged)
	if err != nil {
		return err
	}
	if err := s.move(s.dir, kept, old, fileIdentity); err != nil {
		return err
	}
	for _, name := range staging {
		if name == fileIdentity {
			continue
		}
		if err := errors.Join(s.move(s.dir, kept, old, name), s.move(staged, s.dir, staging, name)); err != nil {
			return err
		}
	}
	for _, name := range old {
		if name != fileIdentity && !slices.Contains(staging, name) {
			if err := s.move(s.dir, kept, old, name); err != nil {
				return err
			}
		}
	}
	if err := s.fs.SyncDir(s.dir); err != nil { // before the identity makes it valid
		return writeError(s.dir, err)
	}
	if err := s.move(staged, s.dir, staging, fileIdentity); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return writeError(s.dir, err)
	}
	return nil
}

// move moves a file to another directory, if it is one of those that are there.
func (s *State) move(from, to string, there []string, name string) error {
	if !slices.Contains(there, name) {
		return nil
	}
	if err := s.fs.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
		return fmt.Errorf("state directory %s is half restored; run restore again with --force: %w", s.dir, err)
	}
	return nil
}
