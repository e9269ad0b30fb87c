package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/gateway/spec"
)

// proxied is a world with a server beyond node 1 and a proxy at node 0.
func proxied(t *testing.T, kind spec.Kind) (w *world, at string, events <-chan spec.Event) {
	w = newWorld(t)
	target := serve(t, "tcp", func(c conn) { io.Copy(c, c); c.CloseWrite() })
	w.run(1, spec.Expose, "2050="+target)
	at, events, _ = w.run(0, kind, "0 wait 100ms")
	return w, at, events
}

// socksBytes is a client's request for host and port, after its greeting.
func socksBytes(host string, port uint16) []byte {
	b := append([]byte{5, 1, 0, 3, byte(len(host))}, host...)
	return append(b, byte(port>>8), byte(port))
}

func TestSOCKS(t *testing.T) {
	_, at, events := proxied(t, spec.SOCKS)
	for _, c := range []struct {
		name   string
		send   []byte
		answer []byte // all of it, unless the connection goes on
		detail string
	}{
		{"a node and a port", socksBytes("1.fabric", 2050), nil, ""},
		{"capitals, and the end of a name", socksBytes("1.FABRIC.", 2050), nil, ""},
		{"nobody listens", socksBytes("1.fabric", 2051), socksAnswer(socksRefused), "connection refused"},
		{"no such node", socksBytes("9.fabric", 2050), socksAnswer(socksUnreachable), "9:2050"},
		{"another name", socksBytes("example.org", 80), socksAnswer(socksNotAllowed), "only names below .fabric are served"},
		{"no name", socksBytes(".fabric", 80), socksAnswer(socksNotAllowed), "neither a service nor a node"},
		{"an address", []byte{5, 1, 0, 1, 127, 0, 0, 1, 0, 22}, socksAnswer(socksNotAllowed), "only names below"},
		{"bind", []byte{5, 2, 0, 1, 127, 0, 0, 1, 0, 22}, socksAnswer(socksNoCommand), "only CONNECT"},
		{"an address of another kind", []byte{5, 1, 0, 9}, socksAnswer(socksNoAddressType), "address type 9"},
	} {
		client := dial(t, at)
		client.Write([]byte{5, 2, 2, 0}) // a user's name, or nothing
		client.Write(c.send)
		var chosen [2]byte
		if _, err := io.ReadFull(client, chosen[:]); err != nil || chosen != [2]byte{5, 0} {
			t.Fatalf("%s: answered %v, %v", c.name, chosen, err)
		}
		if c.answer != nil {
			if got, err := io.ReadAll(client); !bytes.Equal(got, c.answer) || err != nil {
				t.Errorf("%s: answered %v, %v; want %v", c.name, got, err, c.answer)
			}
			if ev := await(t, events, spec.Refused); !strings.Contains(ev.Detail, c.detail) {
				t.Errorf("%s: %s", c.name, ev.Detail)
			}
			continue
		}
		answer := make([]byte, len(socksAnswer(socksOK)))
		if _, err := io.ReadFull(client, answer); err != nil || !bytes.Equal(answer, socksAnswer(socksOK)) {
			t.Fatalf("%s: answered %v, %v", c.name, answer, err)
		}
		io.WriteString(client, "hello")
		client.CloseWrite()
		if got, err := io.ReadAll(client); string(got) != "hello" || err != nil {
			t.Errorf("%s: got %q, %v", c.name, got, err)
		}
	}
	for _, hostile := range []string{"\x04\x01\x00\x50", "GET / HTTP/1.1\r\n\r\n", "\x05\x01\x02", "\x05\x00", strings.Repeat("\xff", 1000)} {
		client := dial(t, at)
		io.WriteString(client, hostile)
		client.CloseWrite()
		got, _ := io.ReadAll(client)
		if len(got) > 2 {
			t.Errorf("%q: answered %q", hostile, got)
		}
		await(t, events, spec.Refused)
	}
}

func TestHTTPConnect(t *testing.T) {
	_, at, events := proxied(t, spec.HTTPProxy)
	for _, c := range []struct{ send, answer, detail string }{
		{"CONNECT 1.fabric:2050 HTTP/1.1\r\nHost: 1.fabric:2050\r\n\r\n", "200 Connection established", ""},
		{"CONNECT 1.fabric:2050 HTTP/1.0\r\n\r\nearly ", "200 Connection established", ""},
		{"CONNECT 1.fabric:2051 HTTP/1.1\r\nHost: x\r\n\r\n", "502 Bad Gateway", "connection refused"},
		{"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", "403 Forbidden", "only names below"},
		{"CONNECT 1.fabric HTTP/1.1\r\nHost: x\r\n\r\n", "403 Forbidden", "want NAME.fabric:PORT"},
		{"GET http://1.fabric:2050/ HTTP/1.1\r\nHost: 1.fabric\r\n\r\n", "405 Method Not Allowed", "CONNECT only"},
		{"\x05\x01\x00\r\n\r\n", "400 Bad Request", "malformed"},
		{"CONNECT 1.fabric:2050 HTTP/1.1\r\nX: " + strings.Repeat("x", proxyHeader) + "\r\n\r\n", "431 Request Header Fields Too Large", "more than 16384 bytes"},
	} {
		client := dial(t, at)
		io.WriteString(client, c.send)
		r := bufio.NewReader(client)
		resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatalf("%q: %v", c.send, err)
		}
		if resp.Status != c.answer {
			t.Errorf("%q: answered %s", c.send, resp.Status)
		}
		if c.detail != "" {
			if ev := await(t, events, spec.Refused); !strings.Contains(ev.Detail, c.detail) {
				t.Errorf("%q: %s", c.send, ev.Detail)
			}
			continue
		}
		io.WriteString(client, "hello")
		client.CloseWrite()
		_, early, _ := strings.Cut(c.send, "\r\n\r\n")
		if got, err := io.ReadAll(r); string(got) != early+"hello" || err != nil {
			t.Errorf("%q: got %q, %v", c.send, got, err)
		}
	}
}

// TestAnAnswerReachesAClientThatSendsMore: unread bytes of the client must not reset the
// connection before the client has the answer, which is one line of bounded length.
func TestAnAnswerReachesAClientThatSendsMore(t *testing.T) {
	w, at, events := proxied(t, spec.HTTPProxy)
	more := strings.Repeat("x", 128<<10)
	for send, want := range map[string]string{
		"CONNECT 1.fabric:2051 HTTP/1.1\r\n\r\n":                        "connection refused",
		"CONNECT " + strings.Repeat("\"", 8000) + ":1 HTTP/1.1\r\n\r\n": "only names below",
		strings.Repeat("\x01", 8000) + " / HTTP/1.1\r\n\r\n":            "",
	} {
		client := dial(t, at)
		io.WriteString(client, send+more)
		got, err := io.ReadAll(client)
		head, body, ok := strings.Cut(string(got), "\r\n\r\n")
		if err != nil || !ok || !strings.HasPrefix(head, "HTTP/1.1 4") && !strings.HasPrefix(head, "HTTP/1.1 502") || !strings.Contains(body, want) || strings.Count(body, "\n") != 1 || len(body) > 600 {
			t.Errorf("%.20q: answered %d bytes, %.300q, %v", send, len(got), got, err)
		}
		client.Close()
		if ev := await(t, events, spec.Refused); len(ev.Detail) > 600 || len(ev.Conn.To) > 600 || strings.Contains(ev.Detail, "\n") {
			t.Errorf("%.20q: %d bytes: %s", send, len(ev.Detail), ev.Detail)
		}
	}
	socks, socksEvents, _ := w.run(0, spec.SOCKS, "0 wait 0s")
	client := dial(t, socks)
	client.Write(append(append([]byte{5, 1, 0}, socksBytes("1.fabric", 2051)...), more...))
	want := append([]byte{5, 0}, socksAnswer(socksRefused)...)
	if got, err := io.ReadAll(client); !bytes.Equal(got, want) || err != nil {
		t.Errorf("SOCKS answered %v, %v", got, err)
	}
	client.Close()
	await(t, socksEvents, spec.Refused)
}

// TestAClientOfHTTPGoesThroughTheProxy: net/http's own.
func TestAClientOfHTTPGoesThroughTheProxy(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "served ", r.Host) })}
	served := make(chan struct{})
	go func() { defer close(served); server.Serve(l) }()
	defer func() { server.Close(); <-served }()
	w.run(1, spec.Expose, "8080="+l.Addr().String())
	at, _, _ := w.run(0, spec.SOCKS, "0")
	client := &http.Client{Timeout: patience, Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "socks5h", Host: at})}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://1.fabric:8080/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); string(text) != "served 1.fabric:8080" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
}

// A script is a connection with scripted reads that records writes.
type script struct {
	conn
	r   io.Reader
	out bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)  { return s.r.Read(p) }
func (s *script) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s *script) SetDeadline(time.Time) error { return nil }

// FuzzAskSOCKS compares the parsed request of a client with its bytes.
func FuzzAskSOCKS(f *testing.F) {
	f.Add(append([]byte{5, 1, 0}, socksBytes("db.fabric", 5432)...))
	f.Add([]byte{5, 1, 0, 5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80})
	f.Add([]byte{5, 2, 1, 2})
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := &script{r: bytes.NewReader(sent)}
		_, hostPort, answer, err := askSOCKS(s)
		if s.out.Len() > 12 {
			t.Errorf("answered %d bytes", s.out.Len())
		}
		if err != nil {
			return
		}
		if answer(nil) != nil || !bytes.HasSuffix(s.out.Bytes(), socksAnswer(socksOK)) {
			t.Errorf("answered %v", s.out.Bytes())
		}
		checkNames(t, hostPort)
	})
}

// FuzzAskHTTP does so for HTTP, and loses no byte behind the request.
func FuzzAskHTTP(f *testing.F) {
	f.Add([]byte("CONNECT db.fabric:5432 HTTP/1.1\r\nHost: db\r\n\r\nearly"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := &script{r: bytes.NewReader(sent)}
		from, hostPort, _, err := askHTTP(s)
		if err != nil {
			return
		}
		rest, rerr := io.ReadAll(from)
		if rerr != nil || !bytes.HasSuffix(sent, rest) {
			t.Errorf("behind the request %q, %v", rest, rerr)
		}
		checkNames(t, hostPort)
	})
}

// checkNames compares the addresses that a proxy dials with the requested one.
func checkNames(t *testing.T, hostPort string) {
	names, err := fabricNames(hostPort)
	for _, n := range names {
		if bare, _, _ := strings.Cut(n, ":"); !strings.HasPrefix(hostPort, bare+".") && !strings.HasPrefix(hostPort, "["+bare) {
			t.Errorf("%q leads to %q", hostPort, n)
		}
	}
	if (err == nil) != (len(names) > 0) {
		t.Errorf("%q: %v, %v", hostPort, names, err)
	}
}

func TestNamesOfProxies(t *testing.T) {
	for in, want := range map[string]string{
		"db.fabric:5432": "db db:5432", "web-1.fabric:2050": "web-1 web-1:2050", "3.fabric:2050": "3:2050", "Db.Fabric.:1": "Db Db:1",
		"db:5432": "", "fabric:1": "", ".fabric:1": "", "db.fabric": "", "a b.fabric:1": "", "db.fabric:99999": "db", "127.0.0.1:1": "", "[::1]:1": "",
		"käthe.fabric:1": "", "x.fabric.example.org:1": "", "a@b.fabric:1": "a@b",
	} {
		names, err := fabricNames(in)
		if got := strings.Join(names, " "); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v; want %q", in, got, err, want)
		}
	}
	if _, err := fabricNames("example.org:443"); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("another name: %v", err)
	}
}

// TestAProxyThatOthersReachIsAWarning: one of loopback is none.
func TestAProxyThatOthersReachIsAWarning(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		kind spec.Kind
		line string
		warn bool
	}{
		{spec.SOCKS, "0.0.0.0:0", true},
		{spec.HTTPProxy, ":0", true},
		{spec.SOCKS, "0", false},
		{spec.HTTPProxy, filepath.Join(t.TempDir(), "p"), false},
		{spec.Forward, "0.0.0.0:0=1:2050", false},
	} {
		var log bytes.Buffer
		w.at[0] = New(w.at[0].attach, zerolog.New(&log))
		_, _, stop := w.run(0, c.kind, c.line)
		stop()
		w.at[0].Close()
		if warned := strings.Contains(log.String(), "may connect into the fabric"); warned != c.warn {
			t.Errorf("%s %s: a warning is %v, want %v:\n%s", c.kind, c.line, warned, c.warn, log.String())
		}
	}
}
