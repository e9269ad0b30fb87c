package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A rawClient speaks the attach protocol by hand; see internal/attach/proto/SPEC.md.
type rawClient struct {
	t    *testing.T
	conn *net.UnixConn
	next uint64
}

// Operations of the attach protocol that the tests use.
const (
	opHello     = 1
	opOpen      = 7
	opMemAdd    = 16
	opRegister  = 18
	replyBit    = 0x8000
	headerBytes = 16
)

func attachRaw(t *testing.T, path string) *rawClient {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return &rawClient{t: t, conn: conn}
}

func greet(t *testing.T, path string) *rawClient {
	t.Helper()
	c := attachRaw(t, path)
	if code, body := c.ask(opHello, 0, append([]byte("fabricd\x00"), 1, 0, 1, 0, 0, 0, 0, 0), nil); code != status.OK {
		t.Fatalf("HELLO: %v %q", code, body)
	}
	return c
}

// request returns a request's packet.
func (c *rawClient) request(op uint16, endpoint uint32, body []byte) []byte {
	c.next++
	p := binary.LittleEndian.AppendUint16(nil, op)
	p = binary.LittleEndian.AppendUint16(p, 0)
	p = binary.LittleEndian.AppendUint32(p, endpoint)
	p = binary.LittleEndian.AppendUint64(p, c.next)
	return append(p, body...)
}

// ask makes a request and returns its answer's code and body.
func (c *rawClient) ask(op uint16, endpoint uint32, body []byte, f *os.File) (status.Code, []byte) {
	c.t.Helper()
	code, answer, got := c.askFor(op, endpoint, body, f)
	if got != nil {
		got.Close()
	}
	return code, answer
}

// askFor is ask for an answer with a descriptor, which is the caller's.
func (c *rawClient) askFor(op uint16, endpoint uint32, body []byte, f *os.File) (status.Code, []byte, *os.File) {
	c.t.Helper()
	if err := shm.Send(c.conn, c.request(op, endpoint, body), f); err != nil {
		c.t.Fatalf("operation %d: %v", op, err)
	}
	p := make([]byte, 1<<16)
	for {
		n, got, err := shm.NewReceiver(c.conn).Recv(p)
		if err != nil || n < headerBytes {
			c.t.Fatalf("answer to operation %d: %d bytes, %v", op, n, err)
		}
		if binary.LittleEndian.Uint64(p[8:]) == c.next && binary.LittleEndian.Uint16(p) == op|replyBit {
			return status.Code(binary.LittleEndian.Uint16(p[2:])), bytes.Clone(p[headerBytes:n]), got
		}
		if got != nil {
			got.Close()
		}
	}
}

// gone waits until the node has ended the connection.
func (c *rawClient) gone(what string) {
	c.t.Helper()
	p := make([]byte, 1<<16)
	for {
		n, f, err := shm.NewReceiver(c.conn).Recv(p)
		if f != nil {
			f.Close()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.t.Errorf("%s: the connection goes on", what)
		}
		if err != nil || n == 0 {
			return
		}
	}
}

// descriptors returns how many this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestDescriptorsByTheHundred passes as many descriptors as the kernel allows
// with requests that take none, and with one that takes one. The session ends
// and no descriptor stays.
func TestDescriptorsByTheHundred(t *testing.T) {
	c := newCluster(t)
	path := c.host.Status().Socket
	devNull, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer devNull.Close()
	many := make([]int, 253)
	for i := range many {
		many[i] = int(devNull.Fd())
	}
	greet(t, path).conn.Close()
	before := descriptors(t)
	for range 20 {
		for _, op := range []uint16{opOpen, opMemAdd, 999} {
			x := greet(t, path)
			body := []byte(nil)
			if op == opMemAdd {
				body = binary.LittleEndian.AppendUint64(nil, rma.PageSize)
			}
			if _, _, err := x.conn.WriteMsgUnix(x.request(op, 0, body), syscall.UnixRights(many...), nil); err != nil {
				t.Fatal(err)
			}
			x.gone("253 descriptors")
			x.conn.Close()
		}
	}
	for limit := time.Now().Add(patience); descriptors(t) > before+4; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d descriptors are open, %d before", descriptors(t), before)
		}
	}
}

// TestConnectionsThatSayNothing holds connections to the attach socket without
// a HELLO. An application that behaves attaches all the same.
func TestConnectionsThatSayNothing(t *testing.T) {
	c := newCluster(t)
	path := c.host.Status().Socket
	grows(t, 16<<20, func() {
		for range 40 {
			attachRaw(t, path)
		}
		for i := range 300 {
			x := attachRaw(t, path)
			_, _ = x.conn.Write(bytes.Repeat([]byte{byte(i)}, 1+i*200))
			x.conn.Close()
		}
	})
	for limit := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // those that ended are cleaned away
		s, err := client.Dial(within(t), path)
		if err == nil {
			s.Close()
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("an application that behaves: %v", err)
		}
	}
}

// TestQuotas takes as much as one user may, and one more. The answers name the
// limit, and everything is given back with the sessions.
func TestQuotas(t *testing.T) {
	c := newCluster(t)
	path := c.host.Status().Socket
	first := greet(t, path)
	opened := 0
	for ; opened < 20000; opened++ {
		if code, body := first.ask(opOpen, 0, nil, nil); code != status.OK {
			if code != status.NoMemory || !strings.Contains(string(body), "endpoints") {
				t.Errorf("endpoint %d: %v %q", opened, code, body)
			}
			break
		}
	}
	if opened != 16384 {
		t.Errorf("one session opened %d endpoints, want 16384", opened)
	}
	sessions := 1
	for ; sessions < 100; sessions++ {
		x := attachRaw(t, path)
		code, body := x.ask(opHello, 0, append([]byte("fabricd\x00"), 1, 0, 1, 0, 0, 0, 0, 0), nil)
		if code != status.OK {
			if code != status.NoMemory || !strings.Contains(string(body), "sessions") {
				t.Errorf("session %d: %v %q", sessions, code, body)
			}
			break
		}
	}
	if sessions != 64 {
		t.Errorf("one user attached %d times, want 64", sessions)
	}
	first.conn.Close()
	for limit := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		x := attachRaw(t, path)
		if code, _ := x.ask(opHello, 0, append([]byte("fabricd\x00"), 1, 0, 1, 0, 0, 0, 0, 0), nil); code == status.OK {
			break
		}
		x.conn.Close()
		if time.Now().After(limit) {
			t.Fatal("the place of a session that ended is not given back")
		}
	}
}

// TestMemoryOfTwoSessions hands the same memfd to the node in two sessions. Each
// is its own user of the pages: the end of one leaves the other's.
func TestMemoryOfTwoSessions(t *testing.T) {
	c := newCluster(t)
	path := c.host.Status().Socket
	m, err := shm.Create("shared", rma.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	size := binary.LittleEndian.AppendUint64(nil, rma.PageSize)
	one, two := greet(t, path), greet(t, path)
	for _, x := range []*rawClient{one, two} {
		for range 2 { // the same twice in one session, too
			if code, body := x.ask(opMemAdd, 0, size, m.File()); code != status.OK {
				t.Fatalf("MEM_ADD: %v %q", code, body)
			}
		}
	}
	one.conn.Close()
	code, body := two.ask(opOpen, 0, nil, nil)
	if code != status.OK {
		t.Fatal(code)
	}
	endpoint := binary.LittleEndian.Uint32(body)
	// Memory of another session cannot be named: numbers are a session's own.
	register := binary.LittleEndian.AppendUint32(nil, 77)
	register = append(register, make([]byte, 4+8+8)...)
	register = binary.LittleEndian.AppendUint64(register, rma.PageSize)
	register = append(register, make([]byte, 8)...)
	register[8] = 3
	if code, body := two.ask(opRegister, endpoint, register, nil); code == status.OK || code == status.Protocol {
		t.Errorf("a window on unknown memory: %v %q", code, body)
	}
	if code, _ := two.ask(opMemAdd, 0, size, m.File()); code != status.OK {
		t.Errorf("after the other session's end: %v", code)
	}
}

// TestUnprivilegedProcess runs a process of another user, if this one is root,
// against the daemon's sockets and files.
func TestUnprivilegedProcess(t *testing.T) {
	c := newCluster(t)
	st := c.host.Status()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsUnprivilegedProcess$", "-test.v")
	cmd.Env = append(os.Environ(), unprivileged+"="+filepath.Dir(st.StateDir), unprivilegedSockets+"="+st.Socket+":"+st.Admin)
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(attacked)) {
		t.Errorf("the unprivileged process: %v\n%s", err, out)
	}
}

// Environment variables that make a test binary an unprivileged process, and
// the line that it prints when it has tried everything.
const (
	unprivileged        = "FABRIC_HOSTILE_DIRECTORY"
	unprivilegedSockets = "FABRIC_HOSTILE_SOCKETS"
	attacked            = "every attack was made"
)

// TestAsUnprivilegedProcess is the body of [TestUnprivilegedProcess]'s process;
// in others it has nothing to attack.
func TestAsUnprivilegedProcess(t *testing.T) {
	dir := os.Getenv(unprivileged)
	if dir == "" {
		return
	}
	socket, admin, _ := strings.Cut(os.Getenv(unprivilegedSockets), ":")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := client.Dial(ctx, socket)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	defer s.Close()
	for _, port := range []addr.Port{1, 80, 1023} {
		ep, err := s.Open()
		if err != nil {
			t.Fatal(err)
		}
		_, err = ep.Bind(port)
		if os.Getuid() != 0 && !errors.Is(err, syscall.EACCES) {
			t.Errorf("bind to port %d: %v, want EACCES", port, err)
		}
		if port == 1 {
			if _, err := ep.Bind(2050); err != nil {
				t.Errorf("a port for everybody: %v", err)
			}
		}
	}
	if os.Getuid() == 65534 { // another user than the daemon's
		if conn, err := net.Dial("unix", admin); !errors.Is(err, syscall.EACCES) {
			t.Errorf("the admin socket: %v", err)
			conn.Close()
		}
		err := filepath.WalkDir(filepath.Join(dir, "state"), func(path string, _ os.DirEntry, err error) error {
			if !errors.Is(err, os.ErrPermission) && path != filepath.Join(dir, "state") {
				t.Errorf("%s can be seen: %v", path, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "state", "authority")); !errors.Is(err, os.ErrPermission) {
			t.Errorf("the CA's key: %v", err)
		}
		if err := os.Remove(socket); !errors.Is(err, os.ErrPermission) {
			t.Errorf("the socket can be removed: %v", err)
		}
	}
	fmt.Println(attacked)
}

// TestAdminRequestsThatAreTooLarge sends the admin interface more than it takes.
func TestAdminRequestsThatAreTooLarge(t *testing.T) {
	c := newCluster(t)
	for name, request := range map[string]string{
		"an endless header": "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 8<<20),
		"an endless line":   "GET /" + strings.Repeat("x", 8<<20),
		"an endless body":   "POST /v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n" + strings.Repeat(" ", 8<<20),
		"a chunk of 1 EiB":  "POST /v1/tokens HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{",
		"a negative length": "POST /v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"no HTTP":           "\x16\x03\x01\x40\x00\x01\xff",
		"another path":      "GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", c.host.Status().Admin)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(5 * time.Second))
			go func() { _, _ = conn.Write([]byte(request)); conn.(*net.UnixConn).CloseWrite() }()
			p := make([]byte, 12)
			n, err := conn.Read(p)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is held open")
			}
			if n == 12 && p[9] == '2' {
				t.Errorf("answered %q", p)
			}
		})
	}
	if h := adminGet(t, c.host.Status().Admin, "/v1/health"); !bytes.Contains(h, []byte("true")) {
		t.Errorf("health: %s", h)
	}
}
