package control

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// parseBody parses the body of a frame of type t, which fills b exactly. The result keeps no
// reference to b. Enumerations are passed on as they are: their user decides the meaning of an
// unknown one.
func parseBody(t frameType, b []byte) (any, error) {
	d := from(b)
	f := d.frame(t)
	switch {
	case d.why != nil:
		return nil, fmt.Errorf("%w: %w", ErrMalformed, d.why)
	case f == nil || !d.Whole():
		return nil, ErrMalformed
	}
	return f, nil
}

// frame reads the body of a frame of type t; nil if there is no such type.
func (d *decoder) frame(t frameType) any {
	switch t {
	case typeHello:
		return Hello{
			VersionMin: d.U16(),
			VersionMax: d.U16(),
			Cluster:    d.UUID(),
			From:       d.end(),
			Lease:      d.Bytes(verdict.MaxLease),
			To:         Target{UUID: d.UUID(), Epoch: d.U64(), Incarnation: d.Incarnation()},
			Challenge:  d.Bytes(verdict.MaxChallenge),
		}
	case typeWelcome:
		return Welcome{Version: d.U16(), From: d.end(), Lease: d.Bytes(verdict.MaxLease), Proof: d.Bytes(verdict.MaxProof)}
	case typeRefuse:
		return Refuse{Code: Code(d.U8()), VersionMin: d.U16(), VersionMax: d.U16(), Text: d.words(MaxText)}
	case typeClose:
		return Close{Text: d.words(MaxText)}
	case typeBeat:
		return Beat{Seq: d.U64()}
	case typeJoinAsk:
		return d.joinAsk()
	case typeJoinGrant:
		return d.joinGrant()
	case typeRenew:
		return Renew{Request: d.Bytes(maxCertificate)}
	case typeCertificate:
		return Certificate{Certificate: d.Bytes(maxCertificate), Roots: d.blobs(maxRoots, maxCertificate), Text: d.words(MaxText)}
	case typeKeys:
		return Keys{Seq: d.U64(), Keyring: d.Bytes(maxKeyring)}
	case typeKeysHeld:
		return KeysHeld{Seq: d.U64()}
	case typeRoots:
		return Roots{Seq: d.U64(), Roots: d.blobs(maxRoots, maxCertificate), Renew: d.Bool()}
	case typeRootsHeld:
		return RootsHeld{Seq: d.U64()}
	case typeBans:
		return Bans{First: d.Bool(), Last: d.Bool(), Nodes: d.uuids(maxBans)}
	case typeServices:
		return d.services()
	}
	if m := d.message(t); m != nil {
		return m
	}
	return nil
}

// services reads the services of an incarnation. A service that no node can have makes the frame malformed.
func (d *decoder) services() services.List {
	l := services.List{Incarnation: d.Incarnation(), Seq: d.U64()}
	l.Services = codec.List(&d.Decoder, services.MaxPerNode, func() services.Service {
		return services.Service{Name: d.Text(addr.MaxService), Port: addr.Port(d.U16())}
	})
	d.fault(l.Check())
	return l
}

func (d *decoder) end() End {
	return End{UUID: d.UUID(), Epoch: d.U64(), Incarnation: d.Incarnation(), Term: d.U64(), Host: d.Bool()}
}

func (d *decoder) joinAsk() JoinAsk {
	f := JoinAsk{VersionMin: d.U16(), VersionMax: d.U16(), Name: d.Text(verdict.MaxName)}
	copy(f.Token[:], d.Take(len(f.Token)))
	copy(f.Proof[:], d.Take(len(f.Proof)))
	f.Request = d.Bytes(maxCertificate)
	return f
}

func (d *decoder) joinGrant() JoinGrant {
	return JoinGrant{
		Cluster:     d.UUID(),
		Host:        d.UUID(),
		Node:        d.UUID(),
		Certificate: d.Bytes(maxCertificate),
		Roots:       d.blobs(maxRoots, maxCertificate),
		Keyring:     d.Bytes(maxKeyring),
		Gossip:      d.Text(verdict.MaxAddress),
	}
}

// message reads the body of a message of package verdict; nil if t is none.
func (d *decoder) message(t frameType) verdict.Message {
	switch t {
	case typeJoin:
		return d.join()
	case typeJoinWant:
		m := d.join()
		m.Want = addr.NodeID(d.U16())
		d.Require(m.Want != 0)
		return m
	case typeResume:
		c := d.claim()
		c.HostOver = addr.Generation(d.U32())
		return c
	case typeLeave:
		return verdict.Leave{Incarnation: d.Incarnation()}
	case typeReport:
		return verdict.Report{About: d.Incarnation(), Evidence: verdict.Evidence(d.U8())}
	case typeCheck:
		return verdict.Check{Nonce: d.U64(), Contact: d.contact(), Challenge: d.Bytes(verdict.MaxChallenge)}
	case typeCheckResult:
		return verdict.CheckResult{Nonce: d.U64(), Target: d.Incarnation(), Reached: d.Bool(), Proof: d.Bytes(verdict.MaxProof)}
	case typeAck:
		return verdict.Ack{Incarnation: d.Incarnation()}
	case typePing:
		return verdict.Ping{Incarnation: d.Incarnation(), Nonce: d.U64(), Version: d.U64()}
	case typePong:
		return verdict.Pong{Term: d.U64(), Nonce: d.U64(), Version: d.U64()}
	case typeSync:
		return verdict.Sync{}
	case typeGrant:
		return verdict.Grant{Term: d.U64(), Incarnation: d.Incarnation(), Lease: d.Bytes(verdict.MaxLease)}
	case typeRefused:
		return verdict.Refused{Term: d.U64(), Code: verdict.Refusal(d.U8()), Text: d.words(verdict.MaxText)}
	case typeTable:
		return d.table()
	case typeDelta:
		return verdict.Delta{Term: d.U64(), Version: d.U64(), Entries: d.entries(verdict.MaxNews)}
	case typeRemoved:
		return verdict.RemovedIncarnation{Term: d.U64(), Version: d.U64(), Incarnation: d.Incarnation(),
			Reason: verdict.Reason(d.words(verdict.MaxReason))}
	}
	return nil
}

func (d *decoder) join() verdict.Join {
	c := d.claim()
	return verdict.Join{Identity: c.Identity, Previous: c.Incarnation, Term: c.Term, Lease: c.Lease}
}

// claim reads what a Join and a Resume have in common.
func (d *decoder) claim() (m verdict.Resume) {
	m.UUID, m.Epoch, m.Incarnation = d.UUID(), d.U64(), d.Incarnation()
	m.Claims = d.claims(d.Text(verdict.MaxName))
	m.Term, m.Lease = d.U64(), d.Bytes(verdict.MaxLease)
	return m
}

// claims reads the rest of a node's claims. A claim that no node can make makes the frame
// malformed.
func (d *decoder) claims(name string) verdict.Claims {
	addresses := d.texts(verdict.MaxAddresses, verdict.MaxAddress)
	c, err := verdict.NewClaims(name, addresses, d.texts(verdict.MaxProviders, verdict.MaxProvider))
	d.fault(err)
	return c
}

func (d *decoder) contact() verdict.Contact {
	c, err := verdict.NewContact(d.Incarnation(), d.UUID(), d.U64(), d.texts(verdict.MaxAddresses, verdict.MaxAddress))
	d.fault(err)
	return c
}

func (d *decoder) table() verdict.Table {
	return verdict.Table{Term: d.U64(), Version: d.U64(), First: d.Bool(), Last: d.Bool(), Entries: d.entries(verdict.MaxEntries)}
}

func (d *decoder) entries(limit int) []verdict.Entry {
	return codec.List(&d.Decoder, limit, d.entry)
}

// entry reads a line of the table. Only that of an incarnation which goes on, and which the
// host has heard of, has claims.
func (d *decoder) entry() (e verdict.Entry) {
	n := &e.Node
	n.Incarnation, n.UUID, n.Epoch = d.Incarnation(), d.UUID(), d.U64()
	name := d.Text(verdict.MaxName)
	n.State = verdict.State(d.U8())
	if name != "" || n.State == verdict.Alive {
		n.Claims = d.claims(name)
	} else if addresses, providers := d.U8(), d.U8(); addresses|providers != 0 {
		d.fault(errors.New("addresses or providers of a node without a name"))
	}
	n.Labels = d.texts(verdict.MaxLabels, verdict.MaxLabel)
	if slices.ContainsFunc(n.Labels, func(l string) bool { return !addr.ValidName(l) }) {
		d.fault(fmt.Errorf("the labels %.80q: want words", n.Labels))
	}
	n.Until, n.Since = d.Time(), d.Time()
	e.Reason = verdict.Reason(d.words(verdict.MaxReason))
	return e
}
