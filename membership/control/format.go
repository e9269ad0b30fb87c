package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A format writes and reads the body of one type of frame.
type format struct {
	of    reflect.Type
	write func(e *encoder, f any)
	read  func(d *decoder) any
}

// body returns the format of a frame whose fields are listed once, for both directions.
func body[T any](fields func(coder, *T)) format {
	return format{
		of: reflect.TypeFor[T](),
		write: func(e *encoder, f any) {
			v := f.(T)
			fields(writer(e), &v)
		},
		read: func(d *decoder) any {
			var v T
			fields(reader(d), &v)
			return v
		},
	}
}

// formats are those of all frames.
var formats = map[frameType]format{
	typeHello: body(func(c coder, f *Hello) {
		u16(c, &f.VersionMin)
		u16(c, &f.VersionMax)
		c.uuid(&f.Cluster)
		c.end(&f.From)
		c.bytes(&f.Lease, verdict.MaxLease)
		c.uuid(&f.To.UUID)
		c.u64(&f.To.Epoch)
		c.incarnation(&f.To.Incarnation)
		c.bytes(&f.Challenge, verdict.MaxChallenge)
	}),
	typeWelcome: body(func(c coder, f *Welcome) {
		u16(c, &f.Version)
		c.end(&f.From)
		c.bytes(&f.Lease, verdict.MaxLease)
		c.bytes(&f.Proof, verdict.MaxProof)
	}),
	typeRefuse: body(func(c coder, f *Refuse) {
		u8(c, &f.Code)
		u16(c, &f.VersionMin)
		u16(c, &f.VersionMax)
		c.words(&f.Text, MaxText)
	}),
	typeClose: body(func(c coder, f *Close) { c.words(&f.Text, MaxText) }),
	typeBeat:  body(func(c coder, f *Beat) { c.u64(&f.Seq) }),
	typeJoinAsk: body(func(c coder, f *JoinAsk) {
		u16(c, &f.VersionMin)
		u16(c, &f.VersionMax)
		c.text(&f.Name, verdict.MaxName)
		c.fixed(f.Token[:])
		c.fixed(f.Proof[:])
		c.bytes(&f.Request, maxCertificate)
	}),
	typeJoinGrant: body(func(c coder, f *JoinGrant) {
		c.uuid(&f.Cluster)
		c.uuid(&f.Host)
		c.uuid(&f.Node)
		c.bytes(&f.Certificate, maxCertificate)
		c.blobs(&f.Roots, maxRoots, maxCertificate)
		c.bytes(&f.Keyring, maxKeyring)
		c.text(&f.Gossip, verdict.MaxAddress)
	}),
	typeRenew: body(func(c coder, f *Renew) { c.bytes(&f.Request, maxCertificate) }),
	typeCertificate: body(func(c coder, f *Certificate) {
		c.bytes(&f.Certificate, maxCertificate)
		c.blobs(&f.Roots, maxRoots, maxCertificate)
		c.words(&f.Text, MaxText)
	}),
	typeKeys: body(func(c coder, f *Keys) {
		c.u64(&f.Seq)
		c.bytes(&f.Keyring, maxKeyring)
	}),
	typeKeysHeld: body(func(c coder, f *KeysHeld) { c.u64(&f.Seq) }),
	typeRoots: body(func(c coder, f *Roots) {
		c.u64(&f.Seq)
		c.blobs(&f.Roots, maxRoots, maxCertificate)
		c.flag(&f.Renew)
	}),
	typeRootsHeld: body(func(c coder, f *RootsHeld) { c.u64(&f.Seq) }),
	typeBans: body(func(c coder, f *Bans) {
		c.flag(&f.First)
		c.flag(&f.Last)
		list(c, &f.Nodes, maxBans, c.uuid)
	}),
	typeServices: body(func(c coder, f *services.List) {
		c.incarnation(&f.Incarnation)
		c.u64(&f.Seq)
		list(c, &f.Services, services.MaxPerNode, func(s *services.Service) {
			c.text(&s.Name, addr.MaxService)
			u16(c, &s.Port)
		})
		c.check(f.Check) // that a node can have these
	}),

	typeJoin: body(coder.join),
	typeJoinWant: body(func(c coder, f *verdict.Join) {
		c.join(f)
		u16(c, &f.Want)
		c.check(func() error {
			if f.Want == 0 {
				return errors.New("a join for no ID")
			}
			return nil
		})
	}),
	typeResume: body(func(c coder, f *verdict.Resume) {
		c.claim(&f.Identity, &f.Incarnation, &f.Term, &f.Lease)
		u32(c, &f.HostOver)
	}),
	typeLeave: body(func(c coder, f *verdict.Leave) { c.incarnation(&f.Incarnation) }),
	typeReport: body(func(c coder, f *verdict.Report) {
		c.incarnation(&f.About)
		u8(c, &f.Evidence)
	}),
	typeCheck: body(func(c coder, f *verdict.Check) {
		c.u64(&f.Nonce)
		c.contact(&f.Contact)
		c.bytes(&f.Challenge, verdict.MaxChallenge)
	}),
	typeCheckResult: body(func(c coder, f *verdict.CheckResult) {
		c.u64(&f.Nonce)
		c.incarnation(&f.Target)
		c.flag(&f.Reached)
		c.bytes(&f.Proof, verdict.MaxProof)
	}),
	typeAck: body(func(c coder, f *verdict.Ack) { c.incarnation(&f.Incarnation) }),
	typePing: body(func(c coder, f *verdict.Ping) {
		c.incarnation(&f.Incarnation)
		c.u64(&f.Nonce)
		c.u64(&f.Version)
	}),
	typePong: body(func(c coder, f *verdict.Pong) {
		c.u64(&f.Term)
		c.u64(&f.Nonce)
		c.u64(&f.Version)
	}),
	typeSync: body(func(coder, *verdict.Sync) {}),
	typeGrant: body(func(c coder, f *verdict.Grant) {
		c.u64(&f.Term)
		c.incarnation(&f.Incarnation)
		c.bytes(&f.Lease, verdict.MaxLease)
	}),
	typeRefused: body(func(c coder, f *verdict.Refused) {
		c.u64(&f.Term)
		u8(c, &f.Code)
		c.words(&f.Text, verdict.MaxText)
	}),
	typeTable: body(func(c coder, f *verdict.Table) {
		c.u64(&f.Term)
		c.u64(&f.Version)
		c.flag(&f.First)
		c.flag(&f.Last)
		list(c, &f.Entries, verdict.MaxEntries, c.entry)
	}),
	typeDelta: body(func(c coder, f *verdict.Delta) {
		c.u64(&f.Term)
		c.u64(&f.Version)
		list(c, &f.Entries, verdict.MaxDelta, c.entry)
	}),
	typeRemoved: body(func(c coder, f *verdict.RemovedIncarnation) {
		c.u64(&f.Term)
		c.u64(&f.Version)
		c.incarnation(&f.Incarnation)
		c.reason(&f.Reason)
	}),
}

// typeOf returns the type of a frame by its Go type; that of a join without Want.
var typeOf = func() map[reflect.Type]frameType {
	types := make(map[reflect.Type]frameType)
	for t, f := range formats {
		if t != typeJoinWant {
			types[f.of] = t
		}
	}
	return types
}()

func (c coder) end(p *End) {
	c.uuid(&p.UUID)
	c.u64(&p.Epoch)
	c.incarnation(&p.Incarnation)
	c.u64(&p.Term)
	c.flag(&p.Host)
}

func (c coder) join(f *verdict.Join) { c.claim(&f.Identity, &f.Previous, &f.Term, &f.Lease) }

// claim is what a Join and a Resume have in common.
func (c coder) claim(id *verdict.Identity, incarnation *addr.Incarnation, term *uint64, lease *[]byte) {
	c.uuid(&id.UUID)
	c.u64(&id.Epoch)
	c.incarnation(incarnation)
	name := id.Name()
	c.text(&name, verdict.MaxName)
	c.claims(&id.Claims, name, true)
	c.u64(term)
	c.bytes(lease, verdict.MaxLease)
}

// claims are a node's beside its name. Claims that no node can make make the frame malformed, as do
// those of a node that has none.
func (c coder) claims(v *verdict.Claims, name string, has bool) {
	addresses, providers := v.Addresses(), v.Providers()
	c.texts(&addresses, verdict.MaxAddresses, verdict.MaxAddress)
	c.texts(&providers, verdict.MaxProviders, verdict.MaxProvider)
	c.check(func() (err error) {
		if has {
			*v, err = verdict.NewClaims(name, addresses, providers)
		} else if len(addresses)+len(providers) > 0 {
			err = errors.New("addresses or providers of a node without a name")
		}
		return err
	})
}

func (c coder) contact(v *verdict.Contact) {
	incarnation, uuid, epoch, addresses := v.Incarnation, v.UUID, v.Epoch, v.Addresses()
	c.incarnation(&incarnation)
	c.uuid(&uuid)
	c.u64(&epoch)
	c.texts(&addresses, verdict.MaxAddresses, verdict.MaxAddress)
	c.check(func() (err error) {
		*v, err = verdict.NewContact(incarnation, uuid, epoch, addresses)
		return err
	})
}

// entry is a line of the table. Only that of an incarnation which goes on, and which the
// host knows, has claims.
func (c coder) entry(x *verdict.Entry) {
	n := &x.Node
	c.incarnation(&n.Incarnation)
	c.uuid(&n.UUID)
	c.u64(&n.Epoch)
	name := n.Name()
	c.text(&name, verdict.MaxName)
	u8(c, &n.State)
	c.claims(&n.Claims, name, name != "" || n.State == verdict.Alive)
	c.texts(&n.Labels, verdict.MaxLabels, verdict.MaxLabel)
	c.check(func() error {
		if slices.ContainsFunc(n.Labels, func(l string) bool { return !addr.ValidName(l) }) {
			return fmt.Errorf("the labels %.80q: want words", n.Labels)
		}
		return nil
	})
	c.time(&n.Until)
	c.time(&n.Since)
	c.reason(&x.Reason)
}

// AppendFrame appends the frame of f, one of this package's frames or a message
// of package verdict, to b. It fails with [ErrTooLarge] if a value is beyond its
// limit; b is then unchanged.
func AppendFrame(b []byte, f any) ([]byte, error) {
	t, ok := typeOf[reflect.TypeOf(f)]
	if !ok {
		panic(fmt.Sprintf("BUG: control: no frame for %T", f))
	}
	if j, is := f.(verdict.Join); is && j.Want != 0 {
		t = typeJoinWant
	}
	e := to(append(b, 0, 0, 0, 0, byte(t)))
	formats[t].write(&e, f)
	out := e.Encoded()
	body := len(out) - len(b) - HeaderLen
	if !e.OK() || body > MaxBody {
		return b, fmt.Errorf("%w: %T", ErrTooLarge, f)
	}
	binary.BigEndian.PutUint32(out[len(b):], uint32(body))
	return out, nil
}

// parseBody parses the body of a frame of type t, which fills b exactly. The result keeps no
// reference to b. Enumerations are passed on as they are: their user decides the meaning of an
// unknown one.
func parseBody(t frameType, b []byte) (any, error) {
	format, ok := formats[t]
	if !ok {
		return nil, ErrMalformed
	}
	d := from(b)
	f := format.read(&d)
	switch {
	case d.why != nil:
		return nil, fmt.Errorf("%w: %w", ErrMalformed, d.why)
	case !d.Whole():
		return nil, ErrMalformed
	}
	return f, nil
}

// splitTable cuts a table whose frame would be too large into parts that fit.
func splitTable(m verdict.Table) []verdict.Table {
	if _, err := AppendFrame(nil, m); err == nil || len(m.Entries) < 2 {
		return []verdict.Table{m}
	}
	half := len(m.Entries) / 2
	left, right := m, m
	left.Entries, left.Last = m.Entries[:half], false
	right.Entries, right.First = m.Entries[half:], false
	return append(splitTable(left), splitTable(right)...)
}
