package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
)

var errCrash = errors.New("the machine crashed")

// A memFS is an FS in memory that can fail, and crash. It keeps apart the present
// content of a name and its content after a crash: contents last once written and
// synced (WriteFile), names once their directory is synced.
type memFS struct {
	names   map[string][]byte // as seen now; contents are never modified
	durable map[string][]byte // as seen after a crash
	dirs    map[string]bool
	locked  map[string]bool
	ops     int // so far, of those that change something
	crashAt int // the operation from which nothing works; 0: never
	// fail, if set, may let an operation fail; a WriteFile that fails leaves
	// half of its content.
	fail func(op, path string) error
}

func newMemFS() *memFS {
	return &memFS{
		names:   map[string][]byte{},
		durable: map[string][]byte{},
		dirs:    map[string]bool{},
		locked:  map[string]bool{},
	}
}

// clone copies the file system as it is, without locks and faults.
func (m *memFS) clone() *memFS {
	c := newMemFS()
	c.names, c.durable, c.dirs = maps.Clone(m.names), maps.Clone(m.durable), maps.Clone(m.dirs)
	return c
}

// crash returns the files that a restarted machine finds: all names as of the last
// sync of their directory, or (eager) as they were: disks may write early.
func (m *memFS) crash(eager bool) *memFS {
	c := m.clone()
	if eager {
		c.durable = maps.Clone(c.names)
	}
	c.names = maps.Clone(c.durable)
	return c
}

func (m *memFS) op(name, path string) error {
	m.ops++
	if m.crashAt > 0 && m.ops >= m.crashAt {
		return errCrash
	}
	if m.fail != nil {
		return m.fail(name, path)
	}
	return nil
}

func (m *memFS) MakeDir(dir string) error {
	if m.dirs[dir] {
		return nil
	}
	if err := m.op("mkdir", dir); err != nil {
		return err
	}
	m.dirs[dir] = true
	return nil
}

func (m *memFS) List(dir string) ([]string, error) {
	if !m.dirs[dir] {
		return nil, fs.ErrNotExist
	}
	var list []string
	for path := range m.names {
		if filepath.Dir(path) == dir {
			list = append(list, filepath.Base(path))
		}
	}
	slices.Sort(list)
	return list, nil
}

func (m *memFS) ReadFile(path string, limit int64) ([]byte, error) {
	b, ok := m.names[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	if int64(len(b)) > limit {
		return nil, damaged("more than %d bytes", limit)
	}
	return slices.Clone(b), nil
}

func (m *memFS) WriteFile(path string, b []byte) error {
	err := m.op("write", path)
	if err != nil {
		b = b[:len(b)/2]
	}
	m.names[path] = slices.Clone(b)
	return err
}

func (m *memFS) Rename(oldPath, newPath string) error {
	if err := m.op("rename", newPath); err != nil {
		return err
	}
	m.names[newPath] = m.names[oldPath]
	delete(m.names, oldPath)
	return nil
}

func (m *memFS) Remove(path string) error {
	if _, ok := m.names[path]; !ok {
		return fs.ErrNotExist
	}
	if err := m.op("remove", path); err != nil {
		return err
	}
	delete(m.names, path)
	return nil
}

func (m *memFS) SyncDir(dir string) error {
	if err := m.op("sync", dir); err != nil {
		return err
	}
	m.durable = maps.Clone(m.names)
	return nil
}

func (m *memFS) Look(string) error { return nil }

func (m *memFS) Lock(path string) (io.Closer, error) {
	if m.locked[path] {
		return nil, fmt.Errorf("%w (process 1)", ErrLocked)
	}
	m.locked[path] = true
	return unlock(func() { delete(m.locked, path) }), nil
}

type unlock func()

func (u unlock) Close() error { u(); return nil }

// A faultyOS is the real FS with operations that can fail.
type faultyOS struct {
	OS
	fail func(op, path string) error
}

func (f *faultyOS) try(op, path string) error {
	if f.fail == nil {
		return nil
	}
	return f.fail(op, filepath.Base(path))
}

func (f *faultyOS) WriteFile(path string, b []byte) error {
	if err := f.try("write", path); err != nil {
		return err
	}
	return f.OS.WriteFile(path, b)
}

func (f *faultyOS) Rename(oldPath, newPath string) error {
	if err := f.try("rename", newPath); err != nil {
		return err
	}
	return f.OS.Rename(oldPath, newPath)
}

func (f *faultyOS) SyncDir(dir string) error {
	if err := f.try("sync", dir); err != nil {
		return err
	}
	return f.OS.SyncDir(dir)
}
