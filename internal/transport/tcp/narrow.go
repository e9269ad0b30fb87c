package tcp

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// narrowSegment is the largest segment of a connection over a way on which full
	// ones seem to vanish, in bytes: what fits the packets of 1280 bytes that every way
	// of IPv6 carries, with the headers of either IP.
	narrowSegment = 1220
	// narrowFor is how long a host is doubted. A link is dialed again at once when one
	// was lost; what is dialed later has its own handshake to show that it stalls.
	narrowFor = 5 * time.Second
	// maxDoubts bounds the hosts that are doubted at a time.
	maxDoubts = 1024
)

// doubts are hosts on the way to which packets of full size seem to vanish while small
// ones pass, which nobody tells: the kernel sends the same bytes again, and everything
// behind them waits until the link is given up, heartbeats too. The next connection
// would get stuck like the last one. So it says with its SYN that it takes small
// segments only, and heeds it itself, which keeps both directions small: the word of
// one end is enough. The zero value doubts nobody.
type doubts struct {
	mu    sync.Mutex
	until map[string]time.Time // by host
}

// add doubts a host.
func (d *doubts) add(host string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until == nil {
		d.until = make(map[string]time.Time)
	}
	for h, t := range d.until {
		if now.After(t) {
			delete(d.until, h)
		}
	}
	if len(d.until) < maxDoubts {
		d.until[host] = now.Add(narrowFor)
	}
}

// drop trusts a host again: not even small packets reach it.
func (d *doubts) drop(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.until, host)
}

// of reports whether a host is doubted.
func (d *doubts) of(host string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	until, ok := d.until[host]
	return ok && now.Before(until)
}

// connect opens a connection to address. small says that its segments are: because
// they have to be, or because the host is doubted.
func (p *Provider) connect(ctx context.Context, address string, narrow bool) (c net.Conn, small bool, err error) {
	if p.cfg.Dial != nil {
		c, err = p.cfg.Dial(ctx, address)
		return c, false, err
	}
	var host string // the last one tried
	d := net.Dialer{Control: func(_, at string, raw syscall.RawConn) error {
		if h, _, err := net.SplitHostPort(at); err == nil {
			host = h
		}
		if small = narrow || p.doubts.of(host, time.Now()); small {
			setSegment(raw, narrowSegment)
		}
		return nil
	}}
	if c, err = d.DialContext(ctx, "tcp", address); err != nil && !errors.Is(err, context.Canceled) {
		p.doubts.drop(host)
	}
	return c, small, err
}

// doubt doubts the host at the other end of c, whose segments were full, and says so.
func (p *Provider) doubt(c net.Conn, why string) {
	if p.cfg.Dial != nil {
		return
	}
	host := hostOf(c.RemoteAddr())
	p.doubts.add(host, time.Now())
	p.cfg.Log.Info().Str("op", "segment").Str("peer", host).Str("cause", why).Int("bytes", narrowSegment).
		Msg("packets of full size may be vanishing on the way; the next connection keeps them small")
}
