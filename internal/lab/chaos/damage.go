package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// damage kills a daemon, changes a bit of a file of its state and starts it again: it
// has to refuse that, or to come up as another incarnation. When the effect is taken back, a
// refused file is restored and the daemon is started once more.
func (c *cluster) damage(ctx context.Context, s *node, d child, source history.Source, seed uint64) (effect, error) {
	if _, err := c.killChild(ctx, d, source); err != nil {
		return nil, err
	}
	file, good, err := spoil(s.file(s.state), rand.New(rand.NewPCG(seed, uint64(s.index))))
	if err == nil {
		err = s.startDaemon(ctx)
	}
	if err != nil {
		return nil, err
	}
	return s.later(&s.daemon, func(ctx context.Context) (uint64, string, error) {
		d, _ := s.daemon.current()
		if d.running() {
			return 1, fmt.Sprintf("a bit of %s was changed: it came up", filepath.Base(file)), nil
		}
		proof := fmt.Sprintf("a bit of %s was changed: it ended with code %d: %s", filepath.Base(file), d.code(), tailOf(d.log(), 1))
		if d.code() == 0 {
			return 1, proof, errors.New("it ended as if all were well")
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			return 1, proof, err
		}
		return 1, proof, s.startDaemon(ctx)
	}), nil
}

// spoil changes one bit of one file of a state directory, and returns its path and its
// original content.
func spoil(dir string, r *rand.Rand) (file string, good []byte, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return "", nil, err
	}
	var files []string
	for _, f := range all { // in the order of their names
		if info, err := f.Info(); err == nil && info.Mode().IsRegular() && info.Size() > 0 && f.Name() != "lock" { // it is only locked, not read
			files = append(files, filepath.Join(dir, f.Name()))
		}
	}
	if len(files) == 0 {
		return "", nil, fmt.Errorf("%s: no file to damage", dir)
	}
	file = files[r.IntN(len(files))]
	if good, err = os.ReadFile(file); err != nil {
		return "", nil, err
	}
	bad := append([]byte{}, good...)
	bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
	return file, good, os.WriteFile(file, bad, 0o600)
}
