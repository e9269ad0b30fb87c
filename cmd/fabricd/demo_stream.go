package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

// demoStream is how many bytes the streaming server would send: far more than it can
// send before its fabricd gets SIGTERM.
const demoStream int64 = 16 << 30

// cutStream restarts the fabricd of node-2 in good order while a server on it, which bob is then,
// streams: the reader at node-1 gets an error, and no end.
func (p *plot) cutStream(ctx context.Context) error {
	var reader *actor
	before := p.two.incarnation()
	return inOrder(ctx,
		p.dismisses("bob ends", &p.bob),
		p.acts(&p.bob, "streamer", p.two, "listening", "a server listens at node-2"),
		p.acts(&reader, "reader", p.one, "attached", "a reader attaches to node-1"),
		p.sends(&reader, p.toBob()),
		p.await(&reader, "connected", "it connects"),
		p.await(&reader, "reading", "the server streams"),
		p.terminates("SIGTERM to node-2, in the middle", p.two, 0),
		p.startsAgain,
		p.await(&reader, "cut-off", "the reader: ECONNRESET, and no end"),
		p.await(&p.bob, "cut-off", "the server: ECONNRESET"),
		p.sees(since{}, fabric.NodeRemoved, func() string { return before }, "left"),
		p.sees(since{}, fabric.NodeAdded, p.two.incarnation, ""),
		p.dismisses("both end", &reader, &p.bob),
	)
}

// streamer sends a known number of bytes until its node goes.
func streamer(ctx context.Context, d *demoApp) error {
	return d.accept(ctx, func(conn *fabric.Conn) (err error) {
		var sent int64
		for block := pattern('s', 64<<10); err == nil && sent < demoStream; {
			var n int
			n, err = conn.Write(block)
			sent += int64(n)
		}
		return d.streamCut(ctx, sent, err, "fabricd")
	})
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
