package conformance

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric"
)

// The rows about two connections of the same two applications, one of which carries all
// that it can: the other goes on. They count the messages or transfers that pass, not time.
const (
	besidePages = 2048      // of a transfer: 8 MiB
	mostBeside  = 1_000_000 // messages that pass one transfer
	roundTrips  = 100       // beside transfers
	mostPassing = 64        // transfers that pass one of them
	bulkPages   = 256       // of such a transfer: 1 MiB
)

func besideRows() []row {
	var rows []row
	for _, x := range transfers {
		if x.window {
			rows = append(rows, x.besideMessages(), besideTransfers(x))
		}
	}
	return rows
}

// besideMessages is a row about one large transfer next to messages without end.
func (x transfer) besideMessages() row {
	return row{call: x.call, name: "CONNECTED/8 MiB beside messages without end=at most a million pass", conn: func(c *check, near, far end) {
		l, r := c.window(near, besidePages, rw), c.window(far, besidePages, rw)
		from, to := c.connected()
		passed := c.endless(func(ctx context.Context) error {
			return errOf(from.Send(ctx, make([]byte, 64)))
		}, func(ctx context.Context) error {
			return errOf(to.Recv(ctx, make([]byte, 64)))
		})
		before := passed.Load()
		x.moved(c, near, l, r, 5, 3, besidePages*page-8, fabric.Sync)
		if n := passed.Load() - before; n > mostBeside {
			c.Errorf("%d messages have passed the transfer", n)
		}
	}}
}

// besideTransfers is a row about messages there and back next to x without end.
func besideTransfers(x transfer) row {
	return row{call: "send", name: "CONNECTED/100 there and back beside " + x.call + " of 1 MiB without end=at most 64 pass each", conn: func(c *check, near, far end) {
		l, r := c.window(near, bulkPages, rw), c.window(far, bulkPages, rw)
		from, to := c.connected()
		passed := c.endless(func(context.Context) error {
			return x.do(near, l, 0, bulkPages*page, r.off, fabric.Sync)
		})
		before := passed.Load()
		for range roundTrips {
			c.send(from, "there")
			c.recv(to, "there")
			c.send(to, "back")
			c.recv(from, "back")
		}
		if n := passed.Load() - before; n > roundTrips*mostPassing {
			c.Errorf("%d transfers have passed %d messages there and back", n, roundTrips)
		}
	}}
}

// endless does each of calls again and again until the check ends, and returns how
// often the last one has been done. It is under way when endless returns.
func (c *check) endless(calls ...func(ctx context.Context) error) *atomic.Int64 {
	c.Helper()
	const before = 4
	ctx, stop := context.WithCancel(c.ctx)
	done := new(atomic.Int64)
	for i, call := range calls {
		result := c.start(func() error {
			for ctx.Err() == nil {
				if err := call(ctx); err != nil {
					return err
				}
				if i == len(calls)-1 {
					done.Add(1)
				}
			}
			return nil
		})
		c.Cleanup(func() {
			if err := <-result; err != nil && !errors.Is(err, context.Canceled) {
				c.Errorf("what is done without end: %v", err)
			}
		})
	}
	c.Cleanup(stop) // before the others
	for done.Load() < before {
		if runtime.Gosched(); c.ctx.Err() != nil {
			c.Fatal("what is done without end does not begin")
		}
	}
	return done
}
