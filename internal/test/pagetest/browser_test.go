package pagetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A browser is a headless Chromium, by way of its driver (W3C WebDriver).
type browser struct {
	t       *testing.T
	at      string // of the driver
	session string
}

// newBrowser starts a browser with a window of that size, which ends with t.
func newBrowser(t *testing.T, width, height int, dark bool) *browser {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "chromedriver", "--port=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with its browser
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	b := &browser{t: t, at: "http://127.0.0.1:" + driverPort(t, out)}
	args := []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", fmt.Sprintf("--window-size=%d,%d", width, height)}
	if dark {
		args = append(args, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
	}
	options := map[string]any{"args": args}
	if width < 500 { // no window of a screen is narrower
		options["mobileEmulation"] = map[string]any{"deviceMetrics": map[string]any{"width": width, "height": height, "pixelRatio": 1}}
	}
	var made struct{ SessionID string }
	b.call(http.MethodPost, "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"browserName": "chrome", "goog:chromeOptions": options}}}, &made)
	b.session = "/session/" + made.SessionID
	t.Cleanup(func() {
		if !t.Failed() {
			b.call(http.MethodDelete, b.session, nil, nil)
		}
	})
	return b
}

// driverPort returns the port that the driver says it has, and reads on behind that.
func driverPort(t *testing.T, out io.Reader) string {
	t.Helper()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, port, ok := strings.Cut(lines.Text(), "started successfully on port "); ok {
			go io.Copy(io.Discard, out) // ends with the driver
			return strings.TrimSuffix(port, ".")
		}
	}
	t.Fatal("chromedriver did not start")
	return ""
}

// call asks the driver, and puts its value into into, unless that is nil.
func (b *browser) call(method, path string, body, into any) {
	b.t.Helper()
	text := []byte("{}")
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			b.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, b.at+path, bytes.NewReader(text))
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer got.Body.Close()
	var answer struct{ Value json.RawMessage }
	if err := json.NewDecoder(got.Body).Decode(&answer); err != nil || got.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s: %s: %.500s", method, path, got.Status, answer.Value)
	}
	if into != nil {
		if err := json.Unmarshal(answer.Value, into); err != nil {
			b.t.Fatal(err)
		}
	}
}

// open shows a page.
func (b *browser) open(url string) {
	b.t.Helper()
	b.call(http.MethodPost, b.session+"/url", map[string]string{"url": url}, nil)
}

// text returns what a reader sees of the element with that ID.
func (b *browser) text(id string) (text string) {
	b.t.Helper()
	b.call(http.MethodPost, b.session+"/execute/sync", map[string]any{
		"script": "return document.getElementById(arguments[0]).innerText", "args": []string{id}}, &text)
	return text
}

// run returns the value of a script.
func (b *browser) run(script string, into any) {
	b.t.Helper()
	b.call(http.MethodPost, b.session+"/execute/sync", map[string]any{"script": script, "args": []string{}}, into)
}

// await waits until the element with that ID has text that ok accepts.
func (b *browser) await(id string, ok func(text string) bool) string {
	b.t.Helper()
	began := time.Now()
	for {
		text := b.text(id)
		if ok(text) {
			return text
		}
		if time.Since(began) > waitLimit {
			b.t.Fatalf("after %v %s says:\n%s", waitLimit, id, text)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// picture writes what the window shows to a file, where the environment says so.
func (b *browser) picture(name string) {
	dir := os.Getenv("FABRICD_PAGE_PICTURES")
	if dir == "" {
		return
	}
	b.t.Helper()
	var text string
	b.call(http.MethodGet, b.session+"/screenshot", nil, &text)
	png, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/"+name+".png", png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
