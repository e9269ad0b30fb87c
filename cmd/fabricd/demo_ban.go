package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if err := p.talkAgain(ctx); err != nil {
		return err
	}
	others, err := newBystanders(ctx, p.watch.node, p.one.socket())
	if err != nil {
		return p.t.step("two others talk meanwhile", "", err)
	}
	defer others.stop()
	if err := p.ban(limited); err != nil {
		return err
	}
	if err := p.stayOut(ctx); err != nil {
		return err
	}
	if err := p.allow(ctx); err != nil {
		return err
	}
	noticed := others.stop()
	return p.t.step("two others noticed nothing", noticed, others.err)
}

// talkAgain lets bob accept another connection of alice, on which they talk on.
func (p *plot) talkAgain(ctx context.Context) (err error) {
	if p.bob, err = p.crew.act("bob-banned", p.two.socket()); err != nil {
		return err
	}
	if err := p.hear(ctx, p.bob, "attached", "bob attaches once more"); err != nil {
		return err
	}
	if err := p.connect(ctx, p.alice, p.bob); err != nil {
		return err
	}
	return p.hear(ctx, p.alice, "talking", "they talk on and on")
}

// ban bans bob's node and checks how soon its connection, links and membership end.
func (p *plot) ban(ctx context.Context) error {
	lost := p.two.incarnation()
	began := time.Now()
	done, err := p.host.admin.BanNode(ctx, p.two.name, "shown in the demo", stepLimit)
	if err == nil && (!done.Changed || done.Node.State != "banned") {
		err = fmt.Errorf("it is %s, changed: %v", done.Node.State, done.Changed)
	}
	if err := p.t.step("fabricd nodes ban node-2", fmt.Sprintf("at every node after %.1f ms", done.TookMS), err); err != nil {
		return err
	}
	cut, err := p.alice.hear(ctx, "cut-off")
	if err := p.soon("alice's connection: ECONNRESET", began, cut.At, cut.Detail, err); err != nil {
		return err
	}
	soon := func(name string, at time.Time, detail string, err error) error {
		return p.soon(name, began, at, detail, err)
	}
	if err := p.seen(ctx, fabric.NodeRemoved, lost, "", soon); err != nil {
		return err
	}
	for _, m := range []*member{p.host, p.one} {
		err := until(ctx, func() error { return unlinked(ctx, m, p.two.id) })
		if err := p.soon("no link to it at "+m.name, began, time.Now(), "fabricd links", err); err != nil {
			return err
		}
	}
	own, err := p.bob.hear(ctx, "cut-off")
	return p.t.step("bob's end: ECONNRESET", own.Detail, err)
}

// soon records a step that must have happened within a second of began.
func (p *plot) soon(name string, began, at time.Time, detail string, err error) error {
	took := at.Sub(began)
	if err == nil && took > takenBackWithin {
		err = fmt.Errorf("after %v, want %v at most", took.Round(time.Millisecond), takenBackWithin)
	}
	if !at.IsZero() {
		detail = fmt.Sprintf("%.1f ms after the command: %s", ms(took), detail)
	}
	return p.t.step(name, detail, err)
}

// unlinked fails while a member has a link to a node.
func unlinked(ctx context.Context, m *member, id fabric.NodeID) error {
	text, err := m.admin.Get(ctx, "links")
	if err != nil {
		return err
	}
	var all struct {
		Links []struct{ Node fabric.NodeID }
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, l := range all.Links {
		if l.Node == id {
			return fmt.Errorf("%s has a link to node %d", m.name, id)
		}
	}
	return nil
}

// stayOut revokes the cluster's tokens, and checks that neither the banned node nor
// a new one with the token comes in.
func (p *plot) stayOut(ctx context.Context) error {
	all, err := p.host.admin.Tokens(ctx)
	for _, k := range all.Tokens {
		err = errors.Join(err, p.host.admin.RevokeToken(ctx, k.ID))
	}
	if err == nil && len(all.Tokens) != 1 {
		err = fmt.Errorf("%d tokens, want init's", len(all.Tokens))
	}
	if err := p.t.step("fabricd token revoke", plural(len(all.Tokens), "token"), err); err != nil {
		return err
	}
	var st daemon.Status
	err = until(ctx, func() (err error) {
		st, err = p.two.admin.Status(ctx)
		if err == nil && (st.State == "joined" || !strings.Contains(st.Detail+st.HostDetail, "banned")) {
			err = fmt.Errorf("node-2 is %s: %s %s", st.State, st.Detail, st.HostDetail)
		}
		return err
	})
	if err := p.t.step("node-2 knows that it is banned", withDetail(st.State, st.Detail), err); err != nil {
		return err
	}
	said, err := p.newcomer(ctx)
	if err := p.t.step("a newcomer with that token", said, err); err != nil {
		return err
	}
	again, err := p.host.admin.BanNode(ctx, p.two.name, "", stepLimit)
	if err == nil && again.Changed {
		err = errors.New("the second ban says that it has changed something")
	}
	if err := p.t.step("a second ban changes nothing", "", err); err != nil {
		return err
	}
	nodes, err := p.host.admin.Enrolled(ctx)
	for _, n := range nodes.Nodes {
		if err == nil && n.Name == p.two.name && n.State != "banned" {
			err = fmt.Errorf("%s is %s", n.Name, n.State)
		}
	}
	return p.t.step("fabricd nodes enrolled", fmt.Sprintf("%d identities, node-2 is banned", len(nodes.Nodes)), err)
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
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
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
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	began := time.Now()
	_, err := p.host.admin.AllowNode(limited, p.two.name, false, stepLimit)
	if err := p.t.step("fabricd nodes allow node-2", "", err); err != nil {
		return err
	}
	st, err := p.rejoined(limited)
	if err := p.t.step("node-2 comes back by itself", fmt.Sprintf("after %.1f ms: %s", ms(time.Since(began)), joined(st)), err); err != nil {
		return err
	}
	if err := p.seen(limited, fabric.NodeAdded, p.two.incarnation(), "", p.plain); err != nil {
		return err
	}
	if err := p.bob.tell("listen"); err != nil {
		return err
	}
	if err := p.connect(ctx, p.alice, p.bob); err != nil {
		return err
	}
	if err := p.hear(ctx, p.alice, "messages", "a message on the new connection"); err != nil {
		return err
	}
	return p.hear(ctx, p.bob, "closed", "bob sees alice close")
}

// rejoined waits until bob's node has another incarnation.
func (p *plot) rejoined(ctx context.Context) (st daemon.Status, err error) {
	before := p.two.gen
	err = until(ctx, func() (err error) {
		st, err = p.two.admin.Status(ctx)
		if err == nil && (st.State != "joined" || st.Generation <= before) {
			err = fmt.Errorf("node-2 is %s: %s", st.State, st.Detail)
		}
		return err
	})
	p.two.id, p.two.gen = st.ID, st.Generation
	return st, err
}

// bystanders are two applications that have nothing to do with the banned node:
// they exchange messages all the time between two other nodes.
type bystanders struct {
	stop func() string // ends them and returns a summary; a second call returns the same
	err  error         // of their connection, read after stop
}

// demoBystander is the port of one of them.
const demoBystander fabric.Port = 2051

// newBystanders lets an application at the node of socket talk to one at node.
func newBystanders(ctx context.Context, node *fabric.Node, socket string) (*bystanders, error) {
	l, err := node.Listen(demoBystander)
	if err != nil {
		return nil, err
	}
	other, err := fabric.Attach(ctx, socket)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	var wg sync.WaitGroup
	wg.Go(func() { // the accepting one; its errors are the other one's too
		in, err := l.AcceptConn(ctx)
		if err != nil {
			return
		}
		defer in.Close()
		_ = echo(in, 1<<30)
	})
	out, err := other.DialAddr(ctx, l.Addr().(fabric.Addr))
	if err != nil {
		l.Close()
		wg.Wait()
		return nil, errors.Join(err, other.Close())
	}
	b := &bystanders{}
	end, cancel := context.WithCancel(ctx)
	var rounds int
	var longest time.Duration
	wg.Go(func() {
		defer out.Close()
		for b.err == nil && wait(end, time.Millisecond) {
			began := time.Now()
			if b.err = sendMessage(out, []byte("still there?")); b.err == nil {
				_, b.err = recvMessage(out)
			}
			longest = max(longest, time.Since(began))
			rounds++
		}
	})
	b.stop = sync.OnceValue(func() string {
		cancel()
		wg.Wait()
		// The nodes may be gone already when the demo is given up.
		_ = errors.Join(other.Close(), l.Close())
		return fmt.Sprintf("%s between node-1 and host meanwhile, the slowest took %v", plural(rounds, "message"), longest.Round(10*time.Microsecond))
	})
	return b, nil
}

// tokenFile is where the demo's join token is.
func (p *plot) tokenFile() string { return filepath.Join(p.dir, "join.token") }
