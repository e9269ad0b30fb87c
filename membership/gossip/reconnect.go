package gossip

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	reconnectEvery = time.Second
	reconnectRound = 64              // addresses tried in one round, at random if there are more
	reconnectDials = 16              // of them at a time
	deafEvery      = 4 * time.Second // for a seed that nobody was ever met at, while others are here
	forgetAfter    = 24 * time.Hour  // a member that is gone for longer is not looked for
)

// reconnect speaks to every seed that is not a member and to every member that
// is gone, about every second: with 20 % jitter, and then with the next round of
// gossip. memberlist gives up on the dead, so that the sides of a partition
// never find each other again without it.
func (g *Gossip) reconnect() {
	rng := rand.New(rand.NewPCG(g.cfg.Seed, g.self.Epoch))
	timer := time.NewTimer(0)
	defer timer.Stop()
	deaf := make(map[netip.AddrPort]time.Time) // when to try such a seed again
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		absent := g.absent(began, deaf)
		absent = absent[:min(len(absent), reconnectRound)]
		g.joinAll(absent)
		for _, a := range absent {
			deaf[a] = time.Now().Add(deafEvery)
		}
		wait := time.Duration(float64(reconnectEvery) * (0.8 + 0.4*rng.Float64()))
		timer.Reset(max(time.Until(g.roundAfter(began.Add(wait))), 0))
	}
}

// roundAfter returns when memberlist's next round after t is: an idle process
// wakes up for that anyway.
func (g *Gossip) roundAfter(t time.Time) time.Time {
	every := g.roundEvery
	return g.began.Add(t.Sub(g.began).Truncate(every) + every)
}

// absent returns the addresses to try, seeds first. A member whose fabricd has a newer start
// that is here is not absent, and one that left does not come back under its
// old name.
func (g *Gossip) absent(now time.Time, deaf map[netip.AddrPort]time.Time) []netip.AddrPort {
	seeds := g.resolveSeeds()
	g.mu.Lock()
	defer g.mu.Unlock()
	present := map[netip.AddrPort]bool{g.advertise: true}
	newest := make(map[[16]byte]uint64)
	for k, r := range g.members {
		if r.gone {
			continue
		}
		present[r.member.Address] = true
		newest[k.UUID] = max(newest[k.UUID], k.Epoch)
	}
	var out []netip.AddrPort
	add := func(a netip.AddrPort) {
		if !present[a] {
			present[a] = true
			out = append(out, a)
		}
	}
	for a, until := range deaf {
		if !now.Before(until) {
			delete(deaf, a)
		}
	}
	for _, a := range seeds {
		if _, wait := deaf[a]; !wait || len(newest) == 0 {
			add(a)
		}
	}
	for k, r := range g.members {
		switch _, back := newest[k.UUID]; {
		case !r.gone:
		case now.Sub(r.at) > forgetAfter:
			delete(g.members, k)
		case !back && !r.member.Meta.Leaving:
			add(r.member.Address)
		}
	}
	return out
}

// resolveSeeds returns the seeds' addresses. Names are looked up every time:
// in containers they move.
func (g *Gossip) resolveSeeds() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range g.cfg.Seeds {
		if a, err := netip.ParseAddrPort(s); err == nil {
			out = append(out, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
			continue
		}
		host, p, err := net.SplitHostPort(s)
		if err != nil {
			g.log.Debug().Str("seed", s).Err(err).Msg("seed is no address")
			continue
		}
		port, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			g.log.Debug().Str("seed", s).Err(err).Msg("seed is no address")
			continue
		}
		ctx, cancel := context.WithTimeout(g.ctx, 2*time.Second)
		ips, err := g.cfg.Resolve(ctx, host)
		cancel()
		if err != nil {
			g.log.Debug().Str("seed", s).Err(err).Msg("seed has no address")
		}
		for _, ip := range ips {
			out = append(out, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
		}
	}
	return out
}

// joinAll exchanges all rumours with each address.
func (g *Gossip) joinAll(addresses []netip.AddrPort) {
	work := make(chan netip.AddrPort)
	var wg sync.WaitGroup
	for range min(reconnectDials, len(addresses)) {
		wg.Go(func() {
			for a := range work {
				if _, err := g.list.Join([]string{a.String()}); err != nil {
					g.log.Trace().Stringer("address", a).Err(err).Msg("absent member does not answer")
				}
			}
		})
	}
	for _, a := range addresses {
		select {
		case work <- a:
		case <-g.ctx.Done():
		}
	}
	close(work)
	wg.Wait()
}
