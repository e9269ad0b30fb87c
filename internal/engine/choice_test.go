package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
)

// A named provider is one in memory under another name, which may not work.
type named struct {
	transport.Provider
	name   string
	broken error
	dials  int
}

// errMute breaks a provider: its dials get no answer.
var errMute = errors.New("no answer")

func (p *named) Name() string { return p.name }

func (p *named) Dial(ctx context.Context, address string) (transport.Session, error) {
	p.dials++
	if p.broken == errMute {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if p.broken != nil {
		return nil, p.broken
	}
	return p.Provider.Dial(ctx, address)
}

// dials starts two nodes with providers of those names, and lets the first dial
// the second, which announces offered.
func dials(t *testing.T, broken map[string]error, offered []string, names ...string) (link LinkInfo, tried map[string]int, err error) {
	cluster := addr.UUID{1}
	id := func(n byte) transport.Identity {
		return transport.Identity{Cluster: cluster, Node: addr.UUID{n}, Host: n == 1}
	}
	tried = make(map[string]int)
	var nodes []*Node
	var all [2][]*named
	for i := range 2 {
		var providers []transport.Provider
		for _, name := range names {
			hub := mem.NewHub(mem.Config{})
			if i == 1 {
				hub = all[0][len(providers)].Provider.(*hubbed).hub
			}
			p, err := hub.Provider([]string{"a", "b"}[i], id(byte(i+1)))
			if err != nil {
				t.Fatal(err)
			}
			n := &named{Provider: &hubbed{p, hub}, name: name}
			if i == 0 {
				n.broken = broken[name]
			}
			all[i] = append(all[i], n)
			providers = append(providers, n)
		}
		n := Start(Config{Providers: providers})
		defer n.Close()
		incarnation := addr.Incarnation{Node: addr.NodeID(i), Generation: 1}
		n.SetSelf(Self{Self: attach.Self{Cluster: cluster, Incarnation: incarnation}, UUID: addr.UUID{byte(i + 1)}, Epoch: 1})
		nodes = append(nodes, n)
	}
	for i, n := range nodes {
		other := 1 - i
		n.NodeUp(Peer{Incarnation: addr.Incarnation{Node: addr.NodeID(other), Generation: 1}, UUID: addr.UUID{byte(other + 1)}, Epoch: 1,
			Addresses: []string{[]string{"a", "b"}[other]}, Providers: offered})
	}
	_, err = nodes[0].linkTo(t.Context(), 1)
	synctest.Wait()
	if links := nodes[0].Links(); len(links) > 0 {
		link = links[0]
		if far := nodes[1].Links(); len(far) != 1 || len(far[0].Considered) != 1 || far[0].Considered[0].Reason != "the peer dialed" {
			t.Errorf("the accepting side shows %+v", far)
		}
	}
	for _, p := range all[0] {
		tried[p.name] = p.dials
	}
	return link, tried, err
}

// hubbed is a provider that remembers its hub.
type hubbed struct {
	*mem.Provider
	hub *mem.Hub
}

func TestProvidersAreTriedInOrder(t *testing.T) {
	down := errors.New("no way through")
	for name, c := range map[string]struct {
		broken  map[string]error
		offered []string
		want    []Considered // but for how they rank
	}{
		"the first one works":                  {nil, []string{"tcp", "quic"}, []Considered{{Provider: "quic", Chosen: true, Reason: reasonFirst}, {Provider: "tcp", Chosen: false, Reason: reasonNotNeeded}}},
		"it is not known what the peer offers": {nil, nil, []Considered{{Provider: "quic", Chosen: true, Reason: reasonFirst}, {Provider: "tcp", Chosen: false, Reason: reasonNotNeeded}}},
		"the peer offers one":                  {nil, []string{"tcp"}, []Considered{{Provider: "quic", Chosen: false, Reason: reasonNotOffered}, {Provider: "tcp", Chosen: true, Reason: reasonFirst}}},
		"the first one does not work": {map[string]error{"quic": down}, []string{"quic", "tcp"},
			[]Considered{{Provider: "quic", Chosen: false, Reason: down.Error()}, {Provider: "tcp", Chosen: true, Reason: reasonFallback}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				link, tried, err := dials(t, c.broken, c.offered, "quic", "tcp")
				if err != nil {
					t.Fatal(err)
				}
				if !slices.EqualFunc(link.Considered, c.want, func(a, b Considered) bool {
					return a.Provider == b.Provider && a.Chosen == b.Chosen && a.Reason == b.Reason
				}) {
					t.Errorf("considered %+v, want %+v", link.Considered, c.want)
				}
				for _, w := range c.want {
					if w.Chosen && link.Provider != w.Provider {
						t.Errorf("the link has %s, want %s", link.Provider, w.Provider)
					}
					if w.Reason == reasonNotOffered && tried[w.Provider] > 0 {
						t.Errorf("%s was dialed, which the peer does not offer", w.Provider)
					}
				}
			})
		})
	}
}

// TestDialsThatNobodyAnswers: a connect fails within DialTimeout when the node cannot
// be reached, however many providers there are, and the last one has its share of it.
func TestDialsThatNobodyAnswers(t *testing.T) {
	const bound = 2400 * time.Millisecond // the default of DialTimeout with the others'
	for name, c := range map[string]struct {
		broken map[string]error
		want   time.Duration
		err    error
	}{
		"nobody answers":      {map[string]error{"quic": errMute, "tcp": errMute, "third": errMute}, bound, status.NoDevice},
		"the last one works":  {map[string]error{"quic": errMute, "tcp": errMute}, bound * 2 / 3, nil},
		"the first is broken": {map[string]error{"quic": errors.New("no way"), "tcp": errMute}, bound / 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				start := time.Now()
				_, _, err := dials(t, c.broken, nil, "quic", "tcp", "third")
				if took := time.Since(start); !errors.Is(err, c.err) || took < c.want || took > c.want+10*time.Millisecond {
					t.Errorf("%v after %v, want %v after %v", err, took, c.err, c.want)
				}
			})
		})
	}
}

// A broken provider that is the only one allowed to this node is an error, not a
// reason to use another.
func TestOnlyProviderDoesNotWork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		down := errors.New("UDP is blocked")
		_, tried, err := dials(t, map[string]error{"quic": down}, []string{"quic", "tcp"}, "quic")
		if !errors.Is(err, status.NoDevice) || !errors.Is(err, down) || tried["quic"] == 0 {
			t.Errorf("%v after %v dials, want the error of the dial", err, tried)
		}
	})
}

func TestNoProviderInCommon(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, tried, err := dials(t, nil, []string{"quic"}, "tcp")
		if !errors.Is(err, status.NoDevice) || !strings.Contains(err.Error(), "no provider in common: tcp here, quic there") || tried["tcp"] > 0 {
			t.Errorf("%v after %v dials", err, tried)
		}
	})
}

// TestAddressesOfAPeerAreBounded: a peer's data about itself must not end
// this process. Of one that names too many, no more than maxAddresses are dialed.
func TestAddressesOfAPeerAreBounded(t *testing.T) {
	for count, want := range map[int]struct {
		reason string
		dials  int // a round
	}{
		0:                 {"no address is known", 0},
		1:                 {"refused", 1},
		maxAddresses:      {"refused", maxAddresses},
		10 * maxAddresses: {"refused", maxAddresses},
	} {
		bubble.Test(t, func(t *testing.T) {
			hub := mem.NewHub(mem.Config{})
			id := transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{1}, Host: true}
			inner, err := hub.Provider("self", id)
			if err != nil {
				t.Fatal(err)
			}
			p := &named{Provider: inner, name: "mem", broken: errors.New("refused")}
			n := Start(Config{Providers: []transport.Provider{p}})
			defer n.Close()
			n.SetSelf(Self{Self: attach.Self{Cluster: addr.UUID{1}, Incarnation: addr.Incarnation{Generation: 1}}, UUID: addr.UUID{1}, Epoch: 1})
			n.NodeUp(Peer{Incarnation: addr.Incarnation{Node: 7, Generation: 1}, UUID: addr.UUID{7}, Epoch: 1, Addresses: make([]string, count)})
			if _, err := n.Ping(t.Context(), 7); !errors.Is(err, status.NoDevice) || !strings.Contains(err.Error(), want.reason) {
				t.Errorf("%d addresses: %v, want %q", count, err, want.reason)
			}
			if p.dials != core.DialRounds*want.dials {
				t.Errorf("%d addresses: %d dials in %d rounds", count, p.dials, core.DialRounds)
			}
		})
	}
}

// TestEndsOfLinksAreShownWithinBounds: ten a minute of each incarnation.
func TestEndsOfLinksAreShownWithinBounds(t *testing.T) {
	var e perMinute
	shown := 0
	for i := range 600 { // in two minutes
		if e.shown(time.Duration(i)*200*time.Millisecond, endsShown) {
			shown++
		}
	}
	if shown != 2*endsShown {
		t.Errorf("%d ends were shown in two minutes, want %d", shown, 2*endsShown)
	}
}
