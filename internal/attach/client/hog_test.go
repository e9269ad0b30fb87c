package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// hog takes as many descriptors of the node as it gets, in all ways that there are,
// and keeps them until it is killed.
func hog(path string) error {
	var got int
	for {
		n, err := hogSession(path)
		got += n
		if err != nil {
			fmt.Println("refused", status.Of(err))
			break
		}
	}
	fmt.Println("got", got)
	select {}
}

// hogSession attaches and takes as many resources as it can. The error is the last refusal.
func hogSession(path string) (got int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s, err := Dial(ctx, path)
	if err != nil {
		return 0, err
	}
	for {
		mem, err := s.Alloc(rma.PageSize)
		if err != nil {
			return got, err
		}
		if _, err := mem.(*sessionMemory).name(); err != nil {
			break
		}
		if got++; got%8 == 0 {
			break
		}
	}
	l, err := s.Open()
	if err != nil {
		return got, err
	}
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(8)
	}
	if err != nil {
		return got, err
	}
	for range 8 {
		e, err := s.Open()
		if err != nil {
			break
		}
		accepted := make(chan error, 1)
		try, cancel := context.WithTimeout(ctx, time.Second)
		go func() { _, _, err := l.Accept(try); accepted <- err }()
		_, err = e.Connect(try, addr.Addr{Node: 3, Port: port})
		cancel()
		if err = errors.Join(err, <-accepted); err != nil {
			break
		}
		got += 2
	}
	return got, nil
}

// TestDescriptorsAreSharedOut: a user that takes all it gets reaches its limit, other users still
// get theirs, and the node keeps its reserve.
func TestDescriptorsAreSharedOut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("not tested: only root can be several users")
		return
	}
	const each, all = 40, 60
	s := serve(t, func(o *server.Options) {
		o.User, o.Descriptors, o.NoPaths = server.Limits{Descriptors: each}, all, "off"
	})
	if err := os.Chmod(s.path, 0o777); err != nil {
		t.Fatal(err)
	}
	for dir := s.path; len(dir) > len(os.TempDir()); dir = dir[:lastSlash(dir)] {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	as := func(uid uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	before := descriptors(t)
	startHog := func(uid uint32) int64 {
		k := startProgram(t, "/proc/self/exe", as(uid), "ATTACH_TEST_HOG="+s.path)
		if line, err := k.out.ReadString('\n'); err != nil || line != "refused "+status.NoMemory.Error()+"\n" {
			t.Fatalf("the hog says %q, %v", line, err)
		}
		return k.number(t, "got")
	}
	// Two pipes and a pidfd of each child are this process's as well. Refused connections may take
	// a moment to be closed.
	first := startHog(65533)
	eventually(t, "one user is within its bound", func() bool { return descriptors(t)-before-3 <= each })
	if first < each/2 {
		t.Errorf("one user got %d things before it was refused, of %d descriptors", first, each)
	}
	second := startHog(65534)
	eventually(t, "all users are within theirs", func() bool { return descriptors(t)-before-6 <= all })
	if second < 1 {
		t.Error("another user got nothing")
	}
}

func lastSlash(path string) int {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '/' {
			return i
		}
	}
	return 0
}

// TestAnswersThatAreNotTakenHaveABound: an application that asks for descriptors and
// does not read the answers makes the node hold no more of them.
func TestAnswersThatAreNotTakenHaveABound(t *testing.T) {
	const each = 30
	s := serve(t, func(o *server.Options) { o.User = server.Limits{Descriptors: each} })
	before := descriptors(t)
	c := attachRaw(t, s)
	c.conn.SetReadBuffer(1)
	for range 600 {
		c.next++
		if err := shm.Send(c.conn, proto.AppendFrame(nil, proto.Header{Op: proto.OpEpochs, Request: c.next}, nil), nil); err != nil {
			break // the node has stopped reading
		}
	}
	eventually(t, "the node has answered what it can", func() bool { return descriptors(t) > before })
	if got := descriptors(t) - before - 1; got > each { // the socket's other end is ours
		t.Errorf("the node holds %d descriptors, want %d at most", got, each)
	}
}
