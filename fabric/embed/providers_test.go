package embed_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/embed"
	"github.com/fabricd/fabricd/internal/daemon"
)

// send sends a megabyte from one node to another and back.
func send(t *testing.T, from, to *embed.Node) error {
	t.Helper()
	l, err := to.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := from.DialAddr(ctx, l.Addr().(fabric.Addr))
	if err != nil {
		l.Close()
		<-echoed
		return err
	}
	defer c.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	sent := make(chan error, 1)
	go func() { _, err := c.Write(want); sent <- err }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the echo is another one: %v", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	c.Close()
	<-echoed
	return nil
}

// links returns the output of `fabricd links --json` for a node.
func links(t *testing.T, adminSocket string) (all []struct {
	Provider   string
	Why        string
	Considered []struct {
		Provider string
		Chosen   bool
		Reason   string
	}
	Streams []struct {
		Stream  string
		Ranking []string
	}
}) {
	t.Helper()
	shown(t, adminSocket, "links", "links", &all)
	return all
}

// shown reads a part of the output of an operator command for a node.
func shown(t *testing.T, adminSocket, command, part string, into any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	text, err := daemon.NewClient(adminSocket).Get(ctx, command)
	if err != nil {
		t.Fatal(err)
	}
	body := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &body); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body[part], into); err != nil {
		t.Fatal(err)
	}
}

// Nodes use the first provider of the dialing one that both have.
func TestProviders(t *testing.T) {
	for name, c := range map[string]struct {
		host, node []string
		plaintext  bool
		want       string // provider of the link; empty: there is none
	}{
		"both":            {nil, nil, false, "quic"},
		"tcp first":       {nil, []string{"tcp", "quic"}, false, "tcp"},
		"tcp only":        {[]string{"tcp"}, nil, false, "tcp"},
		"plaintext":       {[]string{"tcp"}, []string{"tcp"}, true, "tcp"},
		"none in common":  {[]string{"quic"}, []string{"tcp"}, false, ""},
		"left out":        {nil, []string{"^quic"}, false, "tcp"},
		"auto":            {nil, []string{"auto"}, false, "quic"},
		"quic at the end": {[]string{"tcp", "quic"}, []string{"quic"}, false, "quic"},
	} {
		t.Run(name, func(t *testing.T) {
			hostConfig := config(t, "host")
			hostConfig.Host, hostConfig.Providers, hostConfig.TCPPlaintext = true, c.host, c.plaintext
			host, nodeConfig := clusterOf(t, hostConfig)
			nodeConfig.Providers, nodeConfig.TCPPlaintext = c.node, c.plaintext
			nodeConfig.AdminSocket = filepath.Join(filepath.Dir(nodeConfig.StateDir), "admin.sock")
			node := start(t, nodeConfig)
			err := send(t, node, host)
			if c.want == "" {
				if err == nil || !strings.Contains(err.Error(), "no provider in common: tcp here, quic there") {
					t.Errorf("dial: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			all := links(t, nodeConfig.AdminSocket)
			if len(all) != 1 || all[0].Provider != c.want || all[0].Why == "" {
				t.Fatalf("links %+v, want one over %s", all, c.want)
			}
			if !slices.ContainsFunc(all[0].Considered, func(p struct {
				Provider string
				Chosen   bool
				Reason   string
			}) bool {
				return p.Chosen && p.Provider == c.want && p.Reason != ""
			}) {
				t.Errorf("considered %+v", all[0].Considered)
			}
		})
	}
}

func TestUnknownProvider(t *testing.T) {
	c := config(t, "host")
	c.Providers = []string{"pigeon"}
	if _, err := embed.Init(c); err == nil || !strings.Contains(err.Error(), `providers: "pigeon"`) {
		t.Errorf("init: %v", err)
	}
}
