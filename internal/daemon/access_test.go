package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// A configured is a host whose settings come from a file that the test writes.
type configured struct {
	*Daemon
	t    *testing.T
	file string
	load func() (Config, error)
}

func (h *configured) write(text string) {
	h.t.Helper()
	if err := os.WriteFile(h.file, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// startConfigured makes a cluster and starts its host with a settings file.
func startConfigured(t *testing.T, text string) *configured {
	t.Helper()
	base := testConfig(t, RoleHost, "host")
	h := &configured{t: t, file: filepath.Join(filepath.Dir(base.StateDir), "fabricd.yaml")}
	h.write(text)
	flags := map[string]string{"role": "host", "name": "host", "state-dir": base.StateDir, "bind": "127.0.0.1", "data-port": "0", "gossip-port": "0",
		"socket": base.Local.Socket, "admin": base.Local.AdminSocket, "detection": "fast"}
	h.load = func() (Config, error) { return Load(h.file, nil, flags) }
	c, err := h.load()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Init(c, filepath.Join(filepath.Dir(base.StateDir), "token")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	h.Daemon, err = Start(ctx, c, Options{
		Log:      zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
		Settings: h.load, SettingsFile: h.file,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	if err := h.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return h
}

// audited closes the host and returns the lines of its audit log about access.
func (h *configured) audited() []string {
	h.t.Helper()
	if err := h.Close(); err != nil {
		h.t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(h.cfg.StateDir, auditFile))
	if err != nil {
		h.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			h.t.Fatal(err)
		}
		switch e.Event {
		case audit.RulesChanged:
			lines = append(lines, e.Text)
		case audit.ConnectRefused, audit.BindRefused:
			lines = append(lines, fmt.Sprintf("%s %s %d %d %s", e.Event, e.Name, *e.UID, e.Port, e.Rule))
		}
	}
	return lines
}

// node starts a node of the host's cluster.
func (h *configured) node(name string) *Daemon {
	h.t.Helper()
	c := testConfig(h.t, RoleNode, name)
	c.Join, c.TokenFile = []string{h.Status().Data[0]}, filepath.Join(filepath.Dir(h.file), "token")
	return startTest(h.t, c)
}

// listen makes an application of the host accept each request that reaches it.
func (h *configured) listen(port addr.Port, uid uint32) {
	h.t.Helper()
	s, err := h.session(attach.Credentials{UID: uid})
	if err != nil {
		h.t.Fatal(err)
	}
	l, err := s.Open()
	if err == nil {
		_, err = l.Bind(port)
	}
	if err == nil {
		err = l.Listen(4)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	go func() {
		for {
			if _, _, err := l.Accept(context.Background()); err != nil {
				return
			}
		}
	}()
}

// reaches connects from a node, as a user, to a port of the host.
func (h *configured) reaches(from *Daemon, uid uint32, port addr.Port, want bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), testLimit)
	defer cancel()
	s, err := from.session(attach.Credentials{UID: uid})
	if err != nil {
		h.t.Fatal(err)
	}
	defer s.Close()
	ep, err := s.Open()
	if err == nil {
		_, err = ep.Connect(ctx, addr.Addr{Port: port})
	}
	if want && err != nil || !want && !errors.Is(err, syscall.ECONNREFUSED) {
		h.t.Errorf("user %d of %s to port %d: %v, want success: %v", uid, from.cfg.Name, port, err, want)
	}
}

// TestAccessRulesAreTakenOver changes the settings file of a running host.
func TestAccessRulesAreTakenOver(t *testing.T) {
	h := startConfigured(t, "access:\n  - 2050 from none\n")
	one := h.node("one")
	h.listen(2050, 7)
	h.listen(2051, 7)
	h.reaches(one, 7, 2050, false)
	h.reaches(one, 7, 2051, true)

	h.write("access:\n  - 2050 from one\n  - 2060 bind 9\n")
	if err := h.ReloadSettings(); err != nil {
		t.Error(err)
	}
	h.reaches(one, 7, 2050, true)
	h.reaches(h.Daemon, 7, 2050, false)
	h.binds(8, 2060, syscall.EACCES)
	want := []AccessRule{{"2050 from one", 1}, {"2060 bind 9", 1}, {"default-access: open", 0}}
	if got := h.Status().Access; !slices.Equal(got, want) {
		t.Errorf("status: %v, want %v", got, want)
	}

	for text, says := range map[string]string{
		"access:\n  - 2050 from none\n  - 2051 from\n": "fabricd.yaml:1): rule \"2051 from\": 0 callers",
		"access: [":                 "not YAML",
		"default-access: ajar\n":    "open or closed",
		"connect-timeout: sometime": "want a duration",
	} {
		h.write(text)
		if err := h.ReloadSettings(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
		h.reaches(one, 7, 2050, true) // as before
		h.reaches(h.Daemon, 7, 2050, false)
	}

	h.write("default-access: closed\n")
	if err := h.ReloadSettings(); err != nil {
		t.Error(err)
	}
	h.reaches(one, 7, 2051, false)
	h.reaches(h.Daemon, 8, 2051, false)
	h.reaches(h.Daemon, 7, 2051, true)
	if err := h.ReloadSettings(); err != nil {
		t.Errorf("the same settings again: %v", err)
	}
	c, err := Load(h.file, nil, map[string]string{"connect-timeout": "3s"})
	if got := h.waitingSettings(c); err != nil || !slices.Contains(got, "connect-timeout") || slices.Contains(got, "default-access") {
		t.Errorf("settings that wait for a restart: %v, %v", got, err)
	}
	lines := h.audited()
	for _, want := range []string{
		audit.ConnectRefused + " one 7 2050 2050 from none",
		"default-access: open; removed: 2050 from none; added: 2050 from one; added: 2060 bind 9",
		audit.BindRefused + " host 8 2060 2060 bind 9",
		audit.ConnectRefused + " host 7 2050 2050 from one",
		"default-access: closed; removed: 2050 from one; removed: 2060 bind 9",
		audit.ConnectRefused + " host 8 2051 default-access: closed",
	} {
		if n := len(slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return l != want })); n < 1 || n > 2 {
			t.Errorf("%d lines %q in the audit log:\n%s", n, want, strings.Join(lines, "\n"))
		}
	}
}

// binds binds a port of the host as a user.
func (h *configured) binds(uid uint32, port addr.Port, want error) {
	h.t.Helper()
	s, err := h.session(attach.Credentials{UID: uid})
	if err != nil {
		h.t.Fatal(err)
	}
	defer s.Close()
	ep, err := s.Open()
	if err == nil {
		_, err = ep.Bind(port)
	}
	if !errors.Is(err, want) {
		h.t.Errorf("user %d binds port %d: %v, want %v", uid, port, err, want)
	}
}

// TestPreviewAsksTheOtherNode: what a connect would meet is known for a port of
// this node and of another one, by its name and by its ID.
func TestPreviewAsksTheOtherNode(t *testing.T) {
	h := startConfigured(t, "access:\n  - 2050 from one local\n  - 2051 from none\n")
	one := h.node("one")
	h.listen(2050, 7)
	for _, d := range []*Daemon{h.Daemon, one} {
		c := NewClient(d.cfg.Local.AdminSocket)
		defer c.Close()
		for node, port := range map[string]addr.Port{"host": 2050, "0": 2051} {
			p, err := c.Preview(t.Context(), node, port, 7)
			want := Preview{Name: "host", Port: port, UID: 7, Connects: true, Allowed: true, By: "2050 from one local", Listening: true, Backlog: 4}
			if port == 2051 {
				want = Preview{Name: "host", Port: port, UID: 7, By: "2051 from none"}
			}
			if p != want || err != nil {
				t.Errorf("%s asks for %s:%d: %+v, %v, want %+v", d.cfg.Name, node, port, p, err, want)
			}
		}
		if _, err := c.Preview(t.Context(), "nobody\x1b", 2050, 7); err == nil || !strings.Contains(err.Error(), `node "nobody\x1b": no live node`) {
			t.Errorf("a node that is not there: %v", err)
		}
		if _, err := c.Preview(t.Context(), "host", 0, 7); err == nil || !strings.Contains(err.Error(), "1 to 65535") {
			t.Errorf("port 0: %v", err)
		}
	}
}

// TestSettingsFileIsWatched: what the file says is taken over within half a
// minute of its change, and the file is read only then.
func TestSettingsFileIsWatched(t *testing.T) {
	file := write(t, "f.yaml", "access: [2050 from none]")
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var reads atomic.Int32
		d := &Daemon{tasks: tasks{ctx: ctx}, log: zerolog.Nop(), opts: Options{SettingsFile: file, Settings: func() (Config, error) {
			reads.Add(1)
			return Load(file, nil, nil)
		}}}
		d.loaded = Default()
		d.tasks.wg.Go(d.watchSettings)
		synctest.Wait()
		age := func(ago time.Duration) { // in the bubble's time
			if err := os.Chtimes(file, time.Time{}, time.Now().Add(-ago)); err != nil {
				t.Error(err)
			}
		}
		look := func(want string, wantReads int32) {
			t.Helper()
			time.Sleep(reloadEvery)
			synctest.Wait()
			if got := d.live.get().access.For(2050); got != want || reads.Load() != wantReads {
				t.Errorf("rule %q after %d reads, want %q after %d", got, reads.Load(), want, wantReads)
			}
		}
		age(time.Hour)
		look("2050 from none", 1)
		look("2050 from none", 1)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Error(err)
		}
		age(-reloadEvery)
		look("2050 from none", 1) // in the middle of a write, perhaps
		if err := os.WriteFile(file, []byte("access: [2050 from web-1]"), 0o600); err != nil {
			t.Error(err)
		}
		age(-reloadEvery)
		look("2050 from none", 1)
		look("2050 from web-1", 2) // as it was at the look before
		if err := os.WriteFile(file, []byte("access: [2050"), 0o600); err != nil {
			t.Error(err)
		}
		age(0)
		look("2050 from web-1", 3)
		cancel()
		d.tasks.wg.Wait()
	})
}

// TestARefusedServiceIsCounted: at the host, with its rule, and the listener is notified.
func TestARefusedServiceIsCounted(t *testing.T) {
	h := startConfigured(t, "access:\n  - service:db by label:db\n")
	s, err := h.node("one").session(attach.Credentials{UID: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Open()
	if err == nil {
		_, err = l.Bind(2050)
	}
	if err == nil {
		err = l.Serve("db")
	}
	if err == nil {
		err = l.Listen(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if _, _, err := l.Accept(ctx); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), `serve "db"`) {
		t.Errorf("Accept of a service that the host bars: %v, want EACCES", err)
	}
	want := []AccessRule{{"service:db by label:db", 1}, {"default-access: open", 0}}
	if got := h.Status().Access; !slices.Equal(got, want) {
		t.Errorf("status: %v, want %v", got, want)
	}
}

func TestStartRefusesRulesThatContradict(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	setAccess(&c, "2050 from web-1,2050 from db-1")
	if _, err := Start(t.Context(), c, Options{}); err == nil || !strings.Contains(err.Error(), "never decides") {
		t.Errorf("started with %v: %v", c.Access.Rules, err)
	}
}
