package daemon

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// fetch returns the body of a page's path.
func fetch(t *testing.T, d *Daemon, path string) string {
	t.Helper()
	got, err := http.Get("http://" + d.Status().HTTP + path)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", path, got.Status, err, text)
	}
	return string(text)
}

// scraped waits until cond, for what goes on between processes.
func scraped(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testLimit); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestMetricsFollowWhatHappens has a node join, connect, be refused and be lost.
func TestMetricsFollowWhatHappens(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.Local.HTTP = "127.0.0.1:0"
	host, node := testHostWith(t, c)
	has := func(line string) func() bool {
		return func() bool { return strings.Contains(fetch(t, host, "/metrics"), "\n"+line+"\n") }
	}
	scraped(t, "one node", has(`fabricd_nodes{state="alive"} 1`))
	scraped(t, "the inbox of membership", has(`fabricd_membership_queue_limit{queue="inbox"} 1024`))
	scraped(t, "its events", has(`fabricd_queue_fill_ratio{queue="membership_events"} 0`))
	other := startTest(t, node("two"))
	id := other.Status().ID
	scraped(t, "two nodes", has(`fabricd_nodes{state="alive"} 2`))
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if _, err := host.Ping(ctx, id); err != nil {
		t.Fatal(err)
	}
	scraped(t, "a link", has(`fabricd_links_begun_total 1`))
	s, err := client.AttachTo(ctx, other)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ep, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Connect(ctx, addr.Addr{Node: host.Status().ID, Port: 2050}); err == nil {
		t.Fatal("connected to a port without a listener")
	}
	scraped(t, "a refused connect", has(`fabricd_connects_incoming_total{result="no_listener"} 1`))
	other.Close()
	scraped(t, "a lost node", has(`fabricd_removals_total{reason="crashed"} 1`))
	scraped(t, "its link's end", has(`fabricd_links_ended_total 1`))
}

func TestThePageHasWhatOperatorsRead(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.Local.HTTP = "127.0.0.1:0"
	host, _ := testHostWith(t, c)
	for path, want := range map[string]string{
		"/": "<title>fabricd</title>", "/page.js": "EventSource", "/v1/status": `"name":"host"`, "/v1/nodes": `"state":"alive"`,
		"/v1/links": `{"links":[]}`, "/healthz": `"healthy":true`,
	} {
		if text := fetch(t, host, path); !strings.Contains(text, want) {
			t.Errorf("%s has no %q", path, want)
		}
	}
	for _, path := range []string{"/v1/ping?node=0", "/v1/tokens", "/v1/keys", "/v1/nodes/enrolled"} {
		got, err := http.Get("http://" + host.Status().HTTP + path)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if got.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s, want 404: it is the administrator's", path, got.Status)
		}
	}
}

// A countedSubject counts how often it is asked for a table.
type countedSubject struct {
	*fakeSubject
	tables atomic.Int64
}

func (c *countedSubject) Table(string) any { return []int64{c.tables.Add(1)} }

// TestReadersOfThePageShareAnAnswer, however many there are and however fast they ask; an
// operator at the admin socket gets one of the moment.
func TestReadersOfThePageShareAnAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := &countedSubject{fakeSubject: newFakeSubject()}
		a := &admin{subject: c, log: zerolog.Nop()}
		page, socket := http.NewServeMux(), http.NewServeMux()
		a.readRoutes(page, snapshotAge)
		a.readRoutes(socket, 0)
		ask := func(mux *http.ServeMux) string {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/conns", nil))
			return w.Body.String()
		}
		var readers sync.WaitGroup
		for range 50 {
			readers.Go(func() {
				for range 20 {
					if got := ask(page); got != `{"conns":[1]}`+"\n" {
						t.Errorf("got %q", got)
					}
				}
			})
		}
		readers.Wait()
		time.Sleep(snapshotAge)
		if got := ask(page) + ask(socket) + ask(socket); got != "{\"conns\":[2]}\n{\"conns\":[3]}\n{\"conns\":[4]}\n" {
			t.Errorf("later: %q", got)
		}
	})
}

// Scrapes and streams in the middle of a node's end come to an end, whole or refused.
func TestScrapesEndWithTheNode(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	c.Local.HTTP = "127.0.0.1:0"
	host, _ := testHostWith(t, c)
	address := "http://" + host.Status().HTTP
	var readers sync.WaitGroup
	begun := make(chan struct{}, 8)
	for range 4 {
		readers.Go(func() {
			for {
				got, err := http.Get(address + "/metrics")
				if err != nil {
					return // it is gone
				}
				text, err := io.ReadAll(got.Body)
				got.Body.Close()
				if err != nil || got.StatusCode == http.StatusOK && !strings.Contains(string(text), "process_start_time_seconds") {
					t.Errorf("a scrape was cut off: %v after %d bytes", err, len(text))
					return
				}
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
		readers.Go(func() {
			got, err := http.Get(address + "/v1/stream")
			if err != nil {
				t.Error(err)
				return
			}
			defer got.Body.Close()
			begun <- struct{}{}
			_, _ = io.Copy(io.Discard, got.Body) // ends with the node, in whatever way
		})
	}
	for range cap(begun) {
		<-begun
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	readers.Wait()
	http.DefaultClient.CloseIdleConnections()
}

func TestThePageNeedsATokenWhereOthersReachIt(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good", "a-token-of-a-test-4711\n", 0o600)
	for name, x := range map[string]struct{ at, token, want string }{
		"readable":       {"127.0.0.1:0", file("open", "a-token-of-a-test-4711", 0o644), "other users may read it"},
		"short":          {"127.0.0.1:0", file("short", "x", 0o600), "want a token of 16"},
		"not there":      {"0.0.0.0:0", filepath.Join(dir, "none"), "cannot be read"},
		"not an address": {"203.0.113.7:0", good, "is no address of this machine"},
	} {
		c := testConfig(t, RoleHost, "host")
		c.Local.HTTP, c.Local.HTTPToken = x.at, x.token
		if _, err := Init(c, filepath.Join(filepath.Dir(c.StateDir), "token")); err != nil {
			t.Fatal(err)
		}
		d, err := Start(t.Context(), c, Options{})
		if err == nil {
			d.Close()
		}
		if lines := configError(t, err); len(lines) != 1 || !strings.Contains(lines[0], x.want) {
			t.Errorf("%s: got %q, want one line with %q", name, lines, x.want)
		}
	}
	c := testConfig(t, RoleHost, "host")
	c.Local.HTTP, c.Local.HTTPToken = "0.0.0.0:0", good
	host, _ := testHostWith(t, c)
	got, err := http.Get("http://" + host.Status().HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	got.Body.Close()
	if got.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: %s, want 401", got.Status)
	}
}
