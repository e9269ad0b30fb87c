package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// answers makes a listener of n serve a name, and each of its connections get a word.
func answers(t *testing.T, n *fabric.Node, name, word string) *fabric.Listener {
	t.Helper()
	l, err := n.Listen(0, fabric.Service(name))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, word)
			c.Close()
		}
	}()
	return l
}

// asked dials an address and returns the word that comes.
func asked(n *fabric.Node, address string) (string, error) {
	c, err := n.Dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	word, err := io.ReadAll(c)
	return string(word), err
}

func TestDialByName(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 3)
		one := answers(t, c.Node(1), "db", "one")
		answers(t, c.Node(2), "db", "two")
		port := one.Addr().(fabric.Addr).Port
		for address, want := range map[string]string{
			"db@1": "one", "db@node-1": "one", "db@2": "two", "db@node-2": "two",
			fmt.Sprint("1:", port): "one", fmt.Sprint("node-1:", port): "one",
		} {
			if word, err := asked(c.Node(0), address); word != want || err != nil {
				t.Errorf("Dial(%q): %q, %v; want %q", address, word, err, want)
			}
		}
		for i, want := range []string{1: "one", 2: "two"} {
			if i == 0 {
				continue
			}
			if word, err := asked(c.Node(i), "db"); word != want || err != nil {
				t.Errorf("node %d asks its own node's db first: %q, %v", i, word, err)
			}
		}
	})
}

func TestDialSaysWhyThereIsNone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		answers(t, c.Node(1), "db", "one")
		for address, want := range map[string]struct {
			errno syscall.Errno
			text  string
		}{
			"web":           {syscall.ENODEV, `no node serves "web"`},
			"db@0":          {syscall.ENODEV, `node 0 does not serve "db"`},
			"db@node-0":     {syscall.ENODEV, `node node-0 does not serve "db"`},
			"db@elsewhere":  {syscall.ENODEV, `no live node has the ID or name "elsewhere"`},
			"elsewhere:2":   {syscall.ENODEV, `no live node has the ID or name "elsewhere"`},
			"3":             {syscall.EINVAL, "want a service"},
			"db/main":       {syscall.EINVAL, "want a service's name"},
			"node-1:0":      {syscall.EINVAL, "port 0 is nobody's"},
			"node-1:999999": {syscall.EINVAL, "port"},
		} {
			began := time.Now()
			_, err := c.Node(0).Dial(context.Background(), address)
			if !errors.Is(err, want.errno) || !strings.Contains(fmt.Sprint(err), want.text) || time.Since(began) > 0 {
				t.Errorf("Dial(%q) after %v: %v; want %v at once, with %q", address, time.Since(began), err, want.errno, want.text)
			}
		}
	})
}

// A name goes with its listener, its application and its node, and a port that is used
// again serves it no more.
func TestANameGoesWithItsOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 3)
		gone := func(what string) {
			t.Helper()
			if _, err := asked(c.Node(0), "db"); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("after the end of its %s db is there: %v", what, err)
			}
		}
		l := answers(t, c.Node(1), "db", "x")
		l.Close()
		gone("listener")
		app := c.App(1, false)
		answers(t, app, "db", "x")
		app.Close()
		gone("application")
		answers(t, c.Node(1), "db", "x")
		c.Kill(1)
		gone("node")
		answers(t, c.Restart(1), "db", "again")
		if word, err := asked(c.Node(0), "db"); word != "again" || err != nil {
			t.Errorf("served by the node's next incarnation: %q, %v", word, err)
		}
	})
}

func TestServiceNamesOfANode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		n := c.Node(0)
		for name, want := range map[string]error{"db": nil, "DB": nil, "": syscall.EINVAL, "3": syscall.EINVAL, "3:2050": syscall.EINVAL,
			"a b": syscall.EINVAL, strings.Repeat("x", 64): syscall.EINVAL, "käse": syscall.EINVAL} {
			if _, err := n.Listen(0, fabric.Service(name)); !errors.Is(err, want) {
				t.Errorf("Listen as %q: %v, want %v", name, err, want)
			}
		}
		if _, err := n.Listen(0, fabric.Service("db")); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second db on the node: %v", err)
		}
		if _, err := c.Node(1).Listen(0, fabric.Service("db")); err != nil {
			t.Errorf("a second db on another node: %v", err)
		}
		for i := 2; i < 64; i++ {
			if _, err := n.Listen(0, fabric.Service(fmt.Sprint("s", i))); err != nil {
				t.Fatalf("service %d: %v", i, err)
			}
		}
		if _, err := n.Listen(0, fabric.Service("more")); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("the 65th service: %v, want ENOMEM", err)
		}
		list, err := c.Node(1).Services()
		if err != nil || len(list) != 65 || !slices.IsSortedFunc(list, func(a, b fabric.ServiceInfo) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%d services, %v; want 65 by name", len(list), err)
		}
	})
}

// A service that refuses is followed by the next one, and one that has moved is found.
func TestDialTriesTheNext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 3)
		full, err := c.Node(0).Listen(0, fabric.Service("db"), fabric.Allow("none"))
		if err != nil {
			t.Fatal(err)
		}
		answers(t, c.Node(2), "db", "two")
		for i := range 2 {
			if word, err := asked(c.Node(i), "db"); word != "two" || err != nil {
				t.Errorf("node %d: %q, %v; want what node 2 says", i, word, err)
			}
		}
		full.Close()
		c.Kill(2)
		if _, err := asked(c.Node(0), "db"); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("nobody serves it: %v", err)
		}
	})
}

func TestOnService(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		answers(t, c.Node(1), "db", "x")
		var got []string
		cancel := c.Node(0).OnService(func(ev fabric.ServiceEvent) {
			got = append(got, fmt.Sprint(ev.Kind, " ", ev.Service.Name, "@", ev.Service.NodeName))
		})
		expect := func(want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Errorf("notified of %q, want %q", got, want)
			}
			got = nil
		}
		expect("1 db@node-1")
		l := answers(t, c.Node(0), "web", "x")
		expect("1 web@node-0")
		c.Kill(1)
		expect("2 db@node-1")
		l.Close()
		answers(t, c.Node(0), "web", "x") // elsewhere
		expect()
		cancel()
		answers(t, c.Node(0), "late", "x")
		expect()
	})
}
