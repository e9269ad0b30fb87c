package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// exitUsage is fabricd's exit code for a configuration that cannot be used.
const exitUsage = 2

// refused starts n, which must end by itself with code and one line that says
// each of words. It returns the line.
func (n *node) refused(code int, words ...string) string {
	t := n.l.t
	t.Helper()
	before := len(n.logged())
	n.launch()
	got := n.exit(t, stepLimit)
	said := n.logged()[before:]
	var lines []string
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "fabricd: ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if got != code || len(lines) != 1 {
		t.Errorf("%s: exit code %d and %d lines, want %d and one line:\n%s", n.name, got, len(lines), code, said)
	}
	line := strings.Join(lines, " ")
	for _, word := range words {
		if !strings.Contains(line, word) {
			t.Errorf("%s: said %q, want %q in it", n.name, line, word)
		}
	}
	return line
}

// logged returns n's standard error of all its incarnations.
func (n *node) logged() string {
	b, err := os.ReadFile(filepath.Join(n.l.dir, n.name+".log"))
	if err != nil && !os.IsNotExist(err) {
		n.l.t.Fatal(err)
	}
	return string(b)
}

// logs waits until n's log says text.
func (n *node) logs(text string) {
	n.l.t.Helper()
	eventually(n.l.t, promptly, fmt.Sprintf("%s logs %q", n.name, text), func() error {
		if !strings.Contains(n.logged(), text) {
			return fmt.Errorf("it says:\n%s", tail(filepath.Join(n.l.dir, n.name+".log"), 5))
		}
		return nil
	})
}

// TestBadTokensAreRefused joins with tokens that are no good: the reason shows
// on both sides, and the node can join later.
func TestBadTokensAreRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host()
	text, err := os.ReadFile(l.token)
	if err != nil {
		t.Fatal(err)
	}
	good, err := trust.ParseToken(string(text))
	if err != nil {
		t.Fatal(err)
	}
	forged, err := trust.NewTokenStore().Create(good.Cluster, good.Pin, trust.TokenOptions{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	forged.ID = good.ID
	pin := good
	pin.Pin[0] ^= 1
	once, short := l.newToken(host, "--uses", "1"), l.newToken(host, "--ttl", "1s")
	l.joinWith(host, "first", once).start()
	time.Sleep(1100 * time.Millisecond) // until the short one has expired
	damaged := strings.TrimSpace(string(text))

	n := l.joinWith(host, "second", "")
	for _, c := range []struct{ name, token, want, atHost string }{
		{"used up", once, "token used up", "token used up"},
		{"expired", short, "token expired", "token expired"},
		{"wrong secret", forged.Text(), "wrong proof of the token's secret", "wrong proof of the token's secret"},
		{"wrong CA", pin.Text(), "not the one that the token names", "remote error: tls"},
		{"damaged", damaged[:len(damaged)-1] + string('a'+(damaged[len(damaged)-1]-'a'+1)%26), "token-file", ""},
		{"cut", damaged[:len(damaged)/2], "token-file", ""},
	} {
		if err := os.WriteFile(n.tokenFile(), []byte(c.token), 0o600); err != nil {
			t.Fatal(err)
		}
		line := n.refused(exitUsage, c.want, n.tokenFile())
		if strings.Contains(line, c.token) {
			t.Errorf("%s: the line shows the token: %s", c.name, line)
		}
		host.logs(c.atHost)
	}
	if err := os.WriteFile(n.tokenFile(), text, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	for _, secret := range []string{once, short, forged.Text(), damaged} {
		if strings.Contains(host.logged()+n.logged(), strings.TrimSpace(secret)) {
			t.Error("a log shows a token")
		}
	}
}

// newToken makes a join token at host.
func (l *lab) newToken(host *node, args ...string) string {
	l.t.Helper()
	text, err := l.fabricd(append([]string{"token", "create", "--admin", host.adminSocket()}, args...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

func (n *node) tokenFile() string { return filepath.Join(n.dir, "own.token") }

// joinWith makes a member with a token file of its own.
func (l *lab) joinWith(host *node, name, token string) *node {
	l.t.Helper()
	n := l.prepare(name, "--join", host.addr())
	n.args = append(n.args, "--token-file", n.tokenFile())
	if err := os.WriteFile(n.tokenFile(), []byte(token), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return n
}

// TestBadCertificatesAreRefused starts nodes with an operator's files that are
// no good.
func TestBadCertificatesAreRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host()
	cluster := addr.UUID{1, 2, 3}
	id := trust.Identity{Cluster: cluster, Node: addr.UUID{4, 5, 6}}
	ago := time.Now().Add(-48 * time.Hour)
	old, err := trust.NewCA(cluster, ago)
	if err != nil {
		t.Fatal(err)
	}
	other, err := trust.NewCA(cluster, ago)
	if err != nil {
		t.Fatal(err)
	}
	n := l.prepare("operated", "--join", host.addr())
	files := trust.Files{CA: filepath.Join(n.dir, "ca.pem"), Cert: filepath.Join(n.dir, "cert.pem"), Key: filepath.Join(n.dir, "key.pem")}
	n.args = append(n.args, "--ca", files.CA, "--cert", files.Cert, "--key", files.Key)

	expired := l.issue(old, id, ago, time.Hour)
	l.write(files, expired)
	n.refused(exitUsage, "expired", files.Cert)
	wrong := l.issue(old, id, time.Now(), time.Hour)
	wrong.Roots = []*x509.Certificate{other.Certificate()}
	l.write(files, wrong)
	n.refused(exitUsage, "ca, cert, key", files.CA)
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	n.refused(exitUsage, files.Key, "no such file")
	if st, err := host.status(); err != nil || st.Counts.Nodes != 1 {
		t.Errorf("the host sees %d nodes, %v, want itself", st.Counts.Nodes, err)
	}
}

func (l *lab) issue(ca *trust.CA, id trust.Identity, at time.Time, validity time.Duration) trust.Credentials {
	l.t.Helper()
	c, err := trust.IssueCredentials(ca, id, at, validity)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// write writes c as an operator does.
func (l *lab) write(files trust.Files, c trust.Credentials) {
	l.t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		l.t.Fatal(err)
	}
	for path, block := range map[string]pem.Block{
		files.CA:   {Type: "CERTIFICATE", Bytes: c.Roots[0].Raw},
		files.Cert: {Type: "CERTIFICATE", Bytes: c.Chain[0].Raw},
		files.Key:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(&block), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestDamagedStateNeverLeadsToAnOlderIncarnation flips a byte in each file of a
// member's and of the host's state directory. The node either refuses to start
// or starts with its next incarnation; with the file mended it always does.
func TestDamagedStateNeverLeadsToAnOlderIncarnation(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	for _, n := range []*node{nodes[1], nodes[0]} {
		files, err := filepath.Glob(filepath.Join(n.stateDir(), "*"))
		if err != nil || len(files) < 4 {
			t.Fatalf("the state directory has %v, %v", files, err)
		}
		for _, file := range files {
			if filepath.Base(file) != "lock" { // says nothing
				n.damage(file)
			}
		}
		l.agree(nodes...)
	}
}

// damage flips a byte of file while n is down.
func (n *node) damage(file string) {
	t := n.l.t
	t.Helper()
	old := n.incarnation()
	n.kill()
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := append([]byte{}, good...)
	bad[len(bad)*2/3] ^= 0x10
	if err := os.WriteFile(file, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	n.launch()
	started := false
	err = await(stepLimit, func() error {
		if !n.running() {
			return nil
		}
		st, err := n.status()
		if err == nil && st.State == "joined" {
			started = true
			return nil
		}
		return fmt.Errorf("%+v, %v", st, err)
	})
	switch {
	case err != nil:
		t.Errorf("%s with %s damaged neither starts nor ends: %v", n.name, filepath.Base(file), err)
		n.kill()
	case started:
		t.Logf("%s starts with %s damaged", n.name, filepath.Base(file))
		n.joined()
		n.checkIncarnation(file, old)
		return
	default:
		if code := n.exit(t, stepLimit); code != exitUsage {
			t.Errorf("%s with %s damaged: exit code %d, want %d: %s", n.name, filepath.Base(file), code, exitUsage, tail(n.log, 1))
		}
		if line := tail(n.log, 1); !strings.HasPrefix(line, "fabricd: ") || !strings.Contains(line, n.dir) {
			t.Errorf("%s with %s damaged: said %q", n.name, filepath.Base(file), line)
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	n.checkIncarnation(file, old)
}

// checkIncarnation fails the test unless n's incarnation is a later one of the same node.
func (n *node) checkIncarnation(file string, old fabric.Incarnation) {
	n.l.t.Helper()
	if got := n.incarnation(); got.Node != old.Node || got.Generation <= old.Generation {
		n.l.t.Errorf("%s after damage to %s: incarnation %v, want one after %v", n.name, filepath.Base(file), got, old)
	}
}

// TestBadPlacesAreRefused starts nodes in directories and at ports that are no
// good.
func TestBadPlacesAreRefused(t *testing.T) {
	t.Parallel()
	l, foreign := newLab(t), newLab(t)
	nodes := l.cluster(1)
	host, member := nodes[0], nodes[1]
	watch := host.watch()
	foreign.host()

	// Of another cluster.
	moved := l.prepare("moved", "--join", host.addr(), "--token-file", foreign.token, "--state-dir", member.stateDir())
	moved.refused(exitUsage, "state-dir", member.stateDir()) // in use: the owner cannot be asked
	old := member.incarnation()
	member.kill()
	moved.refused(exitUsage, "belongs to cluster", member.stateDir())
	member.start()
	if got := member.incarnation(); got != (fabric.Incarnation{Node: old.Node, Generation: old.Generation + 1}) {
		t.Errorf("the member is %v after its directory was refused, want the incarnation after %v", got, old)
	}

	// Ports in use.
	var came []string
	for _, p := range []struct{ network, flag string }{{"tcp", "data-port"}, {"udp", "data-port"}, {"tcp", "gossip-port"}, {"udp", "gossip-port"}} {
		n := l.member(host, "crowded-"+p.network+"-"+p.flag)
		port := n.data
		if p.flag == "gossip-port" {
			port = n.gossip
		}
		release := l.occupy(p.network, port)
		n.refused(exitUsage, p.flag, fmt.Sprint(port), "is taken on "+l.ip)
		release()
		n.start()
		came = append(came, n.incarnation().String())
		n.signal(t, syscall.SIGTERM)
		n.exit(t, stepLimit)
	}
	l.agree(nodes...)
	watch.saw(fmt.Sprintf("%v removed, %v added, %s", old, member.incarnation(), visits(came...)))
}

// visits are the events of nodes that come and leave, one after the other.
func visits(incarnations ...string) string {
	var words []string
	for _, incarnation := range incarnations {
		words = append(words, incarnation+" added, "+incarnation+" removed")
	}
	return strings.Join(words, ", ")
}

// copyLive copies the state directory of a running node, as a backup would. A
// file that is about to be renamed may be gone before it is opened.
func copyLive(t *testing.T, to, from string) {
	t.Helper()
	files, err := os.ReadDir(from)
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	for _, f := range files {
		if err != nil {
			break
		}
		var content []byte
		content, err = os.ReadFile(filepath.Join(from, f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name()), content, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSecondHostRefusesToStart starts another host of the cluster, and a copy
// of the host, while the host lives.
func TestSecondHostRefusesToStart(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	watch := nodes[1].watch()
	flow := l.flow(nodes[0], nodes[1])
	clone := l.prepare("clone", "--role", "host", "--join", nodes[0].addr())
	copyLive(t, clone.stateDir(), nodes[0].stateDir())
	second := l.prepare("second", "--role", "host", "--join", nodes[0].addr())
	l.secondHost(clone.stateDir(), second.stateDir())
	for _, n := range []*node{second, clone} {
		t.Logf("%s says: %s", n.name, n.refused(1, "node 0 is held by host", nodes[0].addr()))
	}
	flow.end(t)
	l.agree(nodes...)
	watch.saw("")
}

// secondHost makes the state directory of another host of the cluster whose
// host's directory was copied to from.
func (l *lab) secondHost(from, to string) {
	l.t.Helper()
	st, err := state.Open(from, state.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	defer st.Close()
	ca, err := trust.LoadCA(st.Secret(state.SecretAuthority))
	if err != nil {
		l.t.Fatal(err)
	}
	id := trust.Identity{Cluster: ca.Cluster(), Node: addr.UUID{0xfe}, Host: true}
	own := l.issue(ca, id, time.Now(), time.Hour)
	credentials, err := own.Encode()
	if err != nil {
		l.t.Fatal(err)
	}
	made, err := state.Init(to, state.InitOptions{Cluster: id.Cluster, Node: id.Node, Name: "second",
		Secrets: map[state.SecretName][]byte{
			state.SecretAuthority:   st.Secret(state.SecretAuthority),
			state.SecretCredentials: credentials,
			state.SecretKeyring:     st.Secret(state.SecretKeyring),
			state.SecretTokens:      trust.NewTokenStore().Encode(),
		}})
	if err == nil {
		err = made.Close()
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// occupy takes a port until the returned function is called.
func (l *lab) occupy(network string, port int) (release func()) {
	l.t.Helper()
	at := fmt.Sprintf("%s:%d", l.ip, port)
	if network == "udp" {
		c, err := net.ListenPacket(network, at)
		if err != nil {
			l.t.Fatal(err)
		}
		return func() { c.Close() }
	}
	c, err := net.Listen(network, at)
	if err != nil {
		l.t.Fatal(err)
	}
	return func() { c.Close() }
}

// TestBadDisksAreRefused starts nodes on a disk that is full and on one that
// is read-only. Only a superuser can have a disk of its own to fill; without
// one, permissions make the directory read-only, which they cannot for root.
func TestBadDisksAreRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host()
	n := l.member(host, "cramped")
	disk := l.disk(n)
	if disk.mounted {
		disk.fill()
		n.refused(exitUsage, "state-dir", "no space left")
		disk.clear()
	}
	n.start()
	old := n.incarnation()
	n.kill()
	if disk.sealed != "" {
		disk.readOnly(true)
		n.refused(exitUsage, "state-dir", disk.sealed)
		disk.readOnly(false)
	}
	if disk.mounted {
		disk.fill()
		n.refused(1, n.stateDir(), "no space left") // nothing is wrong with the configuration
		disk.clear()
	}
	n.start()
	if got := n.incarnation(); got.Node != old.Node || got.Generation <= old.Generation {
		t.Errorf("after its disk was read-only and full it is %v, want an incarnation after %v", got, old)
	}
}

// A disk is where a node has its state directory.
type disk struct {
	l       *lab
	dir     string
	mounted bool   // on a small disk of its own
	sealed  string // the kernel's error for a read-only disk; "": it cannot be made read-only
}

// disk gives n's state directory a small disk of its own, if that is allowed.
func (l *lab) disk(n *node) *disk {
	l.t.Helper()
	d := &disk{l: l, dir: n.stateDir(), sealed: "permission denied"}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		l.t.Fatal(err)
	}
	err := syscall.Mount("none", d.dir, "tmpfs", 0, "size=256k,mode=0700")
	switch {
	case err == nil:
		d.mounted, d.sealed = true, "read-only"
		l.t.Cleanup(func() { // the node may still use it
			if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
				l.t.Error(err)
			}
		})
	case os.Getuid() == 0: // in a container that may not mount
		l.t.Logf("mount: %v: neither a disk to fill nor permissions that hold: only the restart is tested", err)
		d.sealed = ""
	}
	return d
}

// fill leaves no room.
func (d *disk) fill() {
	d.l.t.Helper()
	f, err := os.Create(filepath.Join(d.dir, "ballast"))
	if err != nil {
		d.l.t.Fatal(err)
	}
	defer f.Close()
	for _, block := range [][]byte{make([]byte, 4096), {0}} {
		for err = nil; err == nil; {
			_, err = f.Write(block)
		}
	}
}

// clear makes room again.
func (d *disk) clear() {
	d.l.t.Helper()
	if err := os.Remove(filepath.Join(d.dir, "ballast")); err != nil {
		d.l.t.Fatal(err)
	}
}

// readOnly makes the disk read-only, or writable again.
func (d *disk) readOnly(on bool) {
	d.l.t.Helper()
	var err error
	switch {
	case d.mounted && on:
		err = syscall.Mount("none", d.dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	case d.mounted:
		err = syscall.Mount("none", d.dir, "tmpfs", syscall.MS_REMOUNT, "")
	case on:
		err = os.Chmod(d.dir, 0o500)
	default:
		err = os.Chmod(d.dir, 0o700)
	}
	if err != nil {
		d.l.t.Fatal(err)
	}
}
