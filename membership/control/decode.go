package control

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// parseBody parses the body of a frame of type t, which fills b exactly. What
// it returns keeps no reference to b. Enumerations are passed on as they are:
// who uses them decides what an unknown one means.
func parseBody(t frameType, b []byte) (any, error) {
	d := decoder{b: b}
	f := d.frame(t)
	switch {
	case d.why != nil:
		return nil, fmt.Errorf("%w: %w", ErrMalformed, d.why)
	case f == nil || !d.finished():
		return nil, ErrMalformed
	}
	return f, nil
}

// frame reads the body of a frame of type t; nil if there is no such type.
func (d *decoder) frame(t frameType) any {
	switch t {
	case typeHello:
		return Hello{
			VersionMin: d.u16(),
			VersionMax: d.u16(),
			Cluster:    d.uuid(),
			From:       d.end(),
			Lease:      d.bytes(verdict.MaxLease),
			To:         Target{UUID: d.uuid(), Epoch: d.u64(), Life: d.life()},
			Challenge:  d.bytes(verdict.MaxChallenge),
		}
	case typeWelcome:
		return Welcome{Version: d.u16(), From: d.end(), Lease: d.bytes(verdict.MaxLease), Proof: d.bytes(verdict.MaxProof)}
	case typeRefuse:
		return Refuse{Code: Code(d.u8()), VersionMin: d.u16(), VersionMax: d.u16(), Text: d.words(MaxText)}
	case typeClose:
		return Close{Text: d.words(MaxText)}
	case typeBeat:
		return Beat{Seq: d.u64()}
	case typeJoinAsk:
		return d.joinAsk()
	case typeJoinGrant:
		return d.joinGrant()
	case typeRenew:
		return Renew{Request: d.bytes(maxCertificate)}
	case typeCertificate:
		return Certificate{Certificate: d.bytes(maxCertificate), Roots: d.blobs(maxRoots, maxCertificate), Text: d.words(MaxText)}
	case typeKeys:
		return Keys{Seq: d.u64(), Keyring: d.bytes(maxKeyring)}
	case typeKeysHeld:
		return KeysHeld{Seq: d.u64()}
	case typeRoots:
		return Roots{Seq: d.u64(), Roots: d.blobs(maxRoots, maxCertificate), Renew: d.bool()}
	case typeRootsHeld:
		return RootsHeld{Seq: d.u64()}
	case typeBans:
		return Bans{First: d.bool(), Last: d.bool(), Nodes: d.uuids(maxBans)}
	case typeServices:
		return d.services()
	}
	if m := d.message(t); m != nil {
		return m
	}
	return nil
}

// services reads what a life serves. What no node can serve makes the frame malformed.
func (d *decoder) services() services.List {
	l := services.List{Life: d.life(), Seq: d.u64()}
	for range d.count(services.MaxPerNode) {
		if d.bad {
			break
		}
		l.Services = append(l.Services, services.Service{Name: d.text(addr.MaxService), Port: addr.Port(d.u16())})
	}
	d.fault(l.Check())
	return l
}

func (d *decoder) end() End {
	return End{UUID: d.uuid(), Epoch: d.u64(), Life: d.life(), Term: d.u64(), Host: d.bool()}
}

func (d *decoder) joinAsk() JoinAsk {
	f := JoinAsk{VersionMin: d.u16(), VersionMax: d.u16(), Name: d.text(verdict.MaxName)}
	copy(f.Token[:], d.take(len(f.Token)))
	copy(f.Proof[:], d.take(len(f.Proof)))
	f.Request = d.bytes(maxCertificate)
	return f
}

func (d *decoder) joinGrant() JoinGrant {
	return JoinGrant{
		Cluster:     d.uuid(),
		Host:        d.uuid(),
		Node:        d.uuid(),
		Certificate: d.bytes(maxCertificate),
		Roots:       d.blobs(maxRoots, maxCertificate),
		Keyring:     d.bytes(maxKeyring),
		Gossip:      d.text(verdict.MaxAddress),
	}
}

// message reads the body of a message of package verdict; nil if t is none.
func (d *decoder) message(t frameType) verdict.Message {
	switch t {
	case typeJoin:
		c := d.claim()
		return verdict.Join{Identity: c.Identity, Previous: c.Life, Term: c.Term, Lease: c.Lease}
	case typeResume:
		c := d.claim()
		c.HostOver = addr.Generation(d.u32())
		return c
	case typeLeave:
		return verdict.Leave{Life: d.life()}
	case typeReport:
		return verdict.Report{About: d.life(), Evidence: verdict.Evidence(d.u8())}
	case typeCheck:
		return verdict.Check{Nonce: d.u64(), Contact: d.contact(), Challenge: d.bytes(verdict.MaxChallenge)}
	case typeCheckResult:
		return verdict.CheckResult{Nonce: d.u64(), Target: d.life(), Reached: d.bool(), Proof: d.bytes(verdict.MaxProof)}
	case typeAck:
		return verdict.Ack{Life: d.life()}
	case typePing:
		return verdict.Ping{Life: d.life(), Nonce: d.u64(), Version: d.u64()}
	case typePong:
		return verdict.Pong{Term: d.u64(), Nonce: d.u64(), Version: d.u64()}
	case typeSync:
		return verdict.Sync{}
	case typeGrant:
		return verdict.Grant{Term: d.u64(), Life: d.life(), Lease: d.bytes(verdict.MaxLease)}
	case typeRefused:
		return verdict.Refused{Term: d.u64(), Code: verdict.Refusal(d.u8()), Text: d.words(verdict.MaxText)}
	case typeTable:
		return d.table()
	case typeDelta:
		return verdict.Delta{Term: d.u64(), Version: d.u64(), Entries: d.entries(verdict.MaxNews)}
	case typeRemoved:
		return verdict.RemovedLife{Term: d.u64(), Version: d.u64(), Life: d.life(),
			Reason: verdict.Reason(d.words(verdict.MaxReason))}
	}
	return nil
}

// claim reads what a Join and a Resume have in common.
func (d *decoder) claim() (m verdict.Resume) {
	m.UUID, m.Epoch, m.Life = d.uuid(), d.u64(), d.life()
	m.Claims = d.claims(d.text(verdict.MaxName))
	m.Term, m.Lease = d.u64(), d.bytes(verdict.MaxLease)
	return m
}

// claims reads the rest of what a node says of itself. What no node can say makes
// the frame malformed.
func (d *decoder) claims(name string) verdict.Claims {
	addresses := d.texts(verdict.MaxAddresses, verdict.MaxAddress)
	c, err := verdict.NewClaims(name, addresses, d.texts(verdict.MaxProviders, verdict.MaxProvider))
	d.fault(err)
	return c
}

func (d *decoder) contact() verdict.Contact {
	c, err := verdict.NewContact(d.life(), d.uuid(), d.u64(), d.texts(verdict.MaxAddresses, verdict.MaxAddress))
	d.fault(err)
	return c
}

func (d *decoder) table() verdict.Table {
	return verdict.Table{Term: d.u64(), Version: d.u64(), First: d.bool(), Last: d.bool(), Entries: d.entries(verdict.MaxEntries)}
}

func (d *decoder) entries(limit int) (list []verdict.Entry) {
	for range d.count(limit) {
		if d.bad {
			break
		}
		list = append(list, d.entry())
	}
	return list
}

// entry reads a line of the table. Only that of a life which goes on, and which the
// host has heard of, has claims.
func (d *decoder) entry() (e verdict.Entry) {
	n := &e.Node
	n.Life, n.UUID, n.Epoch = d.life(), d.uuid(), d.u64()
	name := d.text(verdict.MaxName)
	n.State = verdict.State(d.u8())
	if name != "" || n.State == verdict.Alive {
		n.Claims = d.claims(name)
	} else if addresses, providers := d.u8(), d.u8(); addresses|providers != 0 {
		d.fault(errors.New("addresses or providers of a node without a name"))
	}
	n.Labels = d.texts(verdict.MaxLabels, verdict.MaxLabel)
	if slices.ContainsFunc(n.Labels, func(l string) bool { return !addr.ValidName(l) }) {
		d.fault(fmt.Errorf("the labels %.80q: want words", n.Labels))
	}
	n.Until, n.Since = d.time(), d.time()
	e.Reason = verdict.Reason(d.words(verdict.MaxReason))
	return e
}
