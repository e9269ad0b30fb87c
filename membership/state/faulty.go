package state

import (
	"io/fs"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// faulty is a file system whose changes meet the faults of a node: before each
// of them the disk may be full, read-only or slow, behind each the sync may
// fail, and every replaced file comes by the steps of package failpoint.
type faulty struct {
	FS
	faults *failpoint.Node
}

// faultsOf returns the faults that a file system meets, nil if it meets none.
func faultsOf(fsys FS) *failpoint.Node {
	if f, ok := fsys.(faulty); ok {
		return f.faults
	}
	return nil
}

// touch fails as the disk does.
func (f faulty) touch(what failpoint.DiskOp, op, path string) error {
	return touch(f.faults, what, op, path)
}

func touch(faults *failpoint.Node, what failpoint.DiskOp, op, path string) error {
	if err := faults.TouchDisk(what); err != nil {
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

func (f faulty) MakeDir(dir string) error {
	if err := f.touch(failpoint.DiskWrite, "mkdir", dir); err != nil {
		return err
	}
	return f.FS.MakeDir(dir)
}

func (f faulty) WriteFile(path string, b []byte) error {
	if err := f.faults.Hit(failpoint.FileBegun); err != nil {
		return err
	}
	if err := f.touch(failpoint.DiskWrite, "write", path); err != nil {
		return err
	}
	if err := f.FS.WriteFile(path, b); err != nil {
		return err
	}
	if err := f.touch(failpoint.DiskLast, "sync", path); err != nil {
		return err
	}
	return f.faults.Hit(failpoint.FileSynced)
}

func (f faulty) Rename(oldPath, newPath string) error {
	if err := f.touch(failpoint.DiskChange, "rename", newPath); err != nil {
		return err
	}
	if err := f.FS.Rename(oldPath, newPath); err != nil {
		return err
	}
	return f.faults.Hit(failpoint.FileRenamed)
}

func (f faulty) Remove(path string) error {
	if err := f.touch(failpoint.DiskChange, "remove", path); err != nil {
		return err
	}
	return f.FS.Remove(path)
}

func (f faulty) SyncDir(dir string) error {
	if err := f.touch(failpoint.DiskLast, "sync", dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

func (f faulty) Look(dir string) error {
	if err := f.faults.DiskState(); err != nil {
		return err
	}
	return f.FS.Look(dir)
}
