package gossip

import (
	"context"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	reconnectEvery = time.Second
	reconnectDials = 8               // addresses tried in one round, at once
	seedRetry      = 4 * time.Second // for a seed that does not answer, while others are here
	maxRetry       = time.Minute     // for a member that does not answer
	recheckPause   = 50 * time.Millisecond
)

// An attempt is the result of dialing an absent address.
type attempt struct {
	failed int
	next   time.Time // it is not due before
}

// reconnect speaks to every seed that is not a member and to every proven member that
// is gone, about every second: with 20 % jitter, and then with the next round of
// gossip. memberlist gives up on the dead, so that the sides of a partition
// never find each other again without it.
func (g *Gossip) reconnect() {
	rng := rand.New(rand.NewPCG(g.cfg.Seed, g.self.Epoch))
	timer := time.NewTimer(0)
	defer timer.Stop()
	tried := make(map[netip.AddrPort]attempt) // of absent addresses only
	for {
		anyway := false
		select {
		case <-g.ctx.Done():
			return
		case <-g.recheck:
			if !wait.For(g.ctx.Done(), recheckPause) {
				return
			}
		case <-timer.C:
			anyway = true
		}
		began := time.Now()
		g.review(began)
		seeds, members, alone := g.absent()
		list := due(seeds, members, alone, anyway, tried, began)
		g.joinAll(list)
		ended := time.Now()
		for _, a := range list {
			t := tried[a]
			t.failed++
			t.next = ended.Add(retryAfter(t.failed, slices.Contains(seeds, a)))
			tried[a] = t
		}
		wait := time.Duration(float64(reconnectEvery) * (0.8 + 0.4*rng.Float64()))
		timer.Reset(max(time.Until(g.roundAfter(began.Add(wait))), 0))
	}
}

// retryAfter returns when to dial an address again that did not answer so often.
func retryAfter(failed int, seed bool) time.Duration {
	if seed {
		return seedRetry
	}
	return min(reconnectEvery<<min(failed-1, 10), maxRetry)
}

// roundAfter returns when memberlist's next round after t is: an idle process
// wakes up for that anyway.
func (g *Gossip) roundAfter(t time.Time) time.Time {
	every := g.roundEvery
	return g.began.Add(t.Sub(g.began).Truncate(every) + every)
}

// review updates which members are proven, and forgets those that are gone for too long.
func (g *Gossip) review(now time.Time) {
	g.mu.Lock()
	keys := slices.Collect(maps.Keys(g.members.records))
	g.mu.Unlock()
	proven := make(map[Key]bool, len(keys))
	for _, k := range keys {
		proven[k] = g.cfg.Proven(k) // without mu: it may wait for a goroutine that asks for Members
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, p := range proven {
		if r := g.members.records[k]; r != nil {
			g.members.setProven(r, p)
		}
	}
	changes := g.members.forget(now)
	if !g.closed {
		g.queue.putAll(changes)
	}
}

// absent returns the seeds and the proven members that are not here or were unproven until now, and whether this
// member is alone. A member whose fabricd has a newer start that is here is not absent, and one that left does
// not come back under its old name.
func (g *Gossip) absent() (seeds, members []netip.AddrPort, alone bool) {
	all := g.resolveSeeds()
	g.mu.Lock()
	defer g.mu.Unlock()
	present := map[netip.AddrPort]bool{g.advertise: true}
	here := make(map[addr.UUID]bool)
	for k, r := range g.members.records {
		if !r.gone && r.trusted {
			present[r.member.Address] = true
			here[k.UUID] = true
		}
	}
	add := func(list []netip.AddrPort, a netip.AddrPort) []netip.AddrPort {
		if present[a] || slices.Contains(list, a) {
			return list
		}
		return append(list, a)
	}
	for k, r := range g.members.records {
		if (r.gone || !r.trusted) && r.seen && r.proven && !here[k.UUID] && !r.member.Meta.Leaving {
			members = add(members, r.member.Address)
		}
	}
	for _, a := range all {
		seeds = add(seeds, a)
	}
	return seeds, members, len(here) == 0
}

// due returns the addresses to dial now, reconnectDials at most: those that were not
// dialed for as long as their failures ask for, longest first, and anyway one member whatever its failures are: every second, so that
// the sides of a partition meet soon after it has healed. It forgets the attempts at addresses that are not absent any more.
func due(seeds, members []netip.AddrPort, alone, anyway bool, tried map[netip.AddrPort]attempt, now time.Time) []netip.AddrPort {
	absent := slices.Concat(members, seeds)
	maps.DeleteFunc(tried, func(a netip.AddrPort, _ attempt) bool { return !slices.Contains(absent, a) })
	longest := func(a, b netip.AddrPort) int { return tried[a].next.Compare(tried[b].next) }
	waits := func(a netip.AddrPort) bool { return now.Before(tried[a].next) }
	slices.SortStableFunc(members, longest)
	list := slices.DeleteFunc(slices.Clone(members), waits)
	if anyway && len(list) == 0 && len(members) > 0 {
		list = members[:1]
	}
	slices.SortStableFunc(seeds, longest)
	if !alone {
		seeds = slices.DeleteFunc(seeds, waits)
	}
	seeds = slices.DeleteFunc(seeds, func(a netip.AddrPort) bool { return slices.Contains(list, a) })
	// Half of the dials are for either, if there is so much to do.
	list = list[:min(len(list), max(reconnectDials/2, reconnectDials-len(seeds)))]
	list = slices.Concat(list, seeds)
	return list[:min(len(list), reconnectDials)]
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
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
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

// joinAll exchanges all changes with each address, with all at once.
func (g *Gossip) joinAll(addresses []netip.AddrPort) {
	var wg sync.WaitGroup
	for _, a := range addresses {
		wg.Go(func() {
			if _, err := g.list.Join([]string{a.String()}); err != nil {
				g.log.Trace().Stringer("address", a).Err(err).Msg("absent member does not answer")
			}
		})
	}
	wg.Wait()
}
