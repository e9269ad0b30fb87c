package state

import (
	"os"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	leaseBucket = "leases"
	metaKey     = "meta"
	// boltPage is the page size of lease files, whatever the machine's is.
	boltPage = 4096
	// maxLeaseFile bounds a lease file before it is read. A full table has
	// 65,520 records of about 100 bytes, in pages that may be half empty.
	maxLeaseFile = 64 << 20
)

// A leaseFile is the bbolt file of a table.
type leaseFile struct {
	db *bolt.DB
	// handle is the descriptor behind db, for tests that make it fail.
	handle *os.File
	faults *failpoint.Node // that the disk has; nil: none
}

// newLeaseFile makes an empty file; an old one of the same name is removed.
func newLeaseFile(path string, faults *failpoint.Node) (*leaseFile, error) {
	if err := touch(faults, failpoint.DiskWrite, "open", path); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !missing(err) {
		return nil, err
	}
	f := &leaseFile{faults: faults}
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		// The directory's lock is held, so no process has this one.
		Timeout:  time.Second,
		PageSize: boltPage,
		// Free pages are found again at the next start; a list of them on
		// the disk is one more thing that can be damaged.
		NoFreelistSync: true,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			var err error
			f.handle, err = os.OpenFile(name, flag, mode)
			return f.handle, err
		},
	})
	if err != nil {
		return nil, err
	}
	f.db = db
	return f, nil
}

// update stores grants and the table's record in one durable transaction. A
// fault of its sync comes behind it: as with a real one, it may have lasted.
func (f *leaseFile) update(meta leaseMeta, grants []verdict.Lease) error {
	path := f.db.Path()
	if err := touch(f.faults, failpoint.DiskWrite, "write", path); err != nil {
		return err
	}
	err := f.db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(leaseBucket))
		if err != nil {
			return err
		}
		for _, g := range grants {
			if err := b.Put(grantKey(g.ID), AppendLease(nil, g)); err != nil {
				return err
			}
		}
		return b.Put([]byte(metaKey), meta.encode())
	})
	if err != nil {
		return err
	}
	return touch(f.faults, failpoint.DiskLast, "sync", path)
}

func (f *leaseFile) close() error { return f.db.Close() }

// readLimited reads a whole file whose size it bounds.
func readLimited(path string, limit int64) ([]byte, error) { return OS{}.ReadFile(path, limit) }
