package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/wait"
)

const pollEvery = 10 * time.Millisecond // for states that have no event to wait for

// A member is one fabricd of a crew's cluster.
type member struct {
	name string
	dir  string
	proc *process

	crew       *crew
	joining    []string // the arguments with which it joins
	data       string   // port for data; "0": a free one at each start
	gossip     string   // port for gossip, likewise
	http       string   // address of its page; empty: none
	admin      *daemon.Client
	id         fabric.NodeID
	gen        fabric.Generation
	dataAddr   string // of its latest start
	gossipAddr string
}

func (m *member) socket() string      { return filepath.Join(m.dir, "app.sock") }
func (m *member) adminSocket() string { return filepath.Join(m.dir, "admin.sock") }
func (m *member) stateDir() string    { return filepath.Join(m.dir, "state") }

// page returns the address of the member's page.
func (m *member) page() string { return "http://" + m.http + "/" }

// incarnation returns the member's place in the cluster, as people write it.
func (m *member) incarnation() string { return fmt.Sprintf("%d.%d", m.id, m.gen) }

// member prepares a fabricd with a directory of its own.
func (c *crew) member(name string, joining ...string) (*member, error) {
	m := &member{name: name, dir: filepath.Join(c.dir, name), crew: c, joining: joining, data: "0", gossip: "0"}
	m.admin = daemon.NewClient(m.adminSocket())
	return m, os.MkdirAll(m.dir, 0o700)
}

// args returns the command line of the member's fabricd.
func (m *member) args() []string {
	return slices.Concat([]string{"run", "--name", m.name, "--state-dir", m.stateDir(),
		"--bind", "127.0.0.1", "--data-port", m.data, "--gossip-port", m.gossip,
		"--socket", m.socket(), "--admin", m.adminSocket(), "--http", m.http}, m.crew.settings, m.joining)
}

// launch starts m's fabricd.
func (m *member) launch() (err error) {
	m.proc, _, err = m.crew.start(m.name, nil, m.args()...)
	return err
}

// start starts m's fabricd and waits until it is in the cluster.
func (m *member) start(ctx context.Context) (st daemon.Status, err error) {
	if err := m.launch(); err != nil {
		return st, err
	}
	err = within(ctx, m.crew.limit, func() error {
		if !m.proc.running() {
			return stop{fmt.Errorf("%s ended: %w", m.name, m.proc.err)}
		}
		st, err = m.admin.Status(ctx)
		if err == nil && st.State != "joined" {
			err = fmt.Errorf("%s is %s", m.name, st.State)
		}
		return err
	})
	m.id, m.gen, m.gossipAddr, m.http = st.ID, st.Generation, st.Gossip, st.HTTP
	if len(st.Data) > 0 {
		m.dataAddr = st.Data[0]
	}
	return st, err
}

// keepPorts makes m use its present ports at its next start too: the other nodes
// dial them.
func (m *member) keepPorts() (err error) {
	var dataErr error
	_, m.data, dataErr = net.SplitHostPort(m.dataAddr)
	_, m.gossip, err = net.SplitHostPort(m.gossipAddr)
	return errors.Join(dataErr, err)
}

// initCluster makes the cluster of which m is the host, and its join token. The error has
// its output: a full volume has no room for a log.
func (m *member) initCluster(token string, more ...string) error {
	args := append([]string{"init", "--name", m.name, "--state-dir", m.stateDir(), "--token-file", token}, more...)
	cmd := exec.Command(m.crew.exe, args...)
	cmd.Env = append(withoutFabric(os.Environ()), m.crew.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		said, _, _ := strings.Cut(string(out), "\n")
		return fmt.Errorf("fabricd init: %w: %s", err, said)
	}
	return nil
}

// agree waits until every one of members sees all of them.
func agree(ctx context.Context, limit time.Duration, members []*member) error {
	for _, m := range members {
		err := within(ctx, limit, func() error {
			for _, other := range members {
				if !other.proc.running() {
					return stop{fmt.Errorf("%s ended: %w", other.name, other.proc.err)}
				}
			}
			seen, err := m.admin.Nodes(ctx)
			if err != nil {
				return err
			}
			for _, other := range members {
				if !sees(seen, other) {
					return fmt.Errorf("%s does not see node %s, which is %s", m.name, other.incarnation(), other.name)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sees reports whether m lives in a list of nodes.
func sees(all daemon.Nodes, m *member) bool {
	return slices.ContainsFunc(all.Nodes, func(n daemon.NodeInfo) bool {
		return n.ID == m.id && n.Generation == m.gen && n.State == "alive"
	})
}

// stop is an error that makes within give up.
type stop struct{ error }

// within calls check until it succeeds, at most for limit.
func within(ctx context.Context, limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check()
		if s, ok := errors.AsType[stop](err); ok {
			return s.error
		}
		if err == nil {
			return nil
		}
		if !wait.For(ctx.Done(), pollEvery) {
			return fmt.Errorf("waited in vain: %w", err)
		}
	}
}
