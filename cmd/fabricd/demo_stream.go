package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// demoStream is how many bytes the streaming server would send: far more than it can
// send before its fabricd gets SIGTERM.
const demoStream int64 = 16 << 30

// cutStream restarts the fabricd of node-2 in good order while a server on it streams:
// the reader gets an error, and no end.
func (p *plot) cutStream(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if err := p.t.step("bob ends", "", p.bob.dismiss(limited)); err != nil {
		return err
	}
	reader, err := p.stream(ctx)
	if err != nil {
		return err
	}
	before := p.two.gen
	took, err := p.two.proc.terminate(limited)
	if err := p.t.step("SIGTERM to node-2, in the middle", fmt.Sprintf("it ended within %v", took.Round(time.Millisecond)), err); err != nil {
		return err
	}
	st, err := p.two.start(ctx)
	if err == nil && st.Generation != before+1 {
		err = fmt.Errorf("it is generation %d, want %d", st.Generation, before+1)
	}
	if err := p.t.step("node-2 runs again", joined(st), err); err != nil {
		return err
	}
	if err := p.hear(ctx, reader, "cut-off", "the reader: ECONNRESET, and no end"); err != nil {
		return err
	}
	if err := p.hear(ctx, p.bob, "cut-off", "the server: ECONNRESET"); err != nil {
		return err
	}
	if err := p.restartSeen(limited); err != nil {
		return err
	}
	return p.t.step("both end", "", errors.Join(reader.dismiss(limited), p.bob.dismiss(limited)))
}

// stream starts a server at node-2, which bob is then, and a reader of it at node-1.
func (p *plot) stream(ctx context.Context) (reader *actor, err error) {
	if p.bob, err = p.crew.act("streamer", p.two.socket()); err != nil {
		return nil, err
	}
	if err := p.hear(ctx, p.bob, "listening", "a server listens at node-2"); err != nil {
		return nil, err
	}
	if reader, err = p.crew.act("reader", p.one.socket()); err != nil {
		return nil, err
	}
	if err := reader.tell(fmt.Sprintf("connect %d:%d", p.two.id, demoPort)); err != nil {
		return nil, err
	}
	if err := p.hear(ctx, reader, "connected", "a reader at node-1 connects"); err != nil {
		return nil, err
	}
	return reader, p.hear(ctx, reader, "reading", "the server streams")
}

// restartSeen waits for the events of node-2's restart.
func (p *plot) restartSeen(ctx context.Context) error {
	left := fmt.Sprintf("%d.%d", p.two.id, p.two.gen-1)
	if err := p.seen(ctx, fabric.NodeRemoved, left, "left", p.plain); err != nil {
		return err
	}
	return p.seen(ctx, fabric.NodeAdded, p.two.incarnation(), "", p.plain)
}

// streamer sends a known number of bytes until its node goes.
func streamer(ctx context.Context, d *demoApp) error {
	conn, err := d.accept(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var sent int64
	for block := pattern('s', 64<<10); err == nil && sent < demoStream; {
		var n int
		n, err = conn.Write(block)
		sent += int64(n)
	}
	return d.streamCut(ctx, sent, err, "fabricd")
}

// reader reads the streamer's bytes until the connection is lost.
func reader(ctx context.Context, d *demoApp) error {
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.CopyN(io.Discard, conn, 1<<20); err != nil {
		return err
	}
	d.say("reading", fmt.Sprintf("1 MiB of %d GiB is here", demoStream>>30), nil)
	got, err := io.Copy(io.Discard, conn)
	if err == nil {
		err = io.EOF
	}
	return d.streamCut(ctx, got+1<<20, err, "stopped")
}

// streamCut reports how the stream ended after n bytes: it must be a reset whose text
// contains cause. It then waits for the end of the commands.
func (d *demoApp) streamCut(ctx context.Context, n int64, err error, cause string) error {
	detail := fmt.Sprintf("after %d MiB of %d: %v", n>>20, demoStream>>20, err)
	if !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), cause) {
		return fmt.Errorf("%s; want ECONNRESET and %q", detail, cause)
	}
	d.say("cut-off", detail, nil)
	_, _ = d.command(ctx) // the wait is for its end
	return nil
}
