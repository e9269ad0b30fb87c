package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// A container is a child that is a container.
type container struct {
	begun
	docker *docker
	id     string
	status int // read after over
	paused atomic.Bool
}

func (p *container) code() int    { return p.status }
func (p *container) frozen() bool { return p.paused.Load() }

// waitAgain is how long wait waits after a question that failed.
const waitAgain = 100 * time.Millisecond

// wait waits for the container's end and keeps its output. It ends when the container
// is removed, at the latest.
func (p *container) wait() {
	defer close(p.over)
	var ended struct{ StatusCode int }
	for {
		// The engine answers when the container has ended; a question that took
		// too long is asked again.
		err := p.docker.ask(context.Background(), http.MethodPost, "/containers/"+p.id+"/wait?condition=not-running", nil, &ended)
		if err == nil || gone(err) {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) && !pause(context.Background(), waitAgain) {
			break
		}
	}
	if p.status = ended.StatusCode; p.status > 128 {
		p.status = 128 - p.status // minus the signal, as in child.code
	}
	p.saveLog()
}

// saveLog writes the container's output to its file.
func (p *container) saveLog() {
	f, err := os.OpenFile(p.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return // the run is over and its directory gone
	}
	defer f.Close()
	body, err := p.docker.stream(context.Background(), "/containers/"+p.id+"/logs?stdout=1&stderr=1")
	if err != nil {
		fmt.Fprintln(f, "its log cannot be read:", err)
		return
	}
	defer body.Close()
	if err := demultiplex(f, body); err != nil {
		fmt.Fprintln(f, "its log cannot be read on:", err)
	}
}

// demultiplex copies the frames of a container's two streams: eight bytes, of
// which the last four are the length, before each piece.
func demultiplex(w io.Writer, r io.Reader) error {
	for {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := io.CopyN(w, r, int64(binary.BigEndian.Uint32(head[4:]))); err != nil {
			return err
		}
	}
}

// signal sends a signal. A container that has ended gets none, which is no error.
func (p *container) signal(ctx context.Context, name string) error {
	err := p.docker.ask(ctx, http.MethodPost, "/containers/"+p.id+"/kill?signal="+name, nil, nil)
	if e, ok := errors.AsType[*dockerError](err); ok && (e.code == http.StatusConflict || e.code == http.StatusNotFound) {
		return nil
	}
	return err
}

func (p *container) kill(ctx context.Context) error { return p.signal(ctx, "KILL") }

// The kernel freezes a control group only as a whole: it waits for a task that cannot
// be frozen yet, and the engine gives up after a moment ("unable to freeze"), having
// thawed the frozen tasks.
const (
	freezeTries = 20
	freezeAgain = 50 * time.Millisecond
)

// stop freezes the container. An engine that could not is asked again.
func (p *container) stop(ctx context.Context) error {
	p.paused.Store(true)
	err := insist(ctx, func() error {
		return p.docker.ask(ctx, http.MethodPost, "/containers/"+p.id+"/pause", nil, nil)
	})
	if err != nil {
		p.paused.Store(false)
	}
	return err
}

// insist calls freeze until it succeeds, fails for another reason than that the
// kernel did not freeze in time, has been called freezeTries times, or ctx is
// done.
func insist(ctx context.Context, freeze func() error) error {
	err := freeze()
	for try := 1; try < freezeTries && unfrozen(err) && pause(ctx, freezeAgain); try++ {
		err = freeze()
	}
	return err
}

// unfrozen reports whether err means that the kernel did not freeze a container in
// time, which it may do the next time.
func unfrozen(err error) bool {
	e, ok := errors.AsType[*dockerError](err)
	return ok && e.code == http.StatusInternalServerError && strings.Contains(e.message, "unable to freeze")
}

func (p *container) cont(ctx context.Context) error {
	p.paused.Store(false)
	err := p.docker.ask(ctx, http.MethodPost, "/containers/"+p.id+"/unpause", nil, nil)
	if e, ok := errors.AsType[*dockerError](err); ok && e.code >= http.StatusConflict {
		return nil // it is not paused, or has ended
	}
	return err
}

func (p *container) terminate(ctx context.Context, limit time.Duration) error {
	return endWithin(ctx, p, limit, func() error { return p.signal(ctx, "TERM") })
}
