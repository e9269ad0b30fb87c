package main

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"time"
)

// A crossing sends and receives messages at the same time, for msg_bibw.
type crossing struct {
	passive
	job
	ch   *channel
	fill *pattern
}

func newCrossing(_ context.Context, _ side, ch *channel, j job) (load, error) {
	seed := j.seed
	if !j.check {
		seed = 1 // what the responder takes then
	}
	return &crossing{job: j, ch: ch, fill: newPattern(seed, int(j.size))}, nil
}

func (c *crossing) begin(n int64) error {
	_, err := c.ch.Write(command{Op: opBoth, Size: c.size, Count: n, Seed: c.wireSeed()}.bytes())
	return err
}

func (c *crossing) op(int64) error             { return nil }
func (c *crossing) check(int64) (int64, error) { return 0, nil }

// run implements runner. Its bytes are those of both directions.
func (c *crossing) run(n int64, s *sample) error {
	began := time.Now()
	if _, err := c.ch.Write(make([]byte, tokenSize)); err != nil { // the responder waits for it
		return err
	}
	wrong, err := exchangeBoth(c.ch, c.fill, n, c.job.check)
	if err != nil {
		return err
	}
	there, err := readWord(c.ch)
	s.elapsed = time.Since(began)
	s.errors += wrong + int64(there)
	s.bytes = 2 * n * c.size
	return err
}

// defaultRate is how many messages a second msg_fixed_rate sends without --rate.
const defaultRate = 2000

// A paced load sends messages at a fixed rate, whatever becomes of them, and
// measures each from the time at which it was due until its echo is here. So a
// stall counts for all messages that it delays, and not for one: there is no
// coordinated omission.
type paced struct {
	messages
	every time.Duration // between two messages
}

func newPaced(_ context.Context, _ side, ch *channel, j job) (load, error) {
	rate := j.rate
	if rate == 0 {
		rate = defaultRate
	}
	return &paced{*newMessages(ch, j, opEcho), max(time.Duration(float64(time.Second)/rate), 1)}, nil
}

// run implements runner.
func (p *paced) run(n int64, s *sample) error {
	s.lat = newHistogram()
	began := time.Now()
	sent := make(chan error, 1)
	go func() { sent <- p.send(began, n) }() // ends with the last message, or with the connection
	err := repeat(n, func(i int64) error {
		if _, err := io.ReadFull(p.ch, p.in); err != nil {
			return err
		}
		record(s.lat, time.Since(p.due(began, i)))
		if p.job.check && !bytes.Equal(p.in, p.fill.message(i)) {
			s.errors++
		}
		return nil
	})
	s.elapsed = time.Since(began)
	return first(err, <-sent)
}

// due returns when message i is to be sent.
func (p *paced) due(began time.Time, i int64) time.Time {
	return began.Add(time.Duration(i) * p.every)
}

func (p *paced) send(began time.Time, n int64) error {
	for i := range n {
		sleepUntil(p.due(began, i))
		if _, err := p.ch.Write(p.fill.message(i)); err != nil {
			return err
		}
	}
	return nil
}

// timerSlack is how late a timer may be: what is nearer is waited for by
// yielding.
const timerSlack = 200 * time.Microsecond

// sleepUntil returns at t, or at once if that has passed.
func sleepUntil(t time.Time) {
	if d := time.Until(t) - timerSlack; d > 0 {
		<-time.After(d)
	}
	for time.Until(t) > 0 {
		runtime.Gosched()
	}
}
