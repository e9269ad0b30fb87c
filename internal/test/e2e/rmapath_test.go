package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// TestRMAGoesPastTheOwnNode: two daemons with paths, an application on each. Operations go
// straight to the peer's node, which the own one names; when that is killed, they end.
func TestRMAGoesPastTheOwnNode(t *testing.T) {
	t.Parallel()
	const size = 1 << 16
	l := newLab(t)
	nodes := l.cluster(1, "--paths", "lazy")
	server := nodes[1].attach()
	near, far := l.exchange(server, nodes[0].attach())
	a, b := near.Endpoint(), far.Endpoint()
	mem, err := server.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	off, err := b.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	eventually(t, stepLimit, "RMA goes by its path", func() error {
		if err := a.VWriteTo(sent, off, fabric.Sync); err != nil {
			t.Fatal(err)
		}
		said, err := l.fabricd("why", "--admin", nodes[0].adminSocket())
		if err == nil && (!strings.Contains(said, "rma       path\n") || !strings.Contains(said, "rma path  ")) {
			err = fmt.Errorf("why says:\n%s", said)
		}
		return err
	})
	for i := range 100 {
		clear(mem.Bytes())
		sent[0] = byte(i)
		if err := a.VWriteTo(sent, off, 0); err != nil {
			t.Fatal(err)
		}
		m, err := b.FenceMark(fabric.InitPeer)
		if err == nil {
			err = b.FenceWait(within(t, stepLimit), m)
		}
		if err != nil || !bytes.Equal(mem.Bytes(), sent) {
			t.Fatalf("write %d is not there behind the fence of the peer's side: %v", i, err)
		}
		got := make([]byte, size)
		if err := a.VReadFrom(got, off, 0); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("read %d: %v", i, err)
		}
		if old, err := a.FetchAdd64(context.Background(), off, 1); err != nil {
			t.Fatalf("fetch-add %d: %d, %v", i, old, err)
		}
	}
	nodes[1].kill()
	eventually(t, stepLimit, "RMA ends with the node", func() error {
		err := a.VWriteTo(sent, off, fabric.Sync)
		if !errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("a write: %v", err)
		}
		return nil
	})
}

// rmaByTheLink checks that operations between applications of a node of this build and of one
// that knows no RMA paths go over the link, in both directions, and that `fabricd why` says so.
func rmaByTheLink(t *testing.T, past string) {
	const size = 1 << 16
	l := newLab(t)
	host := l.host("--paths", "lazy")
	m := l.member(host, "past", "--paths", "lazy")
	m.exe = past
	m.start()
	l.agree(host, m)
	server, client := host.attach(), m.attach()
	near, far := l.exchange(server, client)
	a, b := near.Endpoint(), far.Endpoint()
	for app, ends := range map[*fabric.Node][2]*fabric.Endpoint{server: {a, b}, client: {b, a}} {
		mem, err := app.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mem.Close() })
		off, err := ends[1].Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		for i := range 50 {
			sent[0] = byte(i)
			if err := ends[0].VWriteTo(sent, off, 0); err != nil {
				t.Fatal(err)
			}
			mark, err := ends[0].FenceMark(fabric.InitSelf)
			if err == nil {
				err = ends[0].FenceWait(within(t, stepLimit), mark)
			}
			if err != nil || !bytes.Equal(mem.Bytes(), sent) {
				t.Fatalf("write %d is not there behind its fence: %v", i, err)
			}
			got := make([]byte, size)
			if err := ends[0].VReadFrom(got, off, fabric.Sync); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("read %d: %v", i, err)
			}
		}
		if err := ends[1].Unregister(off, size); err != nil {
			t.Fatal(err)
		}
	}
	said, err := l.fabricd("why", "--admin", host.adminSocket())
	if err != nil || !strings.Contains(said, "rma       node") || !strings.Contains(said, "the peer's fabricd knows no RMA paths") {
		t.Errorf("why says, %v:\n%s", err, said)
	}
}
