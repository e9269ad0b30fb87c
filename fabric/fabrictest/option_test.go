package fabrictest_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// flights returns how long each of some messages takes over a link whose delay varies.
func flights(t *testing.T, seed uint64) (all []time.Duration) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2, fabrictest.Seed(seed))
		near, far := connect(t, c.Node(0), c.Node(1))
		c.Link(0, 1).Messages().Delay(time.Millisecond, time.Second)
		for range 8 {
			start := time.Now()
			if _, err := near.Send(t.Context(), []byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := far.Recv(t.Context(), make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Since(start))
		}
	})
	return all
}

func TestSeedDecidesTheFaultsOfLinks(t *testing.T) {
	first, same, other := flights(t, 7), flights(t, 7), flights(t, 8)
	near := func(a, b time.Duration) bool { return (a - b).Abs() < time.Microsecond }
	if !slices.EqualFunc(first, same, near) {
		t.Errorf("the same seed gives %v and then %v", first, same)
	}
	if slices.EqualFunc(first, other, near) {
		t.Errorf("another seed gives %v too", other)
	}
}

func TestLogNamesTheNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := fabrictest.Start(2, fabrictest.Log(zerolog.New(zerolog.SyncWriter(&log))))
		connect(t, c.Node(0), c.Node(1))
		c.Kill(1)
		c.Close()
		for _, node := range []string{`"node":"node-00000000"`, `"node":"node-00000001"`} {
			if !strings.Contains(log.String(), node) {
				t.Errorf("no line has %s:\n%s", node, log.String())
			}
		}
	})
}
