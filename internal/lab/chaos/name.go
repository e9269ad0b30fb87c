package chaos

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// prefix begins the name of everything that a run makes on the machine.
const prefix = "fch-"

// A Name is the name of one run of this machine: a process, by its number and
// the time of its start, so that a number that is used again is another name,
// and which of the runs that the process makes at a time. Directories, network
// namespaces, control groups, containers and networks of the run begin with it.
type Name string

// ownName returns the name of a run of this process.
func ownName(worker int) Name {
	pid := os.Getpid()
	return Name(fmt.Sprintf("%s%d-%s-%d", prefix, pid, startOf(pid), worker))
}

// nameFields is how many numbers a name has.
const nameFields = 3

// nameIn returns the name that text begins with; false if it begins with none.
func nameIn(text string) (Name, bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return "", false
	}
	parts := strings.SplitN(rest, "-", nameFields+1)
	if len(parts) < nameFields {
		return "", false
	}
	for _, p := range parts[:nameFields] {
		if _, err := strconv.ParseUint(p, 10, 63); err != nil {
			return "", false
		}
	}
	return Name(prefix + strings.Join(parts[:nameFields], "-")), true
}

// alive reports whether the process that n names still runs.
func (n Name) alive() bool {
	parts := strings.Split(strings.TrimPrefix(string(n), prefix), "-")
	pid, err := strconv.Atoi(parts[0])
	return err == nil && startOf(pid) == parts[1] && stateOf(pid) != "Z"
}

// A lock is held by the one run of this user that uses the machine. Two runs
// at once would measure each other.
type lock struct{ file *os.File }

// takeLock takes the lock of directory dir. The kernel gives it back when the
// process ends in any way.
func takeLock(dir string) (*lock, error) {
	path := fmt.Sprintf("%s/fabricd-chaos-%d.lock", dir, os.Getuid())
	for {
		l, err := lockFile(path)
		if err != nil {
			return nil, err
		}
		if l.current() {
			return l, nil
		}
		l.file.Close() // the run before removed it between the open and the lock
	}
}

// lockFile opens and locks the file at path.
func lockFile(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.Read(holder) // the number is for people; without it the line is as true
		f.Close()
		return nil, refusef("another run of fabricd chaos is under way (process %s): two at once would measure each other",
			strings.TrimSpace(string(holder[:n])))
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock: %w", err)
	}
	return &lock{f}, nil
}

// current reports whether the locked file is the one that other runs would open.
func (l *lock) current() bool {
	mine, err := l.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(l.file.Name())
	return err == nil && os.SameFile(mine, there)
}

// release removes the file, while it is locked so that it is no other run's, and
// gives the lock back.
func (l *lock) release() {
	_ = os.Remove(l.file.Name()) // a file that stays does no harm
	l.file.Close()
}
