package e2e

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestMemoryGoesBack opens thousands of connections between two nodes and closes them: soon
// each node keeps no more than a fifth of the memory that they added.
func TestMemoryGoesBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	var before, open [2]int64
	for i, n := range nodes {
		before[i] = resident(t, n.pid())
	}
	l.openAndClose(nodes[0], nodes[1], scale(2400, 800, 2400), func() {
		for i, n := range nodes {
			open[i] = resident(t, n.pid())
		}
	})
	began := time.Now()
	for i, n := range nodes {
		eventually(t, 100*time.Second, n.name+" gives memory back", func() error {
			now := resident(t, n.pid())
			if now-before[i] > (open[i]-before[i])/5 {
				return fmt.Errorf("%d MiB, of %d with the connections and %d before them", now>>20, open[i]>>20, before[i]>>20)
			}
			t.Logf("%s: %d MiB, %d with the connections, %d MiB %v after their end", n.name, before[i]>>20, open[i]>>20, now>>20, time.Since(began).Round(time.Second))
			return nil
		})
	}
}

// openAndClose makes count connections, a multiple of 16, each way between n and m, over each of which
// 100 KiB go, calls open, and closes them.
func (l *lab) openAndClose(n, m *node, count int, open func()) {
	var all []*fabric.Conn
	for _, way := range [][2]*node{{n, m}, {m, n}} {
		listener, err := way[1].attach().Listen(0)
		if err != nil {
			l.t.Fatal(err)
		}
		var serving sync.WaitGroup
		accepted := make(chan *fabric.Conn, count)
		serving.Go(func() {
			for range count {
				c, err := listener.AcceptConn(within(l.t, time.Minute))
				if err != nil {
					l.t.Error(err)
					return
				}
				accepted <- c
				serving.Go(func() {
					if _, err := io.CopyN(io.Discard, c, 100<<10); err != nil {
						l.t.Error(err)
					}
				})
			}
		})
		app := way[0].attach()
		var dialing sync.WaitGroup
		dialed, p := make(chan *fabric.Conn, count), pattern('m', 100<<10)
		for range 16 {
			dialing.Go(func() {
				for range count / 16 {
					c, err := app.DialAddr(within(l.t, time.Minute), listener.Addr().(fabric.Addr))
					if err == nil {
						_, err = c.Write(p)
						dialed <- c
					}
					if err != nil {
						l.t.Error(err)
						return
					}
				}
			})
		}
		dialing.Wait()
		serving.Wait()
		listener.Close()
		close(dialed)
		close(accepted)
		for c := range dialed {
			all = append(all, c)
		}
		for c := range accepted {
			all = append(all, c)
		}
	}
	open()
	var closing sync.WaitGroup
	for part := range slices.Chunk(all, (len(all)+63)/64) {
		closing.Go(func() {
			for _, c := range part {
				if err := c.Close(); err != nil {
					l.t.Error(err)
				}
			}
		})
	}
	closing.Wait()
}
