package web

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/internal/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = "a-token-of-a-test-4711"

// serve serves a page that has nothing behind it.
func serve(t *testing.T, token string) *httptest.Server {
	t.Helper()
	says := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
	}
	o := Options{Snapshot: func() observe.Snapshot { return observe.Snapshot{Time: time.Unix(1, 0)} },
		Watched: func(ctx context.Context) { <-ctx.Done() },
		Read:    says("read"), Health: says("health"), Metrics: says("metrics")}
	if token != "" {
		o.Token = []byte(token)
	}
	s := httptest.NewServer(Handler(o))
	t.Cleanup(s.Close)
	return s
}

// ask returns the response to a request that change has modified.
func ask(t *testing.T, s *httptest.Server, path string, change func(*http.Request)) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	client := *s.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	got, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { got.Body.Close() })
	return got
}

func header(key, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(key, value) }
}

func TestWithoutATokenOnlyLoopbackIsAnswered(t *testing.T) {
	s := serve(t, "")
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:7780": 200, "127.0.0.1": 200, "127.0.0.1:1": 200, "[::1]:7780": 200, "[::1]": 200, "::1": 200, "127.9.9.9": 200,
		"evil.example": 421, "evil.example:7780": 421, "localhost.evil.example": 421, "10.0.0.1": 421, "0.0.0.0": 421, "[::ffff:127.0.0.1]": 200,
	} {
		if got := ask(t, s, "/metrics", func(r *http.Request) { r.Host = host }).StatusCode; got != want {
			t.Errorf("Host %q: %d, want %d", host, got, want)
		}
	}
}

func TestATokenIsAskedFor(t *testing.T) {
	s := serve(t, testToken)
	for _, path := range []string{"/", "/page.js", "/metrics", "/healthz", "/v1/status", "/v1/stream"} {
		for name, change := range map[string]func(*http.Request){
			"nothing": nil, "another": header("Authorization", "Bearer a-token-of-a-test-4712"), "a part": header("Authorization", "Bearer a-token"),
			"no scheme": header("Authorization", testToken), "the token as cookie": header("Cookie", cookieName+"1="+testToken),
			"empty": header("Authorization", "Bearer "),
		} {
			if got := ask(t, s, path, change); got.StatusCode != 401 || got.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %s: %d, want 401", path, name, got.StatusCode)
			}
		}
	}
	elsewhere := func(r *http.Request) {
		r.Host = "prometheus.example"
		r.Header.Set("Authorization", "Bearer "+testToken)
	}
	if got := ask(t, s, "/metrics", elsewhere).StatusCode; got != 200 {
		t.Errorf("with the token: %d, want 200", got)
	}
}

func TestABrowserGetsACookieOnce(t *testing.T) {
	s := serve(t, testToken)
	first := ask(t, s, "//evil.example/x?token="+testToken, nil)
	if to := first.Header.Get("Location"); first.StatusCode != 303 || to != "/evil.example/x" {
		t.Errorf("got %d to %q, want to a path of this address", first.StatusCode, to)
	}
	c := first.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || strings.Contains(c.Value, testToken) {
		t.Errorf("cookie %+v: want one for this site only, without the token", c)
	}
	if plus := ask(t, serve(t, "a/token+of/base64=="), "/?token=a/token+of/base64==", nil); plus.StatusCode != 303 {
		t.Errorf("a token with a plus sign got %d, want 303", plus.StatusCode)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	jar.SetCookies(at, first.Cookies())
	client := http.Client{Jar: jar, Transport: s.Client().Transport}
	got, err := client.Get(s.URL + "/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	got.Body.Close()
	if got.StatusCode != 200 {
		t.Errorf("with the cookie: %d, want 200", got.StatusCode)
	}
}

func TestThePageOnlyShows(t *testing.T) {
	s := serve(t, "")
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		got := ask(t, s, "/v1/status", func(r *http.Request) { r.Method = method })
		if got.StatusCode != 405 {
			t.Errorf("%s: %d, want 405", method, got.StatusCode)
		}
	}
	other := ask(t, s, "/v1/status", func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "no-cors")
	})
	if other.StatusCode != 403 {
		t.Errorf("for another site: %d, want 403", other.StatusCode)
	}
	page := ask(t, s, "/", nil)
	if page.Header.Get("Access-Control-Allow-Origin") != "" || !strings.Contains(page.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("headers %v: want none for other sites, and a policy", page.Header)
	}
}

func TestStreamsAreBoundedAndEndWithTheirReader(t *testing.T) {
	s := serve(t, "")
	ctx, leave := context.WithCancel(t.Context())
	for range streamsMost {
		got := ask(t, s, "/v1/stream", func(r *http.Request) { *r = *r.WithContext(ctx) })
		lines := bufio.NewScanner(got.Body)
		if !lines.Scan() || lines.Text() != "event: state" || !lines.Scan() || !strings.HasPrefix(lines.Text(), `data: {"time":"1970`) {
			t.Fatalf("a stream began with %q", lines.Text())
		}
	}
	if got := ask(t, s, "/v1/stream", nil); got.StatusCode != 503 {
		t.Errorf("one more: %d, want 503", got.StatusCode)
	}
	leave()
	for i := 0; ; i++ { // the server notices by and by
		if got := ask(t, s, "/v1/stream", func(r *http.Request) { r.Method = http.MethodHead }); got.StatusCode == 200 {
			break
		} else if i > 500 {
			t.Fatalf("after all readers have left: %d, want 200", got.StatusCode)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestTokensAreChecked(t *testing.T) {
	for _, bad := range []string{"", "short", strings.Repeat("x", maxToken+1), "sixteen letters and spaces", "sixteen-letters-\x00"} {
		if CheckToken([]byte(bad)) == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
	if err := CheckToken([]byte(testToken)); err != nil {
		t.Error(err)
	}
}

// TestARequestWithABodyIsRefusedAtOnce: its rest is not waited for, and the connection ends.
func TestARequestWithABodyIsRefusedAtOnce(t *testing.T) {
	s := serve(t, "")
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(3 * answerTime)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || answer.StatusCode != http.StatusBadRequest || !answer.Close {
		t.Errorf("answer %+v, %v; want 400 and the end of the connection", answer, err)
	}
}
