package fabric_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestPollOverManyEndpoints waits with one Poll for any of many connections.
// Each time, it finds the one that a byte was sent to, and no other.
func TestPollOverManyEndpoints(t *testing.T) {
	const count, rounds = 200, 50
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	inEachAPIMode(t, func(t *testing.T, client, server *fabric.Node) {
		random := rand.New(rand.NewPCG(seed, 0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		items := make([]fabric.PollItem, count)
		far := make([]*fabric.Conn, count)
		for i := range items {
			near, other := dial(t, client, server)
			defer near.Close()
			defer other.Close()
			items[i] = fabric.PollItem{Endpoint: near.Endpoint(), Events: fabric.PollIn}
			far[i] = other
		}
		for range rounds {
			at := random.IntN(count)
			sent := make(chan error, 1)
			go func() {
				_, err := far[at].Write([]byte{1})
				sent <- err
			}()
			n, err := client.Poll(ctx, items)
			if n != 1 || err != nil {
				t.Fatalf("%d ready, %v, want 1", n, err)
			}
			for i, item := range items {
				if want := i == at; (item.Revents == fabric.PollIn) != want || !want && item.Revents != 0 {
					t.Fatalf("item %d: revents %#x; the byte went to %d", i, item.Revents, at)
				}
			}
			if _, err := items[at].Endpoint.Recv(ctx, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
	})
}
