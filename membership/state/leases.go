package state

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/verdict"
)

// Leases is the host's table of node IDs: for every ID that was ever granted,
// its lease, and the allocation cursor. It lies in the bbolt file leases.db
// and, for reading, in memory.
//
// The seal file beside it repeats the table's sequence number and digest after
// each commit. bbolt alone would quietly go back one commit when its newest
// meta page is damaged, and would lose records whose pages are; with the seal
// both are noticed when the table is opened.
//
// After a failed commit nothing is known about the file, not even whether pages
// that were written before are durable (a failed sync may drop them). The next
// commit then writes a new file from memory.
//
// Its methods may be called by several goroutines.
type Leases struct {
	fs      FS
	faults  *failpoint.Node // used by fs, for operations that do not go through it
	trouble *trouble        // of the directory
	path    string          // of leases.db
	seal    string          // of leases.seal

	mu     sync.Mutex // guards the fields below; held during a commit
	grants map[addr.NodeID]verdict.Lease
	meta   leaseMeta // of the table that is on the disk and sealed
	// seq is the last sequence number that was tried: it is meta.Seq, or
	// more after failures. A number is never used for two contents, because
	// a failed commit may have reached the disk all the same.
	seq    uint64
	file   *leaseFile // nil after a failure, until the next commit
	closed bool
}

// A digest is the XOR of the halved SHA-256 of all records, which a change of
// one record updates without reading the others.
type digest [16]byte

// toggle adds a grant to the digest, or takes it out again.
func (d *digest) toggle(g verdict.Lease) {
	sum := sha256.Sum256(AppendLease(nil, g))
	for i := range d {
		d[i] ^= sum[i]
	}
}

// All returns all grants in the order of their IDs.
func (l *Leases) All() []verdict.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.grants), func(a, b verdict.Lease) int { return int(a.ID) - int(b.ID) })
}

// Cursor returns the allocation cursor that was last stored.
func (l *Leases) Cursor() addr.NodeID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meta.Cursor
}

// Term returns the host's last term.
func (l *Leases) Term() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meta.Term
}

// Floor returns the generation below which no ID that is not in the table may
// be granted: 0, or after a lost table was rebuilt, a number above every
// generation that it can have granted.
func (l *Leases) Floor() addr.Generation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meta.Floor
}

// Put stores grants and keeps the cursor; see [Leases.Commit].
func (l *Leases) Put(grants ...verdict.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commitLocked(l.meta.Term, l.meta.Cursor, grants)
}

// Commit stores grants and the cursor together: after a crash all of it is there or
// none. Once it returns nil, all of it lasts; only then may a grant be sent to any
// node. After an error the table is as it was before, and a later Commit works once
// its cause is gone.
//
// A grant whose generation is lower than the ID's is [ErrOldGeneration].
func (l *Leases) Commit(cursor addr.NodeID, grants ...verdict.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commitLocked(l.meta.Term, cursor, grants)
}

func (l *Leases) setTerm(term uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commitLocked(term, l.meta.Cursor, nil)
}

func (l *Leases) commitLocked(term uint64, cursor addr.NodeID, grants []verdict.Lease) error {
	if l.closed {
		return fmt.Errorf("store leases: %w", ErrClosed)
	}
	next := l.meta
	next.Seq, next.Term, next.Cursor = l.seq+1, term, cursor
	grants, err := l.prepareLocked(&next, grants)
	if err != nil {
		return fmt.Errorf("store leases: %w", err)
	}
	l.seq++
	err = l.storeLocked(next, grants)
	l.trouble.set(&l.trouble.table, err)
	if err != nil {
		l.abandonLocked()
		return err
	}
	for _, g := range grants {
		l.grants[g.ID] = g
	}
	l.meta = next
	return nil
}

// prepareLocked checks grants, brings them to the form in which they will be
// read back, and counts them in next.
func (l *Leases) prepareLocked(next *leaseMeta, grants []verdict.Lease) ([]verdict.Lease, error) {
	seen := map[addr.NodeID]bool{}
	grants = slices.Clone(grants)
	for i := range grants {
		g := &grants[i]
		if err := check(*g); err != nil {
			return nil, err
		}
		if seen[g.ID] {
			return nil, fmt.Errorf("lease %d is there twice", g.ID)
		}
		seen[g.ID] = true
		g.Since, g.Reason = g.Since.Round(0).UTC(), ""
		old, ok := l.grants[g.ID]
		switch {
		case !ok && g.Generation < next.Floor:
			return nil, fmt.Errorf("lease %d: %w: generation %d, the table begins with %d", g.ID, ErrOldGeneration, g.Generation, next.Floor)
		case !ok:
			next.Count++
		case g.Generation < old.Generation:
			return nil, fmt.Errorf("lease %d: %w: from %d to %d", g.ID, ErrOldGeneration, old.Generation, g.Generation)
		default:
			next.Digest.toggle(old)
		}
		next.Digest.toggle(*g)
	}
	return grants, nil
}

// storeLocked makes a commit last: the table first, then its seal. A crash in between
// leaves a table that is one commit ahead, which was not reported to any node.
func (l *Leases) storeLocked(next leaseMeta, grants []verdict.Lease) error {
	if err := l.faults.Hit(failpoint.TableBegun); err != nil {
		return writeError(l.path, err)
	}
	if l.file == nil {
		if err := l.rewriteLocked(next, grants); err != nil {
			return err
		}
	} else if err := l.file.update(next, grants); err != nil {
		return writeError(l.path, err)
	}
	if err := l.faults.Hit(failpoint.TableWritten); err != nil {
		return writeError(l.path, err)
	}
	return writeAtomic(l.fs, l.seal, Seal(fileSealed, next.sealed()))
}

// rewriteLocked writes a whole new file with the table in memory, changed by
// grants.
func (l *Leases) rewriteLocked(next leaseMeta, grants []verdict.Lease) error {
	all := maps.Clone(l.grants)
	for _, g := range grants {
		all[g.ID] = g
	}
	tmp := l.path + tmpSuffix
	file, err := newLeaseFile(tmp, l.faults)
	if err != nil {
		return writeError(l.path, err)
	}
	err = file.update(next, slices.Collect(maps.Values(all)))
	if err == nil {
		err = l.fs.Rename(tmp, l.path)
	}
	if err == nil {
		err = l.fs.SyncDir(filepath.Dir(l.path))
	}
	if err != nil {
		err = errors.Join(err, file.close())
		_ = l.fs.Remove(tmp) // gives back the space; it may be renamed already
		return writeError(l.path, err)
	}
	l.file = file
	return nil
}

// abandonLocked forgets a file of which nothing is known any more.
func (l *Leases) abandonLocked() {
	if l.file != nil {
		_ = l.file.close() // its failure adds nothing: a new file replaces it
		l.file = nil
	}
}

func (l *Leases) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file == nil {
		return nil
	}
	err := l.file.close()
	l.file = nil
	return err
}

// sealJSON is the content of the seal file.
type sealJSON struct {
	Seq    uint64 `json:"seq"`
	Term   uint64 `json:"term"`
	Count  uint32 `json:"count"`
	Digest []byte `json:"digest"`
}

func (m leaseMeta) sealed() []byte {
	return mustJSON(sealJSON{m.Seq, m.Term, m.Count, m.Digest[:]})
}

func decodeSealFile(b []byte) (s sealJSON, err error) {
	content, err := Unseal(fileSealed, b)
	if err != nil {
		return sealJSON{}, err
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return sealJSON{}, damaged("%w", err)
	}
	return s, nil
}

// createLeases makes a new table without grants.
func createLeases(fsys FS, dir string, meta leaseMeta, t *trouble) (*Leases, error) {
	l := newLeases(fsys, dir, t)
	l.meta = meta
	return l, l.save()
}

func newLeases(fsys FS, dir string, t *trouble) *Leases {
	return &Leases{
		fs:      fsys,
		faults:  faultsOf(fsys),
		trouble: t,
		path:    filepath.Join(dir, fileLeases),
		seal:    filepath.Join(dir, fileSealed),
		grants:  map[addr.NodeID]verdict.Lease{},
	}
}

// openLeases reads a table, refuses one that is damaged or older than its seal,
// and writes it anew, so that bbolt never opens a file that it has not written
// in this process: bbolt trusts its pages and crashes on bad ones.
func openLeases(fsys FS, dir string, t *trouble) (*Leases, error) {
	l := newLeases(fsys, dir, t)
	b, err := readLimited(l.path, maxLeaseFile)
	if err == nil {
		l.grants, l.meta, err = parseLeases(b)
	}
	if err != nil {
		return nil, leaseError(l.path, err)
	}
	b, err = fsys.ReadFile(l.seal, MaxFile)
	var seal sealJSON
	if err == nil {
		seal, err = decodeSealFile(b)
	}
	if err != nil {
		return nil, leaseError(l.seal, err)
	}
	if err := l.meta.matches(seal); err != nil {
		return nil, leaseError(l.path, err)
	}
	l.seq = l.meta.Seq
	return l, l.save()
}

// save writes the table anew, file and seal.
func (l *Leases) save() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.storeLocked(l.meta, nil); err != nil {
		l.abandonLocked()
		return err
	}
	return nil
}

func leaseError(path string, err error) error {
	if missing(err) {
		err = damaged("missing")
	}
	advice := adviseLeases
	if errors.Is(err, ErrNewer) {
		advice = adviseNewer
	}
	return &FileError{path, advice, err}
}

// matches compares the table with its seal. The table may be ahead of it, by
// commits that failed or were cut off by a crash before they were acknowledged.
func (m leaseMeta) matches(s sealJSON) error {
	switch {
	case m.Seq < s.Seq:
		return damaged("it is older than %s: commit %d, want %d", fileSealed, m.Seq, s.Seq)
	case m.Seq == s.Seq && string(m.sealed()) != string(mustJSON(s)):
		return damaged("it differs from %s", fileSealed)
	case m.Term < s.Term:
		return damaged("%s is of another table", fileSealed)
	}
	return nil
}

// parseLeases reads and checks the content of a lease file.
func parseLeases(b []byte) (map[addr.NodeID]verdict.Lease, leaseMeta, error) {
	pairs, err := readBolt(b, leaseBucket)
	if err != nil {
		return nil, leaseMeta{}, err
	}
	grants := make(map[addr.NodeID]verdict.Lease, len(pairs))
	var meta leaseMeta
	var sum digest
	metas := 0
	for _, p := range pairs {
		if string(p.key) == metaKey {
			if meta, err = parseMeta(p.value); err != nil {
				return nil, leaseMeta{}, err
			}
			metas++
			continue
		}
		g, err := ParseLease(p.value)
		if err != nil {
			return nil, leaseMeta{}, err
		}
		if _, twice := grants[g.ID]; twice || string(p.key) != string(grantKey(g.ID)) {
			return nil, leaseMeta{}, damaged("lease %d is in a wrong place", g.ID)
		}
		grants[g.ID] = g
		sum.toggle(g)
	}
	if metas != 1 || meta.Count != uint32(len(grants)) || meta.Digest != sum {
		return nil, leaseMeta{}, damaged("its %d leases are not those that were stored", len(grants))
	}
	return grants, meta, nil
}

func grantKey(id addr.NodeID) []byte { return binary.BigEndian.AppendUint16(nil, uint16(id)) }
