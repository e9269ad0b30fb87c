package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/rma"
)

// TestConnectionsStayInTheirMemory makes connections until the node has no room, fills
// every one with bytes that are not read, and checks the memory that the node then holds
// for them; and that an end which closes makes room.
func TestConnectionsStayInTheirMemory(t *testing.T) {
	const limit = 32 << 20
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOf(t, 2, engine.Config{ConnMemory: func() int64 { return limit }})
		var near, far []attach.NodeEndpoint
		for {
			a, b, err := fab.join(0, 1)
			if err != nil {
				if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "25165824 bytes") {
					t.Errorf("connection %d: %v", len(near), err)
				}
				break
			}
			near, far = append(near, a), append(far, b)
			if len(near) > limit/engine.ConnCost {
				t.Fatal("there is always room")
			}
		}
		if len(near) < 25 {
			t.Errorf("only %d connections", len(near))
		}
		for _, a := range near {
			for {
				if n, err := a.TrySend(make([]byte, 64<<10)); err != nil || n == 0 {
					break
				}
				synctest.Wait()
			}
		}
		unread := 0
		for _, c := range fab.nodes[1].Conns() {
			if c.Unread < 16<<10 {
				t.Errorf("a connection keeps %d bytes", c.Unread)
			}
			unread += c.Unread
		}
		if held := unread + len(far)*engine.ConnCost; held > limit/4*3 {
			t.Errorf("%d connections hold %d bytes, of %d", len(far), held, limit)
		}
		wantRoom(t, fab, limit)
		last := len(near) - 1
		near[last].Close()
		far[last].Close()
		synctest.Wait()
		a, b := fab.pair(0, 1)
		exchange(t, a, b)
		for i := range near[:last] {
			near[i].Close()
			far[i].Close()
		}
		a.Close()
		b.Close()
		synctest.Wait()
		wantNothingPromised(t, fab)
	})
}

// wantRoom wants nodes to have promised most of their limit.
func wantRoom(t *testing.T, fab *fabric, limit int64) {
	t.Helper()
	for i, n := range fab.nodes {
		if used, of := n.ConnMemory(); used <= of/2 || used > of || of != limit/4*3 {
			t.Errorf("node %d counts %d bytes of %d", i, used, of)
		}
	}
}

func wantNothingPromised(t *testing.T, fab *fabric) {
	t.Helper()
	for i, n := range fab.nodes {
		if used, _ := n.ConnMemory(); used != 0 {
			t.Errorf("node %d counts %d bytes", i, used)
		}
	}
}

func exchange(t *testing.T, a, b attach.NodeEndpoint) {
	t.Helper()
	sent, got := bytes.Repeat([]byte("x"), 1000), make([]byte, 1000)
	if _, err := a.Send(context.Background(), sent); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(context.Background(), got); err != nil || !bytes.Equal(sent, got) {
		t.Fatalf("received other bytes, or %v", err)
	}
}

// TestConnectsThatFailTakeNoMemory: a request that is refused, given up, or not
// accepted gives back the memory promised to it.
func TestConnectsThatFailTakeNoMemory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOf(t, 2, engine.Config{ConnMemory: func() int64 { return 16 << 20 }})
		_, silent := fab.listener(1, 4)
		for range 3 {
			if _, err := fab.open(0).Connect(context.Background(), addr.Addr{Node: 1, Port: 4000}); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("nobody listens: %v", err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			e := fab.open(0)
			go func() {
				synctest.Wait()
				cancel()
			}()
			if _, err := e.Connect(ctx, silent); !errors.Is(err, context.Canceled) {
				t.Errorf("given up: %v", err)
			}
			closed := fab.open(0)
			if _, err := closed.TryConnect(silent); !errors.Is(err, syscall.EINPROGRESS) {
				t.Errorf("connect: %v", err)
			}
			synctest.Wait()
			closed.Close()
			synctest.Wait()
		}
		wantNothingPromised(t, fab)
	})
}

// TestAWindowFitsWhatIsFree holds windowFor to its rules.
func TestAWindowFitsWhatIsFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := 1 << rapid.IntRange(12, 26).Draw(t, "most")
		limit := rapid.Int64Range(0, 1<<40).Draw(t, "limit")
		all := rapid.Int64Range(0, limit+limit/8).Draw(t, "all")
		user := rapid.Int64Range(0, all).Draw(t, "user")
		session := rapid.Int64Range(0, user).Draw(t, "session")
		w, ok := engine.WindowFor(most, session, user, all, limit)
		least, ofUser := min(most, 16<<10), (limit-all+user)/4*3
		own := (ofUser - user + session) / 4 * 3
		half := own-session >= own/2 && ofUser-user >= ofUser/2 && limit-all >= limit/2
		switch {
		case !ok:
			if session+engine.CostOf(least) <= own {
				t.Fatalf("no room in %d bytes", own-session)
			}
		case w < least || w > most || w&(w-1) != 0:
			t.Fatalf("window %d", w)
		case all+engine.CostOf(w) > limit:
			t.Fatalf("window %d of %d free bytes", w, limit-all)
		case user+engine.CostOf(w) > ofUser || session+engine.CostOf(w) > own:
			t.Fatalf("window %d for who holds %d of %d bytes, and its user %d of %d", w, session, own, user, ofUser)
		case half && session+engine.CostOf(most) <= own && w != most:
			t.Fatalf("window %d while half is free", w)
		}
	})
}

// TestARefusalNamesItsBound: the widest that has no room, its size, and what of it is taken.
func TestARefusalNamesItsBound(t *testing.T) {
	const limit, want = 786432, 131072 // of conn-memory 1MiB, the least
	for _, c := range []struct {
		session, user, all int64
		text               string
	}{
		{425984, 425984, 425984, "this application has 425984 of the 442368 that it may take"},
		{0, 524288, 524288, "this user has 524288 of the 589824 that it may take"},
		{0, 0, 720896, "this node has 720896 of the 786432 that it may take"},
	} {
		err := engine.RefusalFor(c.session, c.user, c.all, want, limit)
		if text := err.Error(); !errors.Is(err, syscall.ENOMEM) || !strings.Contains(text, c.text) || !strings.Contains(text, "a connection takes 131072 bytes") {
			t.Errorf("%v; want %q", err, c.text)
		}
		if _, ok := engine.WindowFor(engine.MessageWindow, c.session, c.user, c.all, limit); ok {
			t.Errorf("%q, and there is room", c.text)
		}
	}
}

// TestGreedyUsersLeaveRoom: a user that attaches as often as it may and takes all it can
// each time leaves the next user connections, and the one behind that too.
func TestGreedyUsersLeaveRoom(t *testing.T) {
	const limit = 24 << 20 // of a node of 64 MiB
	all := int64(0)
	for name := range 3 {
		user, first := int64(0), 0
		for range 64 {
			session := int64(0)
			for {
				w, ok := engine.WindowFor(engine.MessageWindow, session, user, all, limit)
				if !ok {
					break
				}
				if user == session {
					first++
				}
				session, user, all = session+engine.CostOf(w), user+engine.CostOf(w), all+engine.CostOf(w)
			}
		}
		if first < 3 {
			t.Errorf("the first application of user %d gets %d connections", name, first)
		}
	}
}

// TestPageOfConnectionsIsTrue counts the connections that fit, and holds docs/quotas.md to it.
func TestPageOfConnectionsIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../docs/quotas.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	for _, window := range []int{engine.MessageWindow, 64 << 10, 16 << 10} {
		if want := fmt.Sprintf("| %d KiB | %d KiB |", window>>10, engine.CostOf(window)>>10); !strings.Contains(page, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	for memory, want := range map[int64]string{64 << 20: "64 MiB has room for 37 ends", 4 << 30: "4 GiB for 2,500", 24 << 30: "24 GiB for 15,000"} {
		n := engine.Fits(memory / 2)
		said, _ := strconv.Atoi(strings.ReplaceAll(regexp.MustCompile(`[\d,]+`).FindAllString(want, -1)[1], ",", ""))
		if !strings.Contains(page, want) || n < said || float64(n) > 1.02*float64(said) {
			t.Errorf("with %d bytes there is room for %d ends; it is to say %q", memory, n, want)
		}
	}
}

// TestWritesThatNobodyWaitsForStayInTheirMemory cuts a link and writes on: the
// node's memory for that is bounded, the caller waits then, and nothing is counted any more
// when the writes have ended, well or with the link.
func TestWritesThatNobodyWaitsForStayInTheirMemory(t *testing.T) {
	const limit, piece = 64 << 20, 1 << 20
	for _, put := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			fab := newFabricOf(t, 2, engine.Config{ConnMemory: func() int64 { return limit }})
			a, b := fab.pair(0, 1)
			if _, err := register(b, alloc(t, piece+rma.PageSize), 0, rma.ProtRead|rma.ProtWrite, rma.MapFixed); err != nil {
				t.Fatal(err)
			}
			write := func() error {
				if put {
					return a.VPutSignal(make([]byte, piece), rma.Put{Offset: 0, Word: piece, Value: 1})
				}
				return a.VWriteTo(make([]byte, piece), 0, 0)
			}
			for range 20 {
				if err := write(); err != nil {
					t.Fatal(err)
				}
			}
			m, err := a.FenceMark(fence.InitSelf)
			if err == nil {
				err = a.FenceWait(context.Background(), m)
			}
			if held := fab.nodes[0].Copied(); err != nil || held != 0 {
				t.Errorf("behind a fence %d bytes are counted, %v", held, err)
			}
			fab.hub.Cut("node0.1", "node1.1")
			returned, failed := 0, make(chan error, 1)
			go func() {
				for {
					if err := write(); err != nil {
						failed <- err
						return
					}
					returned++
				}
			}()
			synctest.Wait()
			if held := fab.nodes[0].Copied(); returned != limit/8/piece || held != limit/8 {
				t.Errorf("%d writes go on, with %d bytes; want %d", returned, held, limit/8/piece)
			}
			if err := <-failed; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the one that waits ends with %v", err)
			}
			synctest.Wait()
			if held := fab.nodes[0].Copied(); held != 0 {
				t.Errorf("after the loss %d bytes are counted", held)
			}
		})
	}
}
