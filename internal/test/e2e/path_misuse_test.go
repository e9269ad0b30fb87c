package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
)

// misuser is an application that goes over to a path, args[1] being the address of
// another application, and then uses the path's descriptor in the way that args[2] names,
// past its library.
func misuser(args []string) error {
	to, err := addr.Parse(args[1])
	if err != nil {
		return err
	}
	ctx := context.Background()
	n, err := fabric.Attach(ctx, args[0])
	if err != nil {
		return err
	}
	c, err := n.DialAddr(ctx, to)
	if err != nil {
		return err
	}
	fd, err := pathOf(c)
	if err != nil {
		return err
	}
	fmt.Println("over")
	switch args[2] {
	case "garbage":
		for range 64 {
			p := make([]byte, 16<<10)
			_, _ = rand.Read(p)
			_, _ = syscall.Write(fd, p) // until it has ended
		}
	case "shut down writing":
		err = syscall.Shutdown(fd, syscall.SHUT_WR)
	case "shut down":
		err = syscall.Shutdown(fd, syscall.SHUT_RDWR)
	case "close below":
		err = syscall.Close(fd)
	case "steal": // the bytes that the library would read
		for range 1000 {
			if k, _ := syscall.Read(fd, make([]byte, 64<<10)); k < 0 {
				time.Sleep(time.Millisecond)
			}
		}
	case "keep":
		return keepPath(fd, c)
	}
	fmt.Println("misused", err)
	select {} // until it is killed
}

// pathOf sends until the connection has gone over, and returns the descriptor of its
// path.
func pathOf(c *fabric.Conn) (int, error) {
	for range 3000 {
		if _, err := c.Write([]byte("fair words ")); err != nil {
			return 0, err
		}
		time.Sleep(5 * time.Millisecond)
		if fd, err := tcpSocket(); fd < 0 || err != nil {
			continue
		}
		time.Sleep(200 * time.Millisecond) // it is moved to another number, and both go over
		if _, err := c.Write([]byte("fair words ")); err != nil {
			return 0, err
		}
		return tcpSocket()
	}
	return 0, errors.New("there is no path")
}

// tcpSocket returns the descriptor of a TCP socket of this process, which paths alone are;
// -1: it has none.
func tcpSocket() (int, error) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1, err
	}
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return -1, err
		}
		if sa, err := syscall.Getpeername(fd); err == nil {
			if _, tcp := sa.(*syscall.SockaddrInet4); tcp {
				return fd, nil
			}
		}
	}
	return -1, nil
}

// keepPath keeps a duplicate of the path behind the end of its connection, and, on a
// command, prints the result of using it.
func keepPath(fd int, c *fabric.Conn) error {
	kept, err := syscall.Dup(fd)
	if err != nil {
		return err
	}
	var line string
	fmt.Println("misused <nil>")
	for {
		if _, err := fmt.Scanln(&line); err != nil {
			return err
		}
		if line == "close" {
			fmt.Println("closed", c.Close())
			continue
		}
		n, werr := syscall.Write(kept, bytes.Repeat([]byte("late"), 1000))
		fmt.Println("wrote", n, werr != nil)
	}
}

// fairWords reports whether p holds only text from before the misuse of the path.
func fairWords(p []byte) bool {
	return strings.Trim(strings.ReplaceAll(string(p), "fair words ", ""), " ") == ""
}

// TestAPathThatIsMisused: an application writes garbage into its path, shuts it down or closes
// it below its library, or reads it past it. The other end receives the bytes sent
// in order and nothing else, and then ECONNRESET; its other connections, and the nodes, go
// on.
func TestAPathThatIsMisused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1, "--paths", "lazy")
	fair := l.parley(nodes[1], nodes[0])
	fair.until("path", "")
	for _, how := range []string{"garbage", "shut down writing", "shut down"} {
		t.Run(how, func(t *testing.T) {
			ep, app := l.misused(t, nodes[0], nodes[1], how)
			got, err := readAll(ep, 20*time.Second)
			if !errors.Is(err, syscall.ECONNRESET) {
				why, _ := l.fabricd("why", "--admin", nodes[0].adminSocket())
				t.Errorf("the other end ends with %v, want ECONNRESET\n%s", err, why)
			}
			if len(got) == 0 || !fairWords(got) {
				t.Errorf("the other end received %.80q", got)
			}
			if err := fair.trip("it goes on"); err != nil {
				t.Error(err)
			}
			app.kill()
		})
	}
	for _, how := range []string{"steal", "close below"} { // its own loss; then it is killed
		t.Run(how, func(t *testing.T) {
			ep, app := l.misused(t, nodes[0], nodes[1], how)
			_, _ = ep.TrySend(bytes.Repeat([]byte("x"), 64<<10))
			app.kill()
			got, err := readAll(ep, 20*time.Second)
			if err == nil || errors.Is(err, context.DeadlineExceeded) || !fairWords(got) {
				t.Errorf("the other end received %.80q and ends with %v", got, err)
			}
			if err := fair.trip("it goes on"); err != nil {
				t.Error(err)
			}
		})
	}
	fair.until("path", "")
	l.agree(nodes...)
}

// misused starts a misuser at node from, and returns the other end of its connection, at
// node at.
func (l *lab) misused(t *testing.T, at, from *node, how string) (*fabric.Endpoint, *application) {
	t.Helper()
	listener, err := at.attach().Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	app := l.application("misuser-"+strings.ReplaceAll(how, " ", "-"), "misuser", from.socket(), listener.Addr().String(), how)
	c, err := listener.AcceptConn(within(t, stepLimit))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"over", "misused <nil>"} {
		select {
		case line := <-app.lines:
			if line != want {
				t.Fatalf("it says %q, want %q: %s", line, want, app.said())
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("it does not say %q: %s", want, app.said())
		}
	}
	return c.Endpoint(), app
}

// readAll receives until the connection ends.
func readAll(ep *fabric.Endpoint, limit time.Duration) (got []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	p := make([]byte, 64<<10)
	for {
		n, err := ep.Recv(ctx, p)
		got = append(got, p[:n]...)
		if err != nil {
			return got, err
		}
	}
}

// TestAPathThatIsKeptIsOfNoUse: an application keeps a duplicate of its path. Behind the
// close of the connection, and behind the ban of its node, nothing that it writes there
// reaches the other one.
func TestAPathThatIsKeptIsOfNoUse(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(2, "--paths", "lazy")
	t.Run("after a close", func(t *testing.T) {
		ep, app := l.misused(t, nodes[1], nodes[2], "keep")
		app.say(t, "close")
		got, err := readAll(ep, 20*time.Second)
		if len(got) == 0 || !fairWords(got) || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("received %.80q, %v", got, err)
		}
		if line := <-app.lines; line != "closed <nil>" {
			t.Errorf("it says %q", line)
		}
		app.say(t, "write")
		if line := <-app.lines; line != "wrote -1 true" {
			t.Errorf("behind the close of both ends a write to the kept descriptor says %q", line)
		}
		app.kill()
	})
	t.Run("after a ban", func(t *testing.T) {
		ep, app := l.misused(t, nodes[1], nodes[2], "keep")
		banNode(nodes[0], nodes[2])
		got, err := readAll(ep, 20*time.Second)
		if !fairWords(got) || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("received %.80q, %v, want ECONNRESET", got, err)
		}
		app.say(t, "write")
		if line := <-app.lines; line != "wrote -1 true" {
			t.Errorf("behind the ban a write to the kept descriptor says %q", line)
		}
		if n, err := ep.TryRecv(make([]byte, 100)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("and %d bytes are received, %v", n, err)
		}
		app.kill()
	})
}

// TestDescriptorsOfPathsAreGivenBack opens and closes connections that go over to paths,
// at both nodes, and counts sockets of the daemons and of the applications afterwards.
func TestDescriptorsOfPathsAreGivenBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1, "--paths", "lazy")
	server, client := nodes[0].attach(), nodes[1].attach()
	listener, err := server.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 5*time.Minute)
	go func() { // ends with the listener
		for {
			c, err := listener.AcceptConn(ctx)
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	round := func() error { // one connection, over to its path, and closed
		c, err := client.DialAddr(ctx, listener.Addr().(fabric.Addr))
		if err != nil {
			return err
		}
		defer c.Close()
		p := make([]byte, 32<<10)
		for range 8 {
			if _, err := c.Write(p); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, p); err != nil {
				return err
			}
		}
		return nil
	}
	for range 5 {
		if err := round(); err != nil {
			t.Fatal(err)
		}
	}
	before := []int{sockets(t, nodes[0].pid()), sockets(t, nodes[1].pid()), sockets(t, os.Getpid())}
	count := scale(2000, 300, 20_000)
	began := time.Now()
	errs := make(chan error)
	const workers = 8
	for range workers {
		go func() {
			var err error
			for i := 0; i < count/workers && err == nil; i++ {
				err = round()
			}
			errs <- err
		}()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d connections in %v", count, time.Since(began).Round(time.Millisecond))
	eventually(t, 30*time.Second, "their descriptors are given back", func() error {
		for i, pid := range []int{nodes[0].pid(), nodes[1].pid(), os.Getpid()} {
			if now := sockets(t, pid); now > before[i]+8 {
				return fmt.Errorf("process %d of 3 has %d sockets, and had %d", i, now, before[i])
			}
		}
		return nil
	})
	l.agree(nodes...)
}

// sockets returns how many a process has.
func sockets(t testing.TB, pid int) int {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
