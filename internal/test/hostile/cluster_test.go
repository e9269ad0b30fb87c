package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// A cluster is a host's fabricd in this process, on loopback, whose secrets the
// test knows: it can act as any bad member, or with any stolen key.
type cluster struct {
	t            *testing.T
	host         *daemon.Daemon
	id           addr.UUID
	ca           *trust.CA
	keyring      trust.Keyring
	token        string // its text
	tokenFile    string
	logs         *logBuffer                          // of all daemons
	incarnations map[*daemon.Daemon]addr.Incarnation // that they had when they were started

	evil   *trust.Store // of the bad node
	evilID trust.Identity
}

// A logBuffer keeps the log lines of daemons.
type logBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func daemonConfig(t *testing.T, role daemon.Role, name string) daemon.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "fh") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // for other users' attempts
		t.Fatal(err)
	}
	c := daemon.Default()
	c.Role, c.Name, c.Detection = role, name, "normal"
	c.StateDir = filepath.Join(dir, "state")
	c.Network = daemon.NetworkConfig{Bind: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	c.Local.Socket, c.Local.AdminSocket = filepath.Join(dir, "app"), filepath.Join(dir, "admin")
	return c
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, logs: &logBuffer{}, incarnations: make(map[*daemon.Daemon]addr.Incarnation)}
	config := daemonConfig(t, daemon.RoleHost, "host")
	config.Local.SocketMode = 0o666
	c.tokenFile = filepath.Join(t.TempDir(), "token")
	if _, err := daemon.Init(config, c.tokenFile); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	c.token = string(bytes.TrimSpace(text))
	c.steal(config.StateDir)
	c.host = c.start(config)
	c.enrol()
	return c
}

// enrol gives the bad node a certificate with a token of its own, as an honest node
// gets one.
func (c *cluster) enrol() {
	c.t.Helper()
	token, err := c.host.CreateToken(time.Hour, 1)
	if err != nil {
		c.t.Fatal(err)
	}
	creds, _, err := enrolAt(c.data(), token.Token, "evil")
	if err == nil {
		c.evilID, err = creds.Identity()
	}
	if err == nil {
		c.evil, err = trust.NewStore(creds, time.Now)
	}
	if err != nil {
		c.t.Fatalf("the bad node does not enrol: %v", err)
	}
}

// steal reads the cluster's secrets.
func (c *cluster) steal(dir string) {
	c.t.Helper()
	s, err := state.Open(dir, state.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer s.Close()
	c.id = s.Identity().Cluster
	if c.ca, err = trust.LoadCA(s.Secret(state.SecretAuthority)); err != nil {
		c.t.Fatal(err)
	}
	if c.keyring, err = trust.DecodeKeyring(s.Secret(state.SecretKeyring)); err != nil {
		c.t.Fatal(err)
	}
}

// start starts a daemon and waits until it has its ID.
func (c *cluster) start(config daemon.Config) *daemon.Daemon {
	c.t.Helper()
	d, err := daemon.Start(within(c.t), config, daemon.Options{Log: zerolog.New(c.logs).Level(zerolog.TraceLevel), Version: "test"})
	if err != nil {
		c.t.Fatalf("%s does not start: %v", config.Name, err)
	}
	c.t.Cleanup(func() { d.Close() })
	if err := d.Ready(within(c.t)); err != nil {
		c.t.Fatalf("%s gets no ID: %v", config.Name, err)
	}
	c.incarnations[d] = d.Self().Incarnation
	return d
}

// node returns the configuration of a node that may join.
func (c *cluster) node(name string) daemon.Config {
	n := daemonConfig(c.t, daemon.RoleNode, name)
	n.Join, n.TokenFile = []string{c.data()}, c.tokenFile
	return n
}

func (c *cluster) data() string { return c.host.Status().Data[0] }

// store returns credentials of the cluster's CA, made at the time now.
func (c *cluster) store(ca *trust.CA, id trust.Identity, now time.Time) *trust.Store {
	c.t.Helper()
	creds, err := trust.IssueCredentials(ca, id, now, time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	s, err := trust.NewStore(creds, func() time.Time { return now })
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// A raw is a TLS connection to a control port on which the test writes frames
// of its own.
type raw struct {
	t *testing.T
	c *tls.Conn
}

func dialRaw(t *testing.T, address string, config *tls.Config) (*raw, error) {
	t.Helper()
	d := tls.Dialer{Config: config}
	c, err := d.DialContext(within(t), "tcp", address)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.(*tls.Conn).NetConn().Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &raw{t, c.(*tls.Conn)}, nil
}

// say writes a frame; the end of the connection is for the test to notice.
func (r *raw) say(f any) {
	r.t.Helper()
	b, err := control.AppendFrame(nil, f)
	if err != nil {
		r.t.Fatal(err)
	}
	_, _ = r.c.Write(b)
}

// Types of frames that the tests look at; see membership/control/SPEC.md.
const (
	frameWelcome = 2
	frameRefuse  = 3
	frameClose   = 4
	frameGrant   = 26
	frameRefused = 27
	frameRemoved = 30
)

// next returns the type and the body of the next frame.
func (r *raw) next() (byte, []byte, error) {
	var head [control.HeaderLen]byte
	if _, err := io.ReadFull(r.c, head[:]); err != nil {
		return 0, nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err := io.ReadFull(r.c, body)
	return head[4], body, err
}

// until returns the body of the next frame of a type, nil at the end of the
// connection.
func (r *raw) until(types ...byte) (byte, []byte) {
	r.t.Helper()
	for {
		t, body, err := r.next()
		if err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				r.t.Errorf("no frame of types %v, and no end either", types)
			}
			return 0, nil
		}
		if bytes.IndexByte(types, t) >= 0 {
			return t, body
		}
	}
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}
