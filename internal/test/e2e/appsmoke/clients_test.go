package appsmoke

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A client is a program that talks to a server across the fabric all the time: when
// it ends it is started again, until the checks are over. It is started when the server answers.
type client struct {
	name, service string
	try           func(ctx context.Context, s *side) error
	serves        func(ctx context.Context, s *side) error // asks the server once
	short         bool                                     // its runs end by themselves

	mu    sync.Mutex // guards the fields below
	tries []try      // not taken yet
	began time.Time  // of the run under way; zero if there is none
}

// A try is one run of a client's program.
type try struct {
	ended time.Time
	err   error
}

// An endError is an end of file where the connection was lost: the worst result, since a
// program may take the bytes before it for the whole.
type endError struct{ text string }

func (e endError) Error() string { return e.text }

func newClients() []*client {
	return []*client{
		{name: "pgbench", service: "postgres", try: tryPgbench, serves: checkPostgres},
		{name: "redis-benchmark", service: "redis", try: tryRedis, serves: checkRedis},
		{name: "download", service: "nginx", try: tryDownload, serves: checkNginx, short: true},
	}
}

// run runs the program again and again until ctx is done.
func (c *client) run(ctx context.Context, s *side) {
	for ctx.Err() == nil {
		if c.serves(ctx, s) != nil {
			continue // it has its own limit
		}
		c.begins()
		err := c.try(ctx, s)
		if ctx.Err() == nil { // not ended by us
			c.ends(err)
		}
	}
}

func (c *client) begins() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = time.Now()
}

func (c *client) ends(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries = append(c.tries, try{time.Now(), err})
	c.began = time.Time{}
}

// running fails unless a run is under way that will be so for a while: one that ends by
// itself must have begun after a time, and not long ago.
func (c *client) running(after time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.began.IsZero():
		return fmt.Errorf("%s does not run", c.name)
	case c.short && (c.began.Before(after) || time.Since(c.began) > fileTime/2):
		return fmt.Errorf("%s is an old one", c.name)
	case c.short && time.Since(c.began) < fileTime/4: // its program may not have connected yet
		return fmt.Errorf("%s is a new one", c.name)
	}
	return nil
}

// take returns the runs that have ended since the last call.
func (c *client) take() []try {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.tries
	c.tries = nil
	return all
}

// complaint runs cmd until it says one of the words on its standard error, ends it then,
// and returns that line; or else how it ended. Not all programs end when they have lost
// their connections.
func complaint(ctx context.Context, cmd func(context.Context) *exec.Cmd, words ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := cmd(ctx)
	errs, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return err
	}
	var watch sync.WaitGroup
	var bare atomic.Bool
	watch.Go(func() {
		if awaitBare(ctx, c.Process.Pid) {
			bare.Store(true)
			cancel()
		}
	})
	defer watch.Wait()
	defer cancel()
	said, last := "", ""
	for in := bufio.NewScanner(errs); in.Scan(); {
		last = in.Text()
		if said == "" && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(last, w) }) {
			said = last
			cancel()
		}
	}
	err = c.Wait()
	switch {
	case said != "":
		return errors.New(said)
	case bare.Load():
		return errors.New("it has lost all connections, says nothing and does not end")
	}
	return fmt.Errorf("it ended by itself: %w, %s", err, last)
}

// awaitBare reports that process pid had connections and has none any more: when
// redis-benchmark has lost its connections, it may close them and run on for ever, or keep
// the sockets and spin.
func awaitBare(ctx context.Context, pid int) bool {
	had := false
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(10 * pollEvery):
		}
		has := connected(pid)
		if had && !has {
			return true
		}
		had = has
	}
}

// connected reports whether a process has a TCP connection that is established.
func connected(pid int) bool {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return false // it has ended
	}
	established := map[string]bool{} // the sockets of the namespace
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "01" {
			established["socket:["+f[9]+"]"] = true
		}
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is a good one
	return slices.ContainsFunc(files, func(f string) bool {
		to, err := os.Readlink(f)
		return err == nil && established[to]
	})
}

func tryPgbench(ctx context.Context, s *side) error {
	return complaint(ctx, func(ctx context.Context) *exec.Cmd {
		return s.inside(ctx, pgBin("pgbench"), "-n", "-c", "4", "-j", "1", "-T", "3600", "-h", "127.0.0.1", "-U", "postgres", "postgres")
	}, "terminated", "closed", "reset", "refused", "aborted")
}

// hiredis says this of an end, and "Connection reset by peer" of a reset.
const redisEnd = "closed the connection"

func tryRedis(ctx context.Context, s *side) error {
	err := complaint(ctx, func(ctx context.Context) *exec.Cmd {
		return s.inside(ctx, "redis-benchmark", "-h", "127.0.0.1", "-c", "10", "-n", "1000000000", "-t", "set", "-q")
	}, redisEnd, "reset", "refused", "disconnected", "Could not", "Error")
	if strings.Contains(err.Error(), redisEnd) {
		return endError{err.Error()}
	}
	return err
}

var fileSum = sync.OnceValue(func() [sha256.Size]byte { return sha256.Sum256(fileContents()) })

// curl's exit codes for a transfer that ended early.
const (
	curlPartial = 18
	curlEmpty   = 52
)

// tryDownload downloads the file in the way of HTTP/1.0, in which only the end of the
// connection says that the file is complete.
func tryDownload(ctx context.Context, s *side) error {
	cmd := s.inside(ctx, "curl", "-sS", "-N", "-0", "--ignore-content-length", "--max-time", "60", "http://"+nginxAt+"/file")
	sum := sha256.New()
	got := &counter{}
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(sum, got), &errs
	err := cmd.Run()
	exit, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil && [sha256.Size]byte(sum.Sum(nil)) != fileSum():
		return endError{fmt.Sprintf("TRUNCATED: %d of %d bytes and no error", got.bytes, fileBytes)}
	case failed && (exit.ExitCode() == curlPartial || exit.ExitCode() == curlEmpty):
		return endError{strings.TrimSpace(errs.String())}
	case err != nil:
		return fmt.Errorf("after %d bytes: %s", got.bytes, strings.TrimSpace(errs.String()))
	}
	return nil
}

// A counter is a writer that counts.
type counter struct{ bytes int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}
