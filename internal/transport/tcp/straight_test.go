package tcp

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// A tally counts the bytes that the connections of a provider have read: those that went
// to mem, and the others.
type tally struct {
	mu            sync.Mutex
	mem           []byte
	straight, not int
}

// watch begins to count, for mem.
func (tl *tally) watch(mem []byte) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.mem, tl.straight, tl.not = mem, 0, 0
}

// A spied connection tells a tally where its bytes go.
type spied struct {
	net.Conn
	tally *tally
}

func (c spied) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.tally.mu.Lock()
	defer c.tally.mu.Unlock()
	if liesIn(c.tally.mem, p) {
		c.tally.straight += n
	} else {
		c.tally.not += n
	}
	return n, err
}

// liesIn reports whether p begins inside mem.
func liesIn(mem, p []byte) bool {
	for i := range mem {
		if len(p) > 0 && &mem[i] == &p[0] {
			return true
		}
	}
	return false
}

// A spiedListener accepts connections that are spied on.
type spiedListener struct {
	net.Listener
	tally *tally
}

func (l spiedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return spied{c, l.tally}, nil
}

// spyOn has every connection of the provider with cfg tell tl.
func (tl *tally) spyOn(cfg *Config) {
	dial := cfg.Dial
	cfg.Listener = spiedListener{cfg.Listener, tl}
	cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
		c, err := dial(ctx, to)
		if err != nil {
			return nil, err
		}
		return spied{c, tl}, nil
	}
}

// The bytes of a large write go from the connection to the memory of who waits for them,
// but for what was read ahead with a header.
func TestPayloadIsReadToWhereItBelongs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const writes, size = 8, 1 << 20
		network := netsim.New(1)
		network.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond})
		ca := transporttest.NewAuthority(t)
		here, there := member(ca, idA), member(ca, idB)
		here.Plaintext, there.Plaintext = true, true
		tl := &tally{}
		pa := start(t, network, addrA, here)
		pb := startWith(t, network, addrB, there, tl.spyOn)
		a, b := transporttest.Connect(t, pa, pb)
		out, err := a.OpenLane(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte{1}); err != nil { // so that the lane is there
			t.Fatal(err)
		}
		in, err := b.AcceptLane(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		data := random(1, size)
		mem := make([]byte, size)
		for i := range 1 + writes { // during the first one the connection is made
			clear(mem)
			if i == 1 {
				tl.watch(mem)
			}
			var reader sync.WaitGroup
			reader.Go(func() {
				for got := 0; got < size; {
					n, err := in.Read(mem[got:])
					if got += n; err != nil {
						t.Error(err)
						return
					}
				}
			})
			time.Sleep(time.Millisecond) // of the bubble: the reader waits
			if _, err := out.Write(data); err != nil {
				t.Fatal(err)
			}
			if reader.Wait(); !bytes.Equal(mem, data) {
				t.Fatal("other bytes have come")
			}
		}
		pa.Close()
		pb.Close()
		network.Close()
		if most := writes * (headBuffer + headerLen); tl.straight < writes*size-most {
			t.Errorf("%d of %d bytes went to their memory at once, and %d elsewhere, want at most %d", tl.straight, writes*size, tl.not, most)
		}
	})
}
