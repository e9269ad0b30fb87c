package tcp

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/segment"
	"github.com/fabricd/fabricd/internal/transport"
)

// A way on which packets of more than some size vanish, and nobody says so, looks well:
// connections come about, and get stuck with the first full packet. The hellos of TLS are
// larger than 1280 bytes in both directions, and together those of a server fill a packet
// of Ethernet: a handshake is a probe of the way. If it gets stuck, the host is dialed
// once more with segments that pass everywhere. A link that gets stuck later is given up
// like a silent one, and dialed again. Only where packets are larger than a handshake
// does its end say that they may have been too large.
//
// A SYN says which segments an end takes, so that the word of the dialer is enough for
// both directions, and is heeded for as long as the connection lives.

const (
	// standardSegment is the largest segment, in bytes, on an Ethernet without jumbo
	// frames, with the headers of either IP.
	standardSegment = 1440
	// narrowFor is how long a host is dialed with smaller segments than others.
	narrowFor = 30 * time.Second
	// maxNarrow bounds the hosts for which something is remembered.
	maxNarrow = 1024
	// stallLook is how often a handshake is looked at.
	stallLook = 50 * time.Millisecond
)

// errVanishing ends a handshake whose packets vanish if they are full.
var errVanishing = errors.New("packets of full size vanish on the way")

// narrows are the hosts to which segments are bounded. The zero value has none.
type narrows struct {
	mu sync.Mutex
	of map[string]narrowness
}

type narrowness struct {
	segment int
	until   time.Time
}

// add bounds the segments to a host, in bytes, from now on.
func (n *narrows) add(host string, bytes int, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = make(map[string]narrowness)
	}
	for h, b := range n.of {
		if !now.Before(b.until) {
			delete(n.of, h)
		}
	}
	old, known := n.of[host]
	if known {
		bytes = min(bytes, old.segment)
	} else if len(n.of) >= maxNarrow {
		return
	}
	n.of[host] = narrowness{bytes, now.Add(narrowFor)}
}

// get returns the bound for a host; 0: none.
func (n *narrows) get(host string, now time.Time) (bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b := n.of[host]; now.Before(b.until) {
		return b.segment
	}
	return 0
}

// connect opens a connection to address, with segments of at most so many bytes, or as
// many as the host gets if that is 0. bound is what it became; 0: none.
func (p *Provider) connect(ctx context.Context, address string, bytes int) (c net.Conn, bound int, err error) {
	if p.cfg.Dial != nil {
		c, err = p.cfg.Dial(ctx, address)
		return c, 0, err
	}
	var mu sync.Mutex
	bounds := make(map[string]int) // by host: a name has several, which may be tried at once
	d := net.Dialer{Control: func(_, at string, raw syscall.RawConn) error {
		host, _, err := net.SplitHostPort(at)
		if err != nil {
			return err
		}
		b := bytes
		if b == 0 {
			b = p.narrows.get(host, time.Now())
		}
		if b != 0 {
			segment.Bound(raw, b)
		}
		mu.Lock()
		defer mu.Unlock()
		bounds[host] = b
		return nil
	}}
	d.SetMultipathTCP(false) // its segments cannot be bounded everywhere
	if c, err = d.DialContext(ctx, "tcp", address); err != nil {
		return nil, 0, err
	}
	mu.Lock()
	defer mu.Unlock()
	return c, bounds[hostOf(c.RemoteAddr())], nil
}

// watchWay looks at a handshake on c until stop, which returns what was seen last, and
// aborts it once its packets seem to vanish.
func watchWay(c net.Conn, abort context.CancelCauseFunc) (stop func() way) {
	last, ok := infoOf(c)
	if !ok {
		return func() way { return way{} }
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer guard.Recover(func(err error, _ []byte) { abort(err) })
		t := time.NewTicker(stallLook)
		defer t.Stop()
		for {
			var now time.Time
			select {
			case now = <-t.C:
			case <-over:
				return
			}
			w, ok := infoOf(c)
			if !ok {
				return // closed already
			}
			if last = w.since(last, now); last.stalls(now) {
				abort(errVanishing)
				return
			}
		}
	}()
	return func() way {
		close(over)
		<-done
		return last
	}
}

// narrow bounds the segments of what is dialed to the host at the other end of c.
func (p *Provider) narrow(c net.Conn, bytes int) {
	p.narrows.add(hostOf(c.RemoteAddr()), bytes, time.Now())
}

// tellNarrow says what narrow did, and why.
func (p *Provider) tellNarrow(c net.Conn, bytes int, why string) {
	p.cfg.Log.Warn().Str("op", "segment").Str("peer", hostOf(c.RemoteAddr())).Str("cause", why).Int("bytes", bytes).
		Msg("packets of full size seem to vanish on the way; connections get smaller ones")
}

// A way is what the kernel knows of a connection.
type way struct {
	segment int       // largest that is sent, in bytes
	unheard bool      // something that was sent has not been acknowledged
	retries int       // how often in a row the kernel has sent it again when its time was up
	holed   bool      // something has come, and nothing that was sent before it
	began   time.Time // since when it is holed
}

// since returns w, which is seen now, with what was seen before.
func (w way) since(before way, now time.Time) way {
	if w.began = before.began; w.holed && !before.holed {
		w.began = now
	}
	return w
}

// Signs that packets vanish because of their size. Where a fifth of all packets is lost,
// three in a row are one of 125. A kernel that waits for 200 ms at first, and twice as
// long each time, is there after 1.4 s.
const (
	vainRetries = 3
	holeTime    = 500 * time.Millisecond
)

// stalls reports whether a handshake gets stuck in a way in which smaller segments would
// not: they would be none in a peer that stands still, whose kernel acknowledges what
// comes, and says nothing.
func (w way) stalls(now time.Time) bool {
	return w.segment > segment.Small && (w.unheard && w.retries >= vainRetries || w.holed && now.Sub(w.began) >= holeTime)
}

// late reports whether a handshake that ran out of time was getting stuck.
func (w way) late() bool {
	return w.segment > segment.Small && (w.unheard && w.retries > 0 || w.holed)
}

// stuck reports whether a session that has ended may have got stuck because of segments
// larger than a handshake shows. lost says that the kernel has given up.
func (w way) stuck(lost bool) bool {
	return w.segment > standardSegment+20 && (lost || w.unheard && w.retries >= vainRetries) // 20: the other IP
}

// endOfWay remembers a session whose large packets may have vanished, when it ends, and
// reports whether it did. mu is held.
func (s *session) endOfWay(why *transport.CloseError) bool {
	w, ok := infoOf(s.rec.Conn)
	if !ok || !w.stuck(why.Timeout) {
		return false
	}
	s.p.narrow(s.rec.Conn, standardSegment)
	return true
}
