package gossip

import (
	"bytes"
	"testing"

	"github.com/fabricd/fabricd/internal/bubble"
)

// TestWordsOfStrangersAreDropped gives a member words that it must not believe, and
// those that no version of it has a meaning for.
func TestWordsOfStrangersAreDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		g, other := b.start(1, 1), b.start(2, 1)
		b.within(5e9, "both meet", func() bool { return complete([]*Gossip{g, other}) })
		good := word{from: key(2, 1), deaf: key(1, 1)}.append(nil)
		newer, more := bytes.Clone(good), append(bytes.Clone(good), 0)
		newer[0]++
		what := bytes.Clone(good)
		what[1]++
		for name, p := range map[string][]byte{
			"of nobody":        nil,
			"of another one":   word{from: key(3, 1), deaf: key(1, 1)}.append(nil),
			"of another life":  word{from: key(2, 2), deaf: key(1, 1)}.append(nil),
			"about another":    word{from: key(2, 1), deaf: key(3, 1)}.append(nil),
			"about a life ago": word{from: key(2, 1), deaf: key(1, 0)}.append(nil),
			"newer":            newer,
			"of another kind":  what,
			"cut off":          good[:len(good)-1],
			"too long":         more,
		} {
			delegate{g}.NotifyMsg(p)
			if got := g.TakeDeaf(); len(got) > 0 {
				t.Errorf("%s: believed, of %v", name, got)
			}
		}
		for range 3 {
			delegate{g}.NotifyMsg(good)
		}
		if got := g.TakeDeaf(); len(got) != 1 || got[0] != key(2, 1) {
			t.Errorf("taken %v, want %v once", got, key(2, 1))
		}
		if err := g.TellDeaf(key(7, 1)); err == nil {
			t.Error("a member that nobody knows is told")
		}
	})
}

func FuzzParseWord(f *testing.F) {
	f.Add(word{from: key(1, 1), deaf: key(2, 9)}.append(nil))
	f.Add([]byte{wordVersion, wordDeaf})
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := parseWord(b)
		if err == nil && !bytes.Equal(w.append(nil), b) {
			t.Errorf("%x is parsed as %+v, which is %x", b, w, w.append(nil))
		}
	})
}
