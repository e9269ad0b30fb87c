package wait

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestForWaitsForATimeOrAnEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		done, start := make(chan struct{}), time.Now()
		if !For(done, time.Second) || time.Since(start) != time.Second {
			t.Errorf("after %v, want true after 1 s", time.Since(start))
		}
		time.AfterFunc(time.Second, func() { close(done) })
		if For(done, time.Hour) || time.Since(start) != 2*time.Second {
			t.Errorf("after %v, want false after 2 s", time.Since(start))
		}
	})
}

func TestNotifyDoesNotBlock(t *testing.T) {
	ch := make(chan struct{}, 1)
	Notify(ch)
	Notify(ch)
	if len(ch) != 1 {
		t.Errorf("%d tokens, want 1", len(ch))
	}
}

func TestDeadlines(t *testing.T) {
	now := time.Now()
	later, never := now.Add(time.Second), time.Time{}
	if Earlier(now, later) != now || Earlier(later, now) != now || Earlier(never, now) != now || Earlier(now, never) != now {
		t.Error("the earlier of two times is wrong")
	}
	if At(never) != nil || Passed(never, now) || Passed(later, now) || !Passed(now, now) {
		t.Error("a deadline is kept wrongly")
	}
}

func TestABroadcastWakesAll(t *testing.T) {
	var b Broadcast
	one, other := b.Next(), b.Next()
	b.Fire()
	<-one
	<-other
	select {
	case <-b.Next():
		t.Error("the next Fire has been")
	default:
	}
}

func TestOver(t *testing.T) {
	done := make(chan struct{})
	if Over(done) || Over(nil) {
		t.Error("an open channel is over")
	}
	if close(done); !Over(done) {
		t.Error("a closed channel is not over")
	}
}
