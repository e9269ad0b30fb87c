package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// An actor is an application of the demo, and the lines that it has printed so far.
type actor struct {
	name    string
	proc    *process
	stdin   io.WriteCloser
	lines   chan line // closed at the end of its output
	pending []line    // lines that next has not returned yet; owned by the demo's goroutine
	ended   bool
}

// act starts an application in a role.
func (c *crew) act(role, socket string) (*actor, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	proc, stdin, err := c.start(role, w, "demo-app", role, "--socket", socket)
	w.Close() // the child has its own
	if err != nil {
		r.Close()
		return nil, err
	}
	a := &actor{name: role, proc: proc, stdin: stdin, lines: make(chan line, 64)} // a role prints fewer
	go func() {                                                                   // ends with the child, which has the only other end of the pipe
		defer close(a.lines)
		defer r.Close()
		for in := bufio.NewScanner(r); in.Scan(); {
			var l line
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				l = line{Say: "failed", At: time.Now(), Error: "said " + in.Text()}
			}
			a.lines <- l
		}
	}()
	return a, nil
}

// send sends the application a command.
func (a *actor) send(command string) error {
	_, err := io.WriteString(a.stdin, command+"\n")
	return err
}

// next waits for the named line of the application, and returns it. Other lines
// are kept for later calls. It fails when the application does.
func (a *actor) next(ctx context.Context, what string) (line, error) {
	for i := 0; ; i++ {
		if i == len(a.pending) {
			if err := a.listen(ctx, what); err != nil {
				return line{}, err
			}
		}
		switch l := a.pending[i]; {
		case l.Say == what && l.Error == "":
			a.pending = append(a.pending[:i:i], a.pending[i+1:]...)
			return l, nil
		case l.Error != "":
			return line{}, fmt.Errorf("%s: %s: %s", a.name, l.Say, l.Error)
		}
	}
}

// listen waits for the application's next line.
func (a *actor) listen(ctx context.Context, what string) error {
	if a.ended {
		return fmt.Errorf("%s ended without saying %q", a.name, what)
	}
	select {
	case l, ok := <-a.lines:
		if !ok {
			a.ended = true
			return fmt.Errorf("%s ended without saying %q", a.name, what)
		}
		a.pending = append(a.pending, l)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s has not said %q: %w", a.name, what, context.Cause(ctx))
	}
}

// dismiss ends the application by the end of its standard input.
func (a *actor) dismiss(ctx context.Context) error {
	a.stdin.Close()
	select {
	case <-a.proc.done:
		if exit, ok := errors.AsType[*exec.ExitError](a.proc.err); ok {
			return fmt.Errorf("%s: %w", a.name, exit)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", a.name, context.Cause(ctx))
	}
}

// silent fails if an application that has ended printed unexpected lines.
func (a *actor) silent() error {
	for l := range a.lines {
		a.pending = append(a.pending, l)
	}
	for _, l := range a.pending {
		if l.Say == "node-added" || l.Say == "node-removed" {
			return fmt.Errorf("%s: unexpected event: %s %s", a.name, l.Say, l.Detail)
		}
	}
	return nil
}
