package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/segment"
	"github.com/fabricd/fabricd/internal/wait"
)

// Config configures a gossiping member. It is not modified after Start.
type Config struct {
	Cluster addr.UUID // nothing from another cluster is believed
	UUID    addr.UUID
	Epoch   uint64 // of this start of the fabricd
	Meta    Meta   // the first one; Cluster is filled in

	// Keys seal all gossip with AES-GCM, 16, 24 or 32 bytes each. The first
	// seals, all open. At least one is needed.
	Keys [][]byte

	// Bind is the "ip:port" of the UDP and TCP sockets. Port 0 chooses one.
	// It is not used if Packets and Streams are given.
	Bind string
	// Packets and Streams replace the sockets. They belong to the Gossip from
	// then on, also if Start fails.
	Packets net.PacketConn
	Streams net.Listener
	// Dial opens a stream to "ip:port". Nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Advertise is the "ip:port" under which others reach Bind. Empty: Bind,
	// which must then name one address of this machine.
	Advertise string
	// Seeds are "host:port" of members to speak to first; also later, whenever
	// they are absent.
	Seeds []string

	Profile Profile // empty: Normal
	// MaxMembers bounds the members known at a time, also those that are gone
	// and may come back. 0: 4096.
	MaxMembers int
	// Proven reports whether a member is of the cluster for other reasons than that
	// it is gossiped: the host's table has this start of it, or there is no table
	// yet and its UUID was in it at the last start. Members that are not proven are set apart once one is proven:
	// there is gossip about a bounded number of them, and nothing is sent to them.
	// Proven is called with memberlist's lock held: it must not wait for a goroutine
	// that calls the Gossip. Nil: all are.
	Proven func(Key) bool
	// Known reports whether a member of the cluster is, or was, at an address: there
	// are slots for its streams that strangers do not get. It must not wait. Nil: none is.
	Known func(netip.Addr) bool
	// Seed makes the jitter of the reconnector repeatable.
	Seed uint64

	Log zerolog.Logger
}

func (c *Config) withDefaults() (*Config, error) {
	d := *c
	if d.Cluster.IsZero() || d.UUID.IsZero() {
		return nil, errors.New("start gossip: cluster and node need a UUID")
	}
	if len(d.Keys) == 0 {
		return nil, errors.New("start gossip: no key: gossip is never in the clear")
	}
	if d.Profile == "" {
		d.Profile = Normal
	}
	if _, err := ParseProfile(string(d.Profile)); err != nil {
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	if d.MaxMembers == 0 {
		d.MaxMembers = 4096
	}
	if d.Dial == nil {
		d.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return segment.Dialer().DialContext(ctx, "tcp", address)
		}
	}
	if d.Proven == nil {
		d.Proven = func(Key) bool { return true }
	}
	if d.Known == nil {
		d.Known = func(netip.Addr) bool { return false }
	}
	d.Meta.Cluster = d.Cluster
	return &d, nil
}

// Gossip takes part in the gossip of one cluster as one member. Its methods may
// be called from any goroutine.
type Gossip struct {
	cfg       *Config
	self      Key
	advertise netip.AddrPort
	transport *packetTransport
	list      *memberlist.Memberlist
	keyring   *memberlist.Keyring
	sealer    *sealer // has the keys of keyring
	queue     *queue
	log       zerolog.Logger
	lines     *logWriter
	panics    *logbound.Summary

	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the reconnector and its dials

	began      time.Time     // when memberlist's rounds began
	roundEvery time.Duration // between two of them

	update  latch         // held during an Update: memberlist's UpdateNode must not meet itself
	left    bool          // Leave or Close was called; guarded by update
	leaving chan struct{} // closed when Leave returns, nil before it is called; guarded by update

	mu      sync.Mutex // guards the fields below; memberlist's callbacks take it with memberlist's lock held
	meta    []byte     // encoded, our own
	members *register
	closed  bool

	recheck chan struct{} // capacity 1: see Recheck
}

// Start binds the sockets and begins to gossip. It does not wait for any seed.
func Start(c Config) (*Gossip, error) {
	cfg, err := c.withDefaults()
	if err != nil {
		closeSockets(c.Packets, c.Streams)
		return nil, err
	}
	g, err := newGossip(cfg)
	if err != nil {
		closeSockets(c.Packets, c.Streams)
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	packets, listener, err := sockets(cfg)
	if err != nil {
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	if g.advertise, err = advertised(cfg, packets); err != nil {
		closeSockets(packets, listener)
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.transport = newPacketTransport(cfg, packets, listener, g.advertise, g.sealer, g.maxFrame)
	config := g.memberlistConfig()
	g.roundEvery = config.GossipInterval
	g.list, err = memberlist.Create(config)
	if err != nil {
		g.cancel()
		g.transport.Shutdown()
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	g.began = time.Now()
	g.wg.Go(g.reconnect)
	return g, nil
}

// newGossip returns a Gossip that has no sockets yet.
func newGossip(cfg *Config) (*Gossip, error) {
	meta, err := cfg.Meta.Append(nil)
	if err != nil {
		return nil, err
	}
	keyring, err := memberlist.NewKeyring(cfg.Keys, cfg.Keys[0])
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	sealer, err := newSealer(cfg.Cluster.String(), cfg.Keys)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return &Gossip{
		cfg:     cfg,
		self:    Key{cfg.UUID, cfg.Epoch},
		keyring: keyring,
		sealer:  sealer,
		queue:   newQueue(),
		log:     cfg.Log,
		lines:   newLogWriter(cfg.Log),
		panics:  logbound.New(cfg.Log, "gossip messages ended with an internal error"),
		update:  make(latch, 1),
		meta:    meta,
		members: newRegister(cfg.MaxMembers),
		recheck: make(chan struct{}, 1),
	}, nil
}

// checksum is the size that memberlist adds to a packet beyond its bound, in bytes.
const checksum = 5

// maxPacket bounds the packets of gossip, in bytes, without their checksum: a size that passes every path of
// IPv6, as segments of streams do. Larger ones may vanish under way, all of them where there are many
// changes.
const maxPacket = 1280 - 40 - 8 - checksum

func (g *Gossip) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	g.cfg.Profile.apply(c)
	c.Name = g.self.String()
	c.Transport = g.transport
	c.Label = g.cfg.Cluster.String()
	c.Keyring = g.keyring
	c.GossipVerifyIncoming = true
	c.GossipVerifyOutgoing = true
	c.EnableCompression = false
	c.UDPBufferSize = maxPacket
	c.HandoffQueueDepth = 1024 // memberlist drops packets beyond it
	c.TCPTimeout = 2 * time.Second
	c.Delegate = delegate{g}
	c.Events = delegate{g}
	c.Alive = delegate{g}
	c.Logger = log.New(g.lines, "", 0)
	c.DisableTcpPingsForNode = g.noStreamPing
	return c
}

// noStreamPing reports whether a member that does not answer packets is not asked over a stream: a
// member that any holder of the gossip key may have made up is no reason to dial.
func (g *Gossip) noStreamPing(name string) bool {
	k, err := ParseKey(name)
	return err != nil || !g.cfg.Proven(k)
}

// maxFrame bounds the frame that a peer sends unasked over a stream, in bytes.
func (g *Gossip) maxFrame() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return min(baseFrame+memberFrame*g.members.len(), maxFrame)
}

// sockets returns the configured sockets, or binds them.
func sockets(cfg *Config) (net.PacketConn, net.Listener, error) {
	if cfg.Packets != nil && cfg.Streams != nil {
		return cfg.Packets, cfg.Streams, nil
	}
	closeSockets(cfg.Packets, cfg.Streams)
	// Port 0 is chosen by the TCP socket, and may be taken for UDP.
	const attempts = 10
	for i := 1; ; i++ {
		listener, err := net.Listen("tcp", cfg.Bind)
		if err != nil {
			return nil, nil, err
		}
		packets, err := net.ListenPacket("udp", listener.Addr().String())
		if err == nil {
			return packets, listener, nil
		}
		listener.Close()
		if i == attempts {
			return nil, nil, err
		}
	}
}

func closeSockets(p net.PacketConn, l net.Listener) {
	if p != nil {
		p.Close()
	}
	if l != nil {
		l.Close()
	}
}

// advertised returns the address that others are sent.
func advertised(cfg *Config, packets net.PacketConn) (netip.AddrPort, error) {
	local, err := netip.ParseAddrPort(packets.LocalAddr().String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("bound address: %w", err)
	}
	a := local
	if cfg.Advertise != "" {
		if a, err = netip.ParseAddrPort(cfg.Advertise); err != nil {
			return netip.AddrPort{}, fmt.Errorf("advertised address %q: want ip:port: %w", cfg.Advertise, err)
		}
		if a.Port() == 0 {
			a = netip.AddrPortFrom(a.Addr(), local.Port())
		}
	}
	if a.Addr().IsUnspecified() {
		return netip.AddrPort{}, fmt.Errorf("bound to %s: an address to advertise is needed", local)
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()), nil
}

// Self returns this member's key.
func (g *Gossip) Self() Key { return g.self }

// Began returns the time from which gossip does its regular work, in whole intervals of its
// profile. Other regular work is best done at the same times, so that an idle process wakes up once
// for both.
func (g *Gossip) Began() time.Time { return g.began }

// Address returns the address under which others gossip with this member.
func (g *Gossip) Address() netip.AddrPort { return g.advertise }

// Wake returns a channel that receives when there is something to Take or TakeLossReports.
// One goroutine should receive from it.
func (g *Gossip) Wake() <-chan struct{} { return g.queue.wake }

// Take returns the changes since the last Take, at most one for each member:
// the newest. The member itself is never among them.
func (g *Gossip) Take() []Change { return g.queue.take() }

// Members returns the other members that are not gone, in no order. Of those that
// are not proven there may be changes to Take only.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Member
	for _, r := range g.members.records {
		if !r.gone && r.trusted {
			out = append(out, r.member)
		}
	}
	return out
}

// Recheck makes the Gossip ask soon for the proven members: there may be more than before. It does
// so about every second anyway.
func (g *Gossip) Recheck() { wait.Notify(g.recheck) }

// Health returns memberlist's opinion of this member's own timeliness: 0 is
// well, 7 is worst.
func (g *Gossip) Health() int { return g.list.GetHealthScore() }

// Update replaces this member's Meta. It does not wait until others know.
func (g *Gossip) Update(m Meta) error {
	m.Cluster = g.cfg.Cluster
	b, err := m.Append(nil)
	if err != nil {
		return err
	}
	g.update.lock()
	defer g.update.unlock()
	if g.left {
		return net.ErrClosed
	}
	g.setMeta(b)
	// UpdateNode queues the broadcast and then waits for it; the shortest
	// timeout makes it only queue.
	g.list.UpdateNode(1)
	return nil
}

func (g *Gossip) setMeta(b []byte) {
	g.mu.Lock()
	g.meta = b
	g.mu.Unlock()
}

// SetKeys replaces the keys. A rotation has three steps, each at every member
// before the next: add the new key last, move it to the front, drop the old.
func (g *Gossip) SetKeys(keys [][]byte) error {
	if len(keys) == 0 {
		return errors.New("gossip keys: none")
	}
	if err := g.sealer.set(keys); err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	for _, k := range keys {
		if err := g.keyring.AddKey(k); err != nil {
			return fmt.Errorf("gossip keys: %w", err)
		}
	}
	if err := g.keyring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	for _, old := range g.keyring.GetKeys() {
		if containsKey(keys, old) {
			continue
		}
		if err := g.keyring.RemoveKey(old); err != nil {
			return fmt.Errorf("gossip keys: %w", err)
		}
	}
	return nil
}

func containsKey(keys [][]byte, k []byte) bool {
	return slices.ContainsFunc(keys, func(x []byte) bool { return bytes.Equal(x, k) })
}

// Leave notifies the others that this member leaves, first with its flag and then
// in memberlist's own way. It returns when each of the two has reached some
// members, or does not within a probe timeout, or ctx is done in between; after
// it, only Close is of use.
func (g *Gossip) Leave(ctx context.Context) error {
	g.update.lock()
	if g.left {
		g.update.unlock()
		return nil
	}
	g.left = true // from here on no Update comes in between
	g.leaving = make(chan struct{})
	defer close(g.leaving)
	g.update.unlock()
	g.mu.Lock()
	m, err := DecodeMeta(g.meta)
	g.mu.Unlock()
	if err != nil {
		panic("BUG: gossip: own metadata does not decode: " + err.Error())
	}
	m.Leaving = true
	b, err := m.Append(nil)
	if err != nil {
		panic("BUG: gossip: own metadata does not encode: " + err.Error())
	}
	g.setMeta(b)
	// A later broadcast about a member replaces one that is still queued:
	// without sending the first, no member would receive the flag. Both calls would
	// wait for memberlist's next rounds; the shortest timeout, which they report
	// as an error, makes them only queue.
	g.list.UpdateNode(1)
	g.push()
	if ctx.Err() != nil {
		return fmt.Errorf("leave gossip: %w", context.Cause(ctx))
	}
	g.list.Leave(1)
	g.push()
	return nil
}

const (
	pushMembers = 16 // members that are notified at once; the others learn it from them
	pushCopies  = 2  // for each: one may be lost
)

// push sends queued changes now rather than with the next round: memberlist adds them to its pings.
// It returns when all have answered, or are given up, which takes one probe timeout of the profile.
func (g *Gossip) push() {
	members := g.Members() // in random order
	var pings sync.WaitGroup
	for _, m := range members[:min(len(members), pushMembers)] {
		for range pushCopies {
			pings.Go(func() {
				// A member that does not answer is found out by others.
				_, _ = g.list.Ping(m.Key().String(), net.UDPAddrFromAddrPort(m.Address))
			})
		}
	}
	pings.Wait()
}

// Close stops gossiping without a leave message; see Leave, for whose end it waits if it
// is under way. It closes the sockets and every stream and waits for all
// goroutines of this package. A probe of
// memberlist that is under way ends by its own timer, at most eight probe
// intervals later, and touches nothing of ours. No change comes after Close.
func (g *Gossip) Close() error {
	g.update.lock()
	g.left = true
	leaving := g.leaving
	g.update.unlock()
	if leaving != nil {
		<-leaving // memberlist's Leave must not meet its Shutdown
	}
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	err := g.list.Shutdown()
	g.wg.Wait()
	g.queue.close()
	g.lines.close()
	g.panics.Close()
	return err
}

// A latch is a lock that may be held across a wait: a goroutine that waits for
// it does not hold up virtual time in tests, as one that waits for a mutex does.
type latch chan struct{}

func (l latch) lock()   { l <- struct{}{} }
func (l latch) unlock() { <-l }
