package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach/client"
)

// insideSocket makes a test binary the root of a namespace of users, and names
// the socket that it attaches to.
const insideSocket = "FABRIC_HOSTILE_NAMESPACE"

// TestRootOfANamespaceIsNoAdmin runs a process that is root in a namespace of
// users, as in a container, and one of another user of the machine.
func TestRootOfANamespaceIsNoAdmin(t *testing.T) {
	c := newCluster(t)
	outside := 65534 // the daemon's admin is root, which may map any user
	if os.Getuid() != 0 {
		outside = os.Getuid()
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsRootOfANamespace$", "-test.v")
	cmd.Env, cmd.Dir = append(os.Environ(), insideSocket+"="+c.host.Status().Socket), "/"
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: outside, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: one, GidMappings: one,
		Credential: &syscall.Credential{NoSetGroups: true}}
	out, err := cmd.CombinedOutput()
	if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran && os.Getuid() != 0 {
		t.Logf("this machine lets nobody but root make namespaces of users (%v): nobody can come from one", err)
		return
	}
	if err != nil || !bytes.Contains(out, []byte(attacked)) {
		t.Errorf("the root of a namespace: %v\n%s", err, out)
	}
}

// TestAsRootOfANamespace is the body of [TestRootOfANamespaceIsNoAdmin]'s
// process; in others it has nothing to attack.
func TestAsRootOfANamespace(t *testing.T) {
	socket := os.Getenv(insideSocket)
	if socket == "" {
		return
	}
	if os.Getuid() != 0 {
		t.Fatalf("user %d, want the namespace's root", os.Getuid())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := client.Dial(ctx, socket)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	defer s.Close()
	ep, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Bind(80); !errors.Is(err, syscall.EACCES) {
		t.Errorf("bind to port 80: %v, want EACCES", err)
	}
	if _, err := ep.Bind(2050); err != nil {
		t.Errorf("a port for everybody: %v", err)
	}
	fmt.Println(attacked)
}

// TestManyPacketsOfStrangersLeaveNothing sends a hundred thousand packets to
// each UDP port of a host, noise and beginnings of handshakes: little memory is
// left of them, and the host lives.
func TestManyPacketsOfStrangersLeaveNothing(t *testing.T) {
	c := newCluster(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	before := heap()
	for to, kinds := range map[string][]func(*rand.Rand) []byte{
		c.data(): {noise, initialPacket}, c.host.Status().Gossip: {noise, gossipPacket},
	} {
		conn, err := net.Dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		packets := make([][]byte, 500)
		for i := range packets {
			packets[i] = kinds[i%2](random)
		}
		for i := range 100_000 {
			p := packets[i%len(packets)]
			if len(p) >= 14 { // another connection each time
				binary.BigEndian.PutUint64(p[6:], random.Uint64())
			}
			_, _ = conn.Write(p) // an ICMP error of an earlier one is nothing to us
			if i%256 == 0 {
				time.Sleep(time.Millisecond) // loopback takes no more anyway
			}
		}
	}
	// Handshakes that began are given up after a while.
	for limit := time.Now().Add(patience); heap()-before > 5<<20; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("memory grew by %d KiB, want 5 MiB at most", (heap()-before)>>10)
		}
	}
	c.alive(c.start(c.node("one")))
}
