package main

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"time"
)

// How many messages a burst has, unless the run says so: 64, of large ones as
// many as fit into 4 MiB, but at least 4.
const (
	burstLength = 64
	burstBytes  = 4 << 20
	burstFewest = 4
)

// burstOf returns how many messages of this size a burst has.
func burstOf(size int64) int64 {
	return min(max(burstBytes/size, burstFewest), burstLength)
}

// burstPause is the least time between two bursts: long enough for whoever waits
// to fall asleep.
const burstPause = time.Millisecond

// A bursting load sends messages in bursts out of silence. All messages of a
// burst are due when it begins, and each is measured from then until its echo is
// here: what waits behind the others of its burst counts.
type bursting struct {
	messages
	length int64
}

func newBursting(_ context.Context, _ side, ch *channel, j job) (load, error) {
	return &bursting{*newMessages(ch, j, opEcho), cmp.Or(j.window, burstOf(j.size))}, nil
}

// run implements runner. The time is that of the bursts, without the pauses.
func (b *bursting) run(n int64, s *sample) error {
	s.lat = newHistogram()
	for from := int64(0); from < n; from += b.length {
		if from > 0 {
			<-time.After(burstPause)
		}
		if err := b.burst(from, min(b.length, n-from), s); err != nil {
			return err
		}
	}
	return nil
}

// burst sends messages from, from+1, … and receives their echoes.
func (b *bursting) burst(from, count int64, s *sample) error {
	began := time.Now()
	sent := make(chan error, 1)
	go func() { // ends with the last message, or with the connection
		sent <- repeat(count, func(i int64) error {
			_, err := b.ch.Write(b.fill.message(from + i))
			return err
		})
	}()
	err := repeat(count, func(i int64) error {
		if _, err := io.ReadFull(b.ch, b.in); err != nil {
			return err
		}
		record(s.lat, time.Since(began))
		if b.job.check && !bytes.Equal(b.in, b.fill.message(from+i)) {
			s.errors++
		}
		return nil
	})
	s.elapsed += time.Since(began)
	return first(err, <-sent)
}
