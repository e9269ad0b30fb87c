package appsmoke

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A pool is a program that asks all the time and is never started again: it has to go on
// by itself when its connections are lost.
type pool struct {
	name string
	role []string // of this binary, with its arguments
	proc *process
	read sync.WaitGroup // the goroutine that reads what the process says

	mu     sync.Mutex // guards the fields below
	last   time.Time  // of an answer; the mark, if there is none behind it
	seen   reading    // the longest pause between two answers
	failed []try
}

// startPools starts the pools, and the server that the client of gRPC asks. The function
// that it returns ends all that has been started.
func (r *run) startPools() (end func() error, err error) {
	l := r.lab
	server, err := start(l.role(l.servers, "serve-grpc", l.servers.socket()), filepath.Join(l.servers.dir, "serve-grpc.log"))
	if err != nil {
		return func() error { return nil }, err
	}
	r.pools = []*pool{
		{name: "pool of database/sql", role: []string{"ask-sql", poolAt}},
		{name: "client of gRPC", role: []string{"ask-grpc", l.clients.socket()}},
	}
	for _, p := range r.pools {
		err = errors.Join(err, p.start(l.role(l.clients, p.role[0], p.role[1:]...), filepath.Join(l.clients.dir, p.role[0]+".log")))
	}
	return func() (err error) {
		for _, p := range r.pools {
			err = errors.Join(err, p.end())
		}
		return errors.Join(err, server.end(syscall.SIGKILL))
	}, err
}

func (p *pool) start(cmd *exec.Cmd, log string) error {
	from, to, err := os.Pipe() // that of exec is closed by Wait before all was read
	if err != nil {
		return err
	}
	cmd.Stdout = to
	p.proc, err = start(cmd, log)
	to.Close()
	if err != nil {
		from.Close()
		return err
	}
	p.read.Go(func() { // ends with the process
		defer from.Close()
		for in := bufio.NewScanner(from); in.Scan(); {
			p.take(in.Text())
		}
	})
	return nil
}

// end ends the process; what is not started yet has none.
func (p *pool) end() error {
	if p.proc == nil {
		return nil
	}
	err := p.proc.end(syscall.SIGKILL)
	p.read.Wait()
	return err
}

// take takes a line of the process: when an answer came, in nanoseconds, and what was
// wrong with it.
func (p *pool) take(line string) {
	stamp, failure, failed := strings.Cut(line, " ")
	ns, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("BUG: appsmoke: %s says %q", p.name, line))
	}
	at := time.Unix(0, ns)
	p.mu.Lock()
	defer p.mu.Unlock()
	if failed {
		p.failed = append(p.failed, try{at, errors.New(failure)})
		return
	}
	p.seen.pause(p.last, at)
	p.last = at
}

// answers waits for an answer behind a time.
func (p *pool) answers(after time.Time) error {
	return await(backWithin, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case !p.proc.running():
			return fmt.Errorf("the %s has ended: %w", p.name, p.proc.err)
		case !p.last.After(after):
			return fmt.Errorf("the %s has had no answer for %v", p.name, time.Since(p.last).Round(time.Millisecond))
		}
		return nil
	})
}

func (p *pool) mark() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.seen, p.failed = now, reading{PauseFrom: now, PauseTo: now}, nil
}

// suffered returns what the pool saw of a fault. It may hide a loss, and need not.
func (p *pool) suffered(f fault, c cell, began, over time.Time) cell {
	c.App = p.name
	if err := p.answers(over); err != nil {
		c.breaks("%v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f.lethal = false
	c.fill(f, p.failed, p.seen, began, over)
	return c
}

const (
	poolWorkers = 4                     // ask at a time
	poolEvery   = 20 * time.Millisecond // between an answer and the worker's next question
	poolLimit   = 10 * time.Second      // bounds an answer
)

// askOn has workers ask for ever, and says when each answer came, or what came instead.
func askOn(ask func(context.Context) error) error {
	var workers sync.WaitGroup
	for range poolWorkers {
		workers.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(context.Background(), poolLimit)
				err := ask(ctx)
				cancel()
				line := strconv.FormatInt(time.Now().UnixNano(), 10)
				if err != nil {
					line += " " + strings.ReplaceAll(err.Error(), "\n", " ")
				}
				fmt.Println(line)
				time.Sleep(poolEvery)
			}
		})
	}
	workers.Wait()
	return nil
}
