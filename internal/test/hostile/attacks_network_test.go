package hostile

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/membership/gossip"
)

// A dialCount counts the connections that come to one port, whichever loopback
// address they are for.
type dialCount struct {
	l    net.Listener
	work sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	dials int
	hosts map[string]bool // that were dialed
}

func countDials() (*dialCount, error) {
	l, err := net.Listen("tcp4", "0.0.0.0:0") // all of 127.0.0.0/8 is here
	if err != nil {
		return nil, err
	}
	d := &dialCount{l: l, hosts: map[string]bool{}}
	d.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, _, _ := net.SplitHostPort(c.LocalAddr().String())
			d.mu.Lock()
			d.dials++
			d.hosts[to] = true
			d.mu.Unlock()
			d.work.Go(func() { // sends nothing: the dialer has to give up
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(3 * time.Second))
				_, _ = c.Read(make([]byte, 1<<10))
			})
		}
	})
	return d, nil
}

func (d *dialCount) port() int { return d.l.Addr().(*net.TCPAddr).Port }

// take returns the dials since the last take.
func (d *dialCount) take() (dials, hosts int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dials, hosts = d.dials, len(d.hosts)
	d.dials, d.hosts = 0, map[string]bool{}
	return dials, hosts
}

func (d *dialCount) close() {
	d.l.Close()
	d.work.Wait()
}

// sealGossip seals a message for UDP; see membership/gossip/SPEC.md.
func (b *badMember) sealGossip(message []byte) ([]byte, error) {
	block, err := aes.NewCipher(b.keyring.Keys()[0])
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	label := b.id.Cluster.String()
	nonce := make([]byte, gcm.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	packet := append([]byte{244, byte(len(label))}, label...)
	packet = append(append(packet, 1), nonce...)
	return gcm.Seal(packet, nonce, message, []byte(label)), nil
}

// aliveMessage says that a member gossips at an address.
func aliveMessage(name string, ip net.IP, port int, meta []byte) []byte {
	raw := func(b, v []byte) []byte {
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(v)))
		return append(b, v...)
	}
	key := func(b []byte, k string) []byte { return append(append(b, 0xa0|byte(len(k))), k...) }
	number := func(b []byte, n int) []byte { return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n)) }
	b := []byte{4, 0x86}
	b = number(key(b, "Incarnation"), 1)
	b = raw(key(b, "Node"), []byte(name))
	b = raw(key(b, "Addr"), ip.To4())
	b = number(key(b, "Port"), port)
	b = raw(key(b, "Meta"), meta)
	return raw(key(b, "Vsn"), []byte{1, 5, 2, 0, 0, 0})
}

// foundAgain bounds how long a cluster takes to come together with a host that has
// started again.
const foundAgain = 10 * time.Second

// reflected is how many members are made up, each with four addresses.
const reflected = 2000

// madeUp gossips about members that there are not, all of them hosts.
func (a *arena) madeUp(b *badMember, port int) error {
	conn, err := net.ListenPacket("udp", a.f.ip+":0")
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range reflected {
		ip := func(n int) net.IP { return net.IPv4(127, byte(10+n), byte(i>>8), byte(i)) }
		meta := gossip.Meta{Cluster: b.id.Cluster, Term: 1 << 40, Host: true, Serving: true, Providers: []string{"quic"}}
		for n := range 4 {
			meta.Addresses = append(meta.Addresses, fmt.Sprintf("%s:%d", ip(n), port))
		}
		encoded, err := meta.Append(nil)
		if err != nil {
			return err
		}
		packet, err := b.sealGossip(aliveMessage(fmt.Sprintf("%s.%d", newUUID(), i+1), ip(5), port, encoded))
		if err != nil {
			return err
		}
		for _, m := range a.f.nodes {
			to, err := net.ResolveUDPAddr("udp", m.gossips())
			if err != nil {
				return err
			}
			if _, err := conn.WriteTo(packet, to); err != nil {
				return err
			}
		}
		if i%64 == 63 {
			time.Sleep(10 * time.Millisecond) // a pace that a socket's buffer can take
		}
	}
	return nil
}

// attackReflection: F5. Addresses known only from gossip are dialed within bounds, with
// the host and without it, and the host is found again at once.
func attackReflection(a *arena) error {
	b, _, err := a.bad("reflector")
	if err != nil {
		return err
	}
	d, err := countDials()
	if err != nil {
		return err
	}
	defer d.close()
	before := a.f.most()
	nodes := len(a.f.nodes)
	const seconds = 6
	if err := a.madeUp(b, d.port()); err != nil {
		return err
	}
	time.Sleep(seconds * time.Second)
	var errs []error
	judge := func(when string, rate int) {
		dials, hosts := d.take()
		a.note("%s: %d connections to %d addresses in some %d s from %d nodes", when, dials, hosts, seconds, nodes)
		if most := nodes * seconds * rate; dials > most {
			errs = append(errs, fmt.Errorf("%s: %d connections to made-up members, want %d at most", when, dials, most))
		}
	}
	// A few members that are unproven are probed, which each node does in turn.
	judge("with the host", 8)
	host := a.f.host()
	a.w.excuse(host, true)
	host.kill()
	time.Sleep(seconds * time.Second)
	// At most 8 addresses each time that the host is looked for, 4 times a second.
	judge("without the host", 32)
	held := a.f.most()
	a.note("most of one node: RSS %d → %d MiB, descriptors %d → %d", before.RSS>>20, held.RSS>>20, before.Descriptors, held.Descriptors)
	if held.RSS > before.RSS+(64<<20) || held.Descriptors > 400 {
		errs = append(errs, fmt.Errorf("a node held %d MiB more and %d descriptors", (held.RSS-before.RSS)>>20, held.Descriptors))
	}
	began := time.Now()
	err = host.start()
	if err == nil {
		err = a.f.agree(2 * foundAgain)
	}
	took := time.Since(began)
	a.note("the host is found again after %v", took.Round(time.Millisecond))
	if took > foundAgain {
		errs = append(errs, fmt.Errorf("the host was found after %v only", took.Round(time.Millisecond)))
	}
	time.Sleep(time.Second) // applications that talked with the host do so again
	a.w.excuse(host, false)
	return errors.Join(append(errs, err)...)
}

// attackStrangers: F12. A peer without a certificate holds and writes little, and keeps
// no other peer out.
func attackStrangers(a *arena) error {
	return errors.Join(a.halfOpen(), a.silentTCP(), a.gossipStreams(), a.logLines())
}

// from dials over TCP from one address.
func from(ip net.IP, to string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}, Timeout: time.Second}
	return d.Dial("tcp", to)
}

// silentTCP holds one silent connection from each of 512 addresses at the host's data
// port, opened again whenever it is cut off, while an honest node starts.
func (a *arena) silentTCP() error {
	host := a.f.host().address()
	ctx, cancel := during(startLimit)
	defer cancel()
	var work sync.WaitGroup
	for i := range 512 {
		work.Go(func() {
			ip := net.IPv4(127, 99, byte(i>>4), byte(1+i&15))
			for ctx.Err() == nil {
				c, err := from(ip, host)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { c.Close() })
				_, _ = c.Read(make([]byte, 1))
				stop()
				c.Close()
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	err := a.returns(2 * time.Second)
	cancel()
	work.Wait()
	return err
}

// A mutedConn receives only packets that ask for a proof of its address (RETRY), so
// that handshakes over it begin and never end.
type mutedConn struct{ net.PacketConn }

func (c mutedConn) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(p)
		if err != nil || n > 0 && p[0]&0xf0 == 0xf0 {
			return n, from, err
		}
	}
}

// mostHalfOpen is more than the 256 handshakes take that a node has under way at once,
// some 150 KiB each. One address has a quarter of them, but on loopback, which all
// nodes of a machine share, it may have all.
const mostHalfOpen = 48 << 20

// halfOpen begins QUIC handshakes from one address and ends none.
func (a *arena) halfOpen() error {
	const providers, each = 16, 50
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{quic.ALPN}, MinVersion: tls.VersionTLS13,
		VerifyConnection: func(tls.ConnectionState) error { return nil }}
	host := a.f.host()
	before := host.usage()
	ctx, cancel := during(3 * time.Second)
	defer cancel()
	var work sync.WaitGroup
	for range providers {
		socket, err := net.ListenPacket("udp", "127.98.0.1:0")
		if err != nil {
			return err
		}
		p, err := quic.New(quic.Config{PacketConn: mutedConn{socket}, Config: network.Config{Log: zerolog.Nop(), Identify: identify,
			ServerTLS: func() *tls.Config { return config }, ClientTLS: func() *tls.Config { return config }}})
		if err != nil {
			return err
		}
		defer p.Close()
		for range each {
			work.Go(func() { _, _ = p.Dial(ctx, host.address()) }) // fails, as it should
		}
	}
	most := before.RSS
	for ctx.Err() == nil {
		most = max(most, host.usage().RSS)
		time.Sleep(50 * time.Millisecond)
	}
	work.Wait()
	a.note("%d half-open QUIC handshakes of one address: the host's RSS %d → %d MiB", providers*each, before.RSS>>20, most>>20)
	if most-before.RSS > mostHalfOpen {
		return fmt.Errorf("half-open handshakes of one address took %d MiB of the host", (most-before.RSS)>>20)
	}
	return nil
}

// gossipStreams holds all streams that two strangers can have at the host's gossip
// port. One from a node's address is served all the same.
func (a *arena) gossipStreams() error {
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	host := a.f.host().gossips()
	for _, last := range []byte{2, 3} {
		for range 40 {
			if c, err := from(net.IPv4(127, 97, 0, last), host); err == nil {
				held = append(held, c)
			}
		}
	}
	time.Sleep(100 * time.Millisecond)
	c, err := from(net.ParseIP(a.f.ip), host)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, err = c.Read(make([]byte, 1))
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		a.note("a gossip stream of a node's address is taken beside those of strangers")
		return nil
	}
	return fmt.Errorf("strangers at two addresses hold all gossip streams: %w", err)
}

// logLines has the host refuse connections for two seconds.
func (a *arena) logLines() error {
	host := a.f.host()
	before, refused := len(host.log()), 0
	for began := time.Now(); time.Since(began) < 2*time.Second; refused++ {
		c, err := from(net.IPv4(127, 96, 0, byte(1+refused%200)), host.address())
		if err != nil {
			continue
		}
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		c.Close()
		time.Sleep(time.Millisecond)
	}
	grown := len(host.log()) - before
	a.note("%d refused connections wrote %d KiB of log", refused, grown>>10)
	if grown > 64<<10 {
		return fmt.Errorf("%d refused connections wrote %d KiB of log", refused, grown>>10)
	}
	return nil
}
