package chaos

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// couldNot is the engine's message when the kernel did not freeze in time.
const couldNot = "Cannot pause container 5e3f: OCI runtime pause failed: unable to freeze: unknown"

// TestAPauseIsAskedForAgain counts how often an engine is asked to freeze a
// container.
func TestAPauseIsAskedForAgain(t *testing.T) {
	busy := &dockerError{http.StatusInternalServerError, couldNot}
	gone := &dockerError{http.StatusConflict, "container 5e3f is not running"}
	other := &dockerError{http.StatusInternalServerError, "no space left on device"}
	for _, x := range []struct {
		name    string
		answers []error // of each try, the last for all that follow
		limit   time.Duration
		tries   int
		want    error
	}{
		{"at once", []error{nil}, time.Hour, 1, nil},
		{"the third time", []error{busy, busy, nil}, time.Hour, 3, nil},
		{"never", []error{busy}, time.Hour, freezeTries, busy},
		{"not running", []error{busy, gone}, time.Hour, 2, gone},
		{"for another reason", []error{other}, time.Hour, 1, other},
		{"the run is over", []error{busy}, 2*freezeAgain + freezeAgain/2, 3, busy},
	} {
		t.Run(x.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), x.limit)
				defer cancel()
				tries := 0
				err := insist(ctx, func() error {
					tries++
					return x.answers[min(tries, len(x.answers))-1]
				})
				if tries != x.tries || !errors.Is(err, x.want) {
					t.Errorf("asked %d times, %v, want %d times and %v", tries, err, x.tries, x.want)
				}
			})
		})
	}
}

// engine is a Docker engine that answers as f does.
func engine(t *testing.T, f http.HandlerFunc) *docker {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(f)
	s.Listener.Close()
	s.Listener = ln
	s.Start()
	t.Cleanup(s.Close)
	d := newDocker(path)
	t.Cleanup(d.close)
	return d
}

// TestAContainerIsFrozenInTheEnd pauses a container that the kernel does not
// freeze the first time, and one that has ended.
func TestAContainerIsFrozenInTheEnd(t *testing.T) {
	var asked atomic.Int32
	d := engine(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPost || r.URL.Path != "/containers/5e3f/pause" && r.URL.Path != "/containers/ended/pause":
			t.Errorf("asked %s %s", r.Method, r.URL)
		case r.URL.Path == "/containers/ended/pause":
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"message":"container ended is not running"}`)
		case asked.Add(1) == 1:
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"message":"`+couldNot+`"}`)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	p := &container{docker: d, id: "5e3f"}
	if err := p.stop(t.Context()); err != nil || !p.frozen() || asked.Load() != 2 {
		t.Errorf("stop = %v, frozen %v, asked %d times, want a container that is frozen the second time", err, p.frozen(), asked.Load())
	}
	ended := &container{docker: d, id: "ended"}
	if err := ended.stop(t.Context()); err == nil || ended.frozen() {
		t.Errorf("stop of a container that has ended = %v, frozen %v", err, ended.frozen())
	}
}
