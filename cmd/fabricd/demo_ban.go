package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
)

// takenBackWithin is the time that the demo promises from the command to the end of the
// last link of a banned node.
const takenBackWithin = time.Second

// takeBack bans bob's node while alice talks to him, shows that it stays out, and
// allows it again.
func (p *plot) takeBack(ctx context.Context) error {
	return inOrder(ctx,
		p.acts(&p.bob, "bob-banned", p.two, "attached", "bob attaches once more"),
		p.connect,
		p.await(&p.alice, "talking", "they talk on and on"),
		p.acts(&p.bystander, "bystander", p.one, "attached", "a bystander attaches to node-1"),
		p.sends(&p.bystander, fmt.Sprintf("connect %d:%d", fabric.Host, demoPort)),
		p.await(&p.bystander, "connected", "and talks to the witness"),
		p.ban,
		p.stayOut,
		p.allow,
		p.sends(&p.bystander, "stop"),
		p.await(&p.bystander, "unharmed", "two others noticed nothing"),
	)
}

// ban bans bob's node and checks how soon its connection, links and membership end.
func (p *plot) ban(ctx context.Context) error {
	command := since{time.Now(), "the command", takenBackWithin}
	return inOrder(ctx,
		p.step("fabricd nodes ban node-2", func(ctx context.Context) (string, error) {
			done, err := p.host.admin.BanNode(ctx, p.two.name, "shown in the demo", stepLimit)
			if err == nil && (!done.Changed || done.Node.State != "banned") {
				err = fmt.Errorf("it is %s, changed: %v", done.Node.State, done.Changed)
			}
			return fmt.Sprintf("at every node after %.1f ms", done.TookMS), err
		}),
		p.awaitSince(command, &p.alice, "cut-off", "alice's connection: ECONNRESET"),
		p.sees(command, fabric.NodeRemoved, p.two.incarnation, ""),
		p.unlinks(command, p.host),
		p.unlinks(command, p.one),
		p.await(&p.bob, "cut-off", "bob's end: ECONNRESET"),
	)
}

// unlinks waits until a member has no link to bob's node.
func (p *plot) unlinks(s since, m *member) task {
	return func(ctx context.Context) error {
		err := until(ctx, func() error {
			_, links, err := m.admin.Traffic(ctx)
			if err == nil && slices.ContainsFunc(links, func(l daemon.LinkInfo) bool { return l.Node == p.two.id }) {
				err = fmt.Errorf("%s has a link to node %d", m.name, p.two.id)
			}
			return err
		})
		return p.record(s, "no link to it at "+m.name, time.Now(), "fabricd links", err)
	}
}

// stayOut revokes the cluster's tokens, and checks that neither the banned node nor
// a new one with the token comes in.
func (p *plot) stayOut(ctx context.Context) error {
	return inOrder(ctx,
		p.step("fabricd token revoke", p.revoke),
		p.step("node-2 knows that it is banned", func(ctx context.Context) (string, error) {
			st, err := p.twoIs(ctx, func(st daemon.Status) bool {
				return st.State != "joined" && strings.Contains(st.Detail+st.HostDetail, "banned")
			})
			return withDetail(st.State, st.Detail), err
		}),
		p.step("a newcomer with that token", p.newcomer),
		p.step("a second ban changes nothing", func(ctx context.Context) (string, error) {
			again, err := p.host.admin.BanNode(ctx, p.two.name, "", stepLimit)
			if err == nil && again.Changed {
				err = errors.New("the second ban reports that it has changed something")
			}
			return "", err
		}),
		p.step("fabricd nodes enrolled", func(ctx context.Context) (string, error) {
			nodes, err := p.host.admin.Enrolled(ctx)
			for _, n := range nodes.Nodes {
				if err == nil && n.Name == p.two.name && n.State != "banned" {
					err = fmt.Errorf("%s is %s", n.Name, n.State)
				}
			}
			return fmt.Sprintf("%d identities, node-2 is banned", len(nodes.Nodes)), err
		}),
	)
}

// revoke ends all tokens of the cluster.
func (p *plot) revoke(ctx context.Context) (string, error) {
	all, err := p.host.admin.Tokens(ctx)
	for _, k := range all.Tokens {
		err = errors.Join(err, p.host.admin.RevokeToken(ctx, k.ID))
	}
	if err == nil && len(all.Tokens) != 1 {
		err = fmt.Errorf("%d tokens, want init's", len(all.Tokens))
	}
	return plural(len(all.Tokens), "token"), err
}

// twoIs waits until the status of node-2 is right.
func (p *plot) twoIs(ctx context.Context, right func(daemon.Status) bool) (st daemon.Status, err error) {
	err = until(ctx, func() (err error) {
		st, err = p.two.admin.Status(ctx)
		if err == nil && !right(st) {
			err = fmt.Errorf("node-2 is %s: %s %s", st.State, st.Detail, st.HostDetail)
		}
		return err
	})
	return st, err
}

// newcomer starts a node with the token that was revoked, and returns why it ended.
func (p *plot) newcomer(ctx context.Context) (string, error) {
	m, err := p.crew.member("node-3", p.two.joining...)
	if err != nil {
		return "", err
	}
	if err := m.launch(); err != nil {
		return "", err
	}
	select {
	case <-m.proc.done:
	case <-ctx.Done():
		m.proc.kill()
		return "", errors.New("it has neither joined nor ended")
	}
	log, err := os.ReadFile(m.proc.log)
	switch {
	case err != nil:
		return "", err
	case m.proc.err == nil || !strings.Contains(string(log), "revoked"):
		return "", fmt.Errorf("it ended with %v and said %.200q, want that its token was revoked", m.proc.err, log)
	}
	return "refused: the token was revoked", nil
}

// allow lets the banned node in again, which comes back by itself.
func (p *plot) allow(ctx context.Context) error {
	began := time.Now()
	return inOrder(ctx,
		p.step("fabricd nodes allow node-2", func(ctx context.Context) (string, error) {
			_, err := p.host.admin.AllowNode(ctx, p.two.name, false, stepLimit)
			return "", err
		}),
		p.step("node-2 comes back by itself", func(ctx context.Context) (string, error) {
			before := p.two.gen
			st, err := p.twoIs(ctx, func(st daemon.Status) bool { return st.State == "joined" && st.Generation > before })
			p.two.id, p.two.gen = st.ID, st.Generation
			return fmt.Sprintf("after %.1f ms: %s", ms(time.Since(began)), joined(st)), err
		}),
		p.sees(since{}, fabric.NodeAdded, p.two.incarnation, ""),
		p.sends(&p.bob, "listen"),
		p.greet,
	)
}

// tokenFile is where the demo's join token is.
func (p *plot) tokenFile() string { return filepath.Join(p.dir, "join.token") }
