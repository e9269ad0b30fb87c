package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/transport"
)

func TestProvidersAreNamedOrLeftOut(t *testing.T) {
	for setting, c := range map[string]struct {
		want  string
		named bool
	}{
		"quic,tcp":   {"quic,tcp", true},
		"tcp , quic": {"tcp,quic", true},
		"tcp":        {"tcp", true},
		"^tcp":       {"quic", false},
		"^ quic":     {"", false}, // the name is " quic", which is none: refused below
		"^quic":      {"tcp", false},
		"auto":       {"quic,tcp", false},
		"tcp,shm":    {"tcp", true},
		"shm,quic":   {"quic", true},
		"^shm":       {"quic,tcp", false},
		"^shm,quic":  {"tcp", false},
	} {
		conf, err := Load("", nil, map[string]string{"providers": setting})
		if c.want == "" {
			if err == nil {
				t.Errorf("%s is taken", setting)
			}
			continue
		}
		names, named := conf.linkProviders()
		if err != nil || strings.Join(names, ",") != c.want || named != c.named {
			t.Errorf("%s: %v, named %v, %v; want %s, %v", setting, names, named, err, c.want, c.named)
		}
	}
	file := write(t, "f.yaml", "providers: [\"^tcp\"]\n")
	if conf, err := Load(file, nil, nil); err != nil || strings.Join(conf.Providers, ",") != "^tcp" {
		t.Errorf("a list in a file: %v, %v", conf.Providers, err)
	}
}

func TestSharedMemoryIsUsedUnlessItIsLeftOut(t *testing.T) {
	for setting, want := range map[string]struct{ may, must bool }{
		"quic": {true, false}, "auto": {true, false}, "^tcp": {true, false}, "": {true, false},
		"shm,quic": {true, true}, "tcp,shm": {true, true}, "^shm": {false, false}, "^tcp,shm": {false, false},
	} {
		c := &Config{Providers: split(setting)}
		if may, must := c.sharesMemory(); may != want.may || must != want.must {
			t.Errorf("%s: may %v, must %v, want %v", setting, may, must, want)
		}
	}
}

// What is only good for a provider that is left out is a mistake.
func TestSettingsOfTCPWithoutItAreMistakes(t *testing.T) {
	for _, c := range []struct{ key, variable, value string }{
		{"tcp-plaintext", "FABRIC_TCP_PLAINTEXT", "true"},
	} {
		for _, providers := range []string{"quic", "^tcp"} {
			_, err := Load("", []string{c.variable + "=" + c.value}, map[string]string{"providers": providers})
			lines := configError(t, err)
			if len(lines) != 1 || !strings.Contains(lines[0], fmt.Sprintf("%s: %q (%s): providers leave tcp out", c.key, c.value, c.variable)) {
				t.Errorf("%s: %q", providers, lines)
			}
		}
		for _, providers := range []string{"quic,tcp", "^quic", "auto"} {
			if _, err := Load("", nil, map[string]string{"providers": providers, c.key: c.value}); err != nil {
				t.Errorf("%s: %v", providers, err)
			}
		}
	}
}

// A stub is a provider by name only.
type stub struct {
	transport.Provider
	name string
}

func (s stub) Name() string { return s.name }

// The only provider has to work; of several one does.
func TestProvidersThatCannotBeOpened(t *testing.T) {
	broken := errors.New("no UDP\nhere")
	for _, c := range []struct {
		names, broken string
		opened        string
		fails         bool
	}{
		{"quic tcp", "", "quic tcp", false},
		{"quic tcp", "quic", "tcp", false},
		{"tcp quic", "quic", "tcp", false},
		{"quic tcp", "quic tcp", "", true},
		{"quic", "quic", "", true},
		{"tcp", "quic", "tcp", false},
	} {
		all, none, err := openEach(strings.Fields(c.names), func(name string) (transport.Provider, error) {
			if slices.Contains(strings.Fields(c.broken), name) {
				return nil, broken
			}
			return stub{name: name}, nil
		})
		var opened []string
		for _, p := range all {
			opened = append(opened, p.Name())
		}
		if strings.Join(opened, " ") != c.opened || (err != nil) != c.fails {
			t.Errorf("%+v: opened %v, %v", c, opened, err)
		}
		if c.fails && (!errors.Is(err, broken) || !strings.Contains(err.Error(), "provider ")) {
			t.Errorf("%+v: %v, want the provider and its error", c, err)
		}
		for _, u := range none {
			if !strings.Contains(c.broken, u.Provider) || u.Reason != "no UDP here" {
				t.Errorf("%+v: not available: %+v", c, u)
			}
		}
		if want := len(strings.Fields(c.names)) - len(opened); len(none) != want {
			t.Errorf("%+v: %d are not available, want %d", c, len(none), want)
		}
	}
}

// A node whose preferred provider cannot be opened goes on with the other and
// says so. Where there is no other, that is the end.
func TestANodeWithoutItsFirstProvider(t *testing.T) {
	host, _ := testHost(t)
	var said bytes.Buffer
	open := func(providers ...string) (*Daemon, []transport.Provider, error) {
		c := testConfig(t, RoleNode, "node")
		c.Providers = providers
		said.Reset()
		d := &Daemon{cfg: c, memory: newConnMemory(c.Local.Quotas, shm.Limit, nil), state: host.state, log: zerolog.New(&said)}
		var err error
		if d.ports.data, err = listenPair("data-port", c.Network.Bind, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.ports.data.close() })
		d.ports.data.packets.Close() // UDP does not work here
		all, err := d.openProviders(host.live.get().store, time.Second)
		for _, p := range all {
			t.Cleanup(func() { p.Close() })
		}
		return d, all, err
	}
	for _, providers := range [][]string{{"quic"}, {"^tcp"}} {
		if _, _, err := open(providers...); err == nil || !strings.Contains(err.Error(), "provider quic: ") {
			t.Errorf("%v: %v, want it refused", providers, err)
		}
	}
	for _, providers := range [][]string{{"quic", "tcp"}, {"auto"}} {
		d, all, err := open(providers...)
		if err != nil || len(all) != 1 || all[0].Name() != "tcp" {
			t.Fatalf("%v: %v, %v; want tcp alone", providers, all, err)
		}
		names, none := d.providers()
		if !slices.Equal(names, []string{"tcp"}) || len(none) != 1 || none[0].Provider != "quic" || none[0].Reason == "" {
			t.Errorf("%v: has %v, not available %v", providers, names, none)
		}
		if line := said.String(); !strings.Contains(line, `"provider":"quic"`) || !strings.Contains(line, "links take the others") {
			t.Errorf("%v: it says %q", providers, line)
		}
	}
}

// What a provider promises of encryption is what was set.
func TestProvidersHaveAttributes(t *testing.T) {
	host, _ := testHost(t)
	for _, plaintext := range []bool{false, true} {
		c := testConfig(t, RoleNode, "node")
		c.TCPPlaintext = plaintext
		d := &Daemon{cfg: c, memory: newConnMemory(c.Local.Quotas, shm.Limit, nil), state: host.state, log: zerolog.Nop(), nodeFaults: nil}
		var err error
		if d.ports.data, err = listenPair("data-port", c.Network.Bind, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.ports.data.close() })
		all, err := d.openProviders(host.live.get().store, time.Second)
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		for _, p := range all {
			t.Cleanup(func() { p.Close() })
			a := p.Attributes()
			if want := !(plaintext && p.Name() == "tcp"); a.Encrypted != want {
				t.Errorf("%s with plaintext %v: encrypted %v", p.Name(), plaintext, a.Encrypted)
			}
		}
	}
}
