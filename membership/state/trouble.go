package state

import (
	"errors"
	"fmt"
	"sync"
)

// fileProbe is written, and removed again, to find out whether writing works.
const fileProbe = "probe"

// A trouble keeps a directory from being written. Its lock is never held while a file
// is: a caller does not wait for a slow disk.
type trouble struct {
	mu    sync.Mutex // guards the fields below
	files error      // of the last write of a file; nil if it worked
	table error      // of the last commit of the lease table; nil if it worked
	look  error      // of the last look at the file system
}

func (t *trouble) set(field *error, err error) {
	if errors.Is(err, ErrClosed) {
		return // the directory's end, not its disk's
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	*field = err
}

func (t *trouble) get() (files, table, look error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.files, t.table, t.look
}

// Trouble returns why the directory cannot be written now, as far as was seen:
// the last write failed, or [State.Maintain] found no room. It is nil if all is well.
func (s *State) Trouble() error {
	files, table, look := s.trouble.get()
	for _, err := range []error{table, files, look} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Maintain checks whether the directory can be written and, after a write that failed,
// tries whether it works again. The owner of a State calls it regularly, about once a
// second. It returns the result of [State.Trouble].
func (s *State) Maintain() error {
	err := s.fs.Look(s.dir)
	if err != nil {
		err = writeError(s.dir, err)
	}
	s.trouble.set(&s.trouble.look, err)
	files, table, _ := s.trouble.get()
	if err == nil && files != nil {
		s.probe()
	}
	if err == nil && table != nil && s.leases != nil {
		_ = s.leases.Put() // the trouble records its error
	}
	return s.Trouble()
}

// probe finds out whether files can be written. A failure is noted by put.
func (s *State) probe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.put(fileProbe, nil); err != nil {
		return
	}
	if err := s.fs.Remove(s.path(fileProbe)); err != nil {
		s.trouble.set(&s.trouble.files, fmt.Errorf("remove %s: %w", s.path(fileProbe), err))
	}
}
