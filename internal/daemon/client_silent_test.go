package daemon

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestClientOfASilentDaemon: a fabricd that accepts and does not answer is reported as such.
func TestClientOfASilentDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewClient(path)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.Get(ctx, "status")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "fabricd at "+path+" did not answer within 0.") || strings.Contains(err.Error(), "context") {
		t.Errorf("got %v", err)
	}
}
