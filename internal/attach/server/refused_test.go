package server

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// TestRefusalsDoNotFloodTheLog: programs that speak no protocol get a bounded number of
// lines, and a summary.
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	const strangers = 50
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := NewServer(ctx, Options{Log: zerolog.New(zerolog.SyncWriter(&log))})
	if err != nil {
		t.Fatal(err)
	}
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "app.sock"), Net: "unixpacket"}
	ln, err := net.ListenUnix("unixpacket", at)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	for range strangers {
		c, err := net.DialUnix("unixpacket", nil, at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(bytes.Repeat([]byte{0xff}, 64)); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Read(make([]byte, 1)) // until the server has closed it
		c.Close()
	}
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	text := log.String()
	if n := strings.Count(text, `"message":"application refused"`); n != 20 {
		t.Errorf("%d lines, want 20:\n%s", n, text)
	}
	if want := "30 more applications were refused in the last minute"; !strings.Contains(text, want) {
		t.Errorf("no line says %q:\n%s", want, text)
	}
}
