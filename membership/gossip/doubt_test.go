package gossip

import (
	"bytes"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestDoubts sends a doubt, and gives a member those that it must drop.
func TestDoubts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		g, other, third := b.start(1, 1), b.start(2, 1), b.start(3, 1)
		b.within(5*time.Second, "all meet", func() bool { return complete([]*Gossip{g, other, third}) })
		to := []Key{key(1, 1), key(3, 1), key(9, 1)}
		if err := other.SendDoubt(key(3, 1), to); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if got := g.TakeDoubts(); len(got) != 1 || got[0] != (Doubt{From: key(2, 1), About: key(3, 1)}) {
			t.Errorf("received %+v", got)
		}
		if got := third.TakeDoubts(); len(got) != 0 {
			t.Errorf("the member it is about receives %+v", got)
		}
		good := Doubt{From: key(2, 1), About: key(3, 1)}.append(nil)
		newer := bytes.Clone(good)
		newer[0]++
		for name, p := range map[string][]byte{
			"of a stranger":    Doubt{From: key(9, 1), About: key(3, 1)}.append(nil),
			"about a stranger": Doubt{From: key(2, 1), About: key(9, 1)}.append(nil),
			"about itself":     Doubt{From: key(2, 1), About: key(1, 1)}.append(nil),
			"newer":            newer,
			"cut off":          good[:len(good)-1],
			"too long":         append(bytes.Clone(good), 0),
		} {
			delegate{g}.NotifyMsg(p)
			if got := g.TakeDoubts(); len(got) > 0 {
				t.Errorf("%s: taken for %+v", name, got)
			}
		}
		for range 3 {
			delegate{g}.NotifyMsg(good)
		}
		if got := g.TakeDoubts(); len(got) != 1 {
			t.Errorf("one doubt is kept %d times", len(got))
		}
	})
}

func FuzzParseDoubt(f *testing.F) {
	f.Add(Doubt{From: key(1, 1), About: key(2, 9)}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDoubt(b)
		if err == nil && !bytes.Equal(d.append(nil), b) {
			t.Errorf("%x is parsed as %+v, which is %x", b, d, d.append(nil))
		}
	})
}
