package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/fabricd/fabricd/cmd/fabric-bench/internal/tools"
)

// A lab is the environment of a measurement, two machines simulated on one: a network namespace
// each, with a veth pair or a long network between them, a fabricd on each, and the communicating
// programs.
type lab struct {
	children
	exe, self string
	spaces    [2]string // names of the namespaces; empty: loopback
	addrs     [2]string // IP addresses
	ports     [2]int    // data ports of the fabricds
	fabricds  [2]*daemon
	carriers  map[string]*carrier
}

// A carrier is two applications, and the helpers that carry their bytes.
type carrier struct {
	client, server *process
	helpers        []*process // their processor time counts too
}

// newLab starts a lab. ctx bounds its start, and its end ends the lab's processes.
func newLab(ctx context.Context, o *runOptions, s setup) (_ *lab, err error) {
	l := &lab{addrs: [2]string{"127.0.0.1", "127.0.0.1"}, ports: [2]int{7700, 7700}, carriers: map[string]*carrier{}}
	if l.exe, err = findFabricd(o.fabricd); err != nil {
		return nil, err
	}
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "fabric-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, l.tails(5)), l.close())
		}
	}()
	if err := os.Chmod(l.dir, 0o755); err != nil { // for PostgreSQL, which runs as another user
		return nil, err
	}
	if o.loopback {
		for i := range l.ports {
			if l.ports[i], err = tools.FreePort(); err != nil {
				return nil, err
			}
		}
	} else if err := l.makeSpaces(ctx, s.way); err != nil {
		return nil, err
	}
	return l, l.startFabricds(ctx, s.flags())
}

// startFabricds creates a cluster of two and waits until both see each other.
func (l *lab) startFabricds(ctx context.Context, flags []string) error {
	join := ""
	for side, name := range []string{"a", "b"} {
		d := newDaemon(l.dir, name)
		d.argv = l.argv(side, d.command(l.exe, l.addrs[side], l.ports[side], join, flags)...)
		l.fabricds[side] = d
		join = net.JoinHostPort(l.addrs[0], strconv.Itoa(l.ports[0]))
	}
	return l.startCluster(ctx, l.exe, l.fabricds[:])
}

// bothFabricds returns the processes of both fabricds.
func (l *lab) bothFabricds() []*process {
	return []*process{l.fabricds[0].process, l.fabricds[1].process}
}

// argv returns the command that runs a program on a side.
func (l *lab) argv(side int, argv ...string) []string {
	if l.spaces[side] == "" {
		return argv
	}
	return append([]string{"ip", "netns", "exec", l.spaces[side]}, argv...)
}

// start starts a program on a side.
func (l *lab) start(side int, name, program string, args ...string) (*process, error) {
	return l.spawn(name, l.argv(side, append([]string{program}, args...)...)...)
}

// output runs a program on a side to its end and returns its output.
func (l *lab) output(ctx context.Context, limit time.Duration, side int, argv ...string) ([]byte, error) {
	return output(ctx, limit, l.argv(side, argv...)...)
}

// close ends all processes, and removes namespaces and files.
func (l *lab) close() error {
	err := l.children.close()
	for _, name := range l.spaces {
		if name != "" {
			err = errors.Join(err, ip(context.Background(), "netns del "+name))
		}
	}
	return err
}
