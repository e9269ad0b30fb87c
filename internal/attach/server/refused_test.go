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
	for i := range strangers + 1 {
		c, err := net.DialUnix("unixpacket", nil, at)
		if err != nil {
			t.Fatal(err)
		}
		if i == strangers { // which only looks whether it could attach
			err = c.CloseWrite()
		} else {
			_, err = c.Write(bytes.Repeat([]byte{0xff}, 64))
		}
		if err != nil {
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
	all, quiet := strings.Count(text, `"message":"application refused"`), strings.Count(text, `"level":"debug"`)
	if all != 21 || quiet != 1 {
		t.Errorf("%d lines, %d of them for debugging; want 21, 1:\n%s", all, quiet, text)
	}
	if want := "30 more applications were refused in the last minute"; !strings.Contains(text, want) {
		t.Errorf("no line says %q:\n%s", want, text)
	}
}
