package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/membership/trust"
)

// A Need is something of this machine without which a node does not start.
type Need struct {
	Setting string // that names it
	Value   string
	Err     error // why it cannot be had; nil: it can
	// Taken: another process has it, maybe a node that runs.
	Taken bool
	// Spare: a node that has been a member before does without it.
	Spare bool
}

// leastFree is how much room the file system of a state directory should have.
// A node writes little there, but the writes have to succeed.
const leastFree = 64 << 20

// Needs finds out which of the resources in c a node could have here. It leaves everything as it
// is; a port is open for a moment.
func Needs(c Config) []Need {
	all := []Need{
		needPort("data-port", c, c.Network.DataPort),
		needPort("gossip-port", c, c.Network.GossipPort),
		needSocket("socket", absolute(c.Local.Socket), "unix"),
		needSocket("admin", absolute(c.Local.AdminSocket), "unixpacket"),
		needState(c.StateDir),
	}
	if c.TokenFile != "" {
		all = append(all, needToken(c))
	}
	if c.TLS.CA != "" {
		_, err := trust.LoadOperator(trust.Files(c.TLS), time.Now)
		all = append(all, Need{Setting: "cert", Value: c.TLS.Cert, Err: err})
	}
	return all
}

func needPort(setting string, c Config, port uint16) Need {
	pair, err := listenPair(setting, c.Network.Bind, port)
	pair.close()
	return Need{Setting: setting, Value: strconv.Itoa(int(port)), Err: err, Taken: errors.Is(err, syscall.EADDRINUSE)}
}

// needSocket is about a Unix socket. other is a kind that its listener is not of: to
// dial with it shows whether a process listens, and does not connect.
func needSocket(setting, path, other string) Need {
	n := Need{Setting: setting, Value: path}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		n.Err = canMake(filepath.Dir(path))
		return n
	case err != nil:
		n.Err = err
		return n
	case info.Mode().Type() != fs.ModeSocket:
		n.Err = fmt.Errorf("%s exists and is not a socket", path)
		return n
	}
	c, err := net.Dial(other, path)
	switch {
	case err == nil:
		c.Close()
		n.Taken, n.Err = true, fmt.Errorf("another process listens on %s", path)
	case errors.Is(err, syscall.EPROTOTYPE):
		n.Taken, n.Err = true, fmt.Errorf("another process listens on %s", path)
	case errors.Is(err, syscall.ECONNREFUSED): // no listener: a node would replace it
		n.Err = canMake(filepath.Dir(path))
	default:
		n.Err = fmt.Errorf("%s is in use or not ours: %w", path, syscallCause(err))
	}
	return n
}

// absolute returns path from the root, if that is known.
func absolute(path string) string {
	if p, err := filepath.Abs(path); err == nil {
		return p
	}
	return path
}

func needToken(c Config) Need {
	n := Need{Setting: "token-file", Value: c.TokenFile}
	_, n.Err = checkSecret("token-file", c.TokenFile)
	switch {
	case n.Err != nil:
	case c.TLS.CA != "":
		_, n.Err = readKeyring(c.TokenFile)
	default:
		_, n.Err = readToken(c.TokenFile)
	}
	if errors.Is(n.Err, fs.ErrNotExist) {
		entries, err := os.ReadDir(c.StateDir)
		n.Spare = err == nil && len(entries) > 0
	}
	return n
}

func needState(dir string) Need {
	n := Need{Setting: "state-dir", Value: dir}
	there, err := innermost(dir)
	if err == nil {
		err = canMake(dir)
	}
	if err == nil {
		err = hasRoom(there)
	}
	n.Err = err
	return n
}

// hasRoom reports whether the file system of dir has room for the files of a node.
func hasRoom(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < leastFree {
		return fmt.Errorf("the file system of %s has %d MiB left, want %d: %w", dir, free>>20, leastFree>>20, syscall.ENOSPC)
	}
	return nil
}

// canMake reports whether this process can make and write to a directory, as far as
// that shows without doing it.
func canMake(dir string) error {
	there, err := innermost(dir)
	if err != nil {
		return err
	}
	const writable = 2 | 1 // W_OK, X_OK of unistd.h
	if err := syscall.Access(there, writable); err != nil {
		return fmt.Errorf("%s cannot be written: %w", there, err)
	}
	return nil
}

// innermost returns dir, or the innermost of the directories around it that exists.
func innermost(dir string) (string, error) {
	for {
		info, err := os.Stat(dir)
		up := filepath.Dir(dir)
		switch {
		case err == nil && info.IsDir():
			return dir, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory", dir)
		case !errors.Is(err, fs.ErrNotExist) || up == dir:
			return "", err
		}
		dir = up
	}
}
