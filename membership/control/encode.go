package control

import (
	"encoding/binary"
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// AppendFrame appends the frame of f, one of this package's frames or a message
// of package verdict, to b. It fails with [ErrTooLarge] if a value is beyond its
// limit; b is then unchanged.
func AppendFrame(b []byte, f any) ([]byte, error) {
	e := encoder{codec.To(append(b, 0, 0, 0, 0, 0))}
	t := e.frame(f)
	out := e.Encoded()
	body := len(out) - len(b) - HeaderLen
	if !e.OK() || body > MaxBody {
		return b, fmt.Errorf("%w: %T", ErrTooLarge, f)
	}
	binary.BigEndian.PutUint32(out[len(b):], uint32(body))
	out[len(b)+4] = byte(t)
	return out, nil
}

// frame appends f's body and returns its type.
func (e *encoder) frame(f any) frameType {
	switch f := f.(type) {
	case Hello:
		e.U16(f.VersionMin)
		e.U16(f.VersionMax)
		e.UUID(f.Cluster)
		e.end(f.From)
		e.Bytes(f.Lease, verdict.MaxLease)
		e.UUID(f.To.UUID)
		e.U64(f.To.Epoch)
		e.Incarnation(f.To.Incarnation)
		e.Bytes(f.Challenge, verdict.MaxChallenge)
		return typeHello
	case Welcome:
		e.U16(f.Version)
		e.end(f.From)
		e.Bytes(f.Lease, verdict.MaxLease)
		e.Bytes(f.Proof, verdict.MaxProof)
		return typeWelcome
	case Refuse:
		e.U8(uint8(f.Code))
		e.U16(f.VersionMin)
		e.U16(f.VersionMax)
		e.words(f.Text, MaxText)
		return typeRefuse
	case Close:
		e.words(f.Text, MaxText)
		return typeClose
	case Beat:
		e.U64(f.Seq)
		return typeBeat
	case JoinAsk:
		e.joinAsk(f)
		return typeJoinAsk
	case JoinGrant:
		e.joinGrant(f)
		return typeJoinGrant
	case Renew:
		e.Bytes(f.Request, maxCertificate)
		return typeRenew
	case Certificate:
		e.Bytes(f.Certificate, maxCertificate)
		e.blobs(f.Roots, maxRoots, maxCertificate)
		e.words(f.Text, MaxText)
		return typeCertificate
	case Keys:
		e.U64(f.Seq)
		e.Bytes(f.Keyring, maxKeyring)
		return typeKeys
	case KeysHeld:
		e.U64(f.Seq)
		return typeKeysHeld
	case Roots, RootsHeld, Bans:
		return e.trusted(f)
	case services.List:
		return e.services(f)
	case verdict.Message:
		return e.message(f)
	}
	panic(fmt.Sprintf("BUG: control: no frame for %T", f))
}

// trusted is frame for the messages about trusted keys.
func (e *encoder) trusted(f any) frameType {
	switch f := f.(type) {
	case Roots:
		e.U64(f.Seq)
		e.blobs(f.Roots, maxRoots, maxCertificate)
		e.Bool(f.Renew)
		return typeRoots
	case RootsHeld:
		e.U64(f.Seq)
		return typeRootsHeld
	case Bans:
		e.Bool(f.First)
		e.Bool(f.Last)
		e.Count(len(f.Nodes), maxBans)
		for _, u := range f.Nodes {
			e.UUID(u)
		}
		return typeBans
	}
	panic(fmt.Sprintf("BUG: control: no frame for %T", f))
}

func (e *encoder) services(l services.List) frameType {
	e.Incarnation(l.Incarnation)
	e.U64(l.Seq)
	e.Count(len(l.Services), services.MaxPerNode)
	for _, s := range l.Services {
		e.Text(s.Name, addr.MaxService)
		e.U16(uint16(s.Port))
	}
	return typeServices
}

func (e *encoder) end(p End) {
	e.UUID(p.UUID)
	e.U64(p.Epoch)
	e.Incarnation(p.Incarnation)
	e.U64(p.Term)
	e.Bool(p.Host)
}

func (e *encoder) joinAsk(f JoinAsk) {
	e.U16(f.VersionMin)
	e.U16(f.VersionMax)
	e.Text(f.Name, verdict.MaxName)
	e.Fixed(f.Token[:])
	e.Fixed(f.Proof[:])
	e.Bytes(f.Request, maxCertificate)
}

func (e *encoder) joinGrant(f JoinGrant) {
	e.UUID(f.Cluster)
	e.UUID(f.Host)
	e.UUID(f.Node)
	e.Bytes(f.Certificate, maxCertificate)
	e.blobs(f.Roots, maxRoots, maxCertificate)
	e.Bytes(f.Keyring, maxKeyring)
	e.Text(f.Gossip, verdict.MaxAddress)
}

// message appends m's body and returns its type.
func (e *encoder) message(m verdict.Message) frameType {
	switch m := m.(type) {
	case verdict.Join:
		e.claim(m.Identity, m.Previous, m.Term, m.Lease)
		if m.Want == 0 {
			return typeJoin
		}
		e.U16(uint16(m.Want))
		return typeJoinWant
	case verdict.Resume:
		e.claim(m.Identity, m.Incarnation, m.Term, m.Lease)
		e.U32(uint32(m.HostOver))
		return typeResume
	case verdict.Leave:
		e.Incarnation(m.Incarnation)
		return typeLeave
	case verdict.Report:
		e.Incarnation(m.About)
		e.U8(uint8(m.Evidence))
		return typeReport
	case verdict.Check:
		e.U64(m.Nonce)
		e.Incarnation(m.Incarnation)
		e.UUID(m.UUID)
		e.U64(m.Epoch)
		e.texts(m.Addresses(), verdict.MaxAddresses, verdict.MaxAddress)
		e.Bytes(m.Challenge, verdict.MaxChallenge)
		return typeCheck
	case verdict.CheckResult:
		e.U64(m.Nonce)
		e.Incarnation(m.Target)
		e.Bool(m.Reached)
		e.Bytes(m.Proof, verdict.MaxProof)
		return typeCheckResult
	case verdict.Ack:
		e.Incarnation(m.Incarnation)
		return typeAck
	case verdict.Ping:
		e.Incarnation(m.Incarnation)
		e.U64(m.Nonce)
		e.U64(m.Version)
		return typePing
	default:
		return e.hostMessage(m)
	}
}

// hostMessage is message for those that only a host sends, and Sync.
func (e *encoder) hostMessage(m verdict.Message) frameType {
	switch m := m.(type) {
	case verdict.Pong:
		e.U64(m.Term)
		e.U64(m.Nonce)
		e.U64(m.Version)
		return typePong
	case verdict.Sync:
		return typeSync
	case verdict.Grant:
		e.U64(m.Term)
		e.Incarnation(m.Incarnation)
		e.Bytes(m.Lease, verdict.MaxLease)
		return typeGrant
	case verdict.Refused:
		e.U64(m.Term)
		e.U8(uint8(m.Code))
		e.words(m.Text, verdict.MaxText)
		return typeRefused
	case verdict.Table:
		e.table(m)
		return typeTable
	case verdict.Delta:
		e.U64(m.Term)
		e.U64(m.Version)
		e.entries(m.Entries, verdict.MaxNews)
		return typeDelta
	case verdict.RemovedIncarnation:
		e.U64(m.Term)
		e.U64(m.Version)
		e.Incarnation(m.Incarnation)
		e.Text(string(m.Reason), verdict.MaxReason)
		return typeRemoved
	}
	panic(fmt.Sprintf("BUG: control: no frame for %T", m))
}

// claim appends the fields that a Join and a Resume have in common.
func (e *encoder) claim(id verdict.Identity, incarnation addr.Incarnation, term uint64, lease []byte) {
	e.UUID(id.UUID)
	e.U64(id.Epoch)
	e.Incarnation(incarnation)
	e.Text(id.Name(), verdict.MaxName)
	e.claims(id.Claims)
	e.U64(term)
	e.Bytes(lease, verdict.MaxLease)
}

// claims appends a node's claims beside its name.
func (e *encoder) claims(c verdict.Claims) {
	e.texts(c.Addresses(), verdict.MaxAddresses, verdict.MaxAddress)
	e.texts(c.Providers(), verdict.MaxProviders, verdict.MaxProvider)
}

func (e *encoder) table(m verdict.Table) {
	e.U64(m.Term)
	e.U64(m.Version)
	e.Bool(m.First)
	e.Bool(m.Last)
	e.entries(m.Entries, verdict.MaxEntries)
}

func (e *encoder) entries(list []verdict.Entry, limit int) {
	e.Count(len(list), limit)
	for _, x := range list {
		e.entry(x)
	}
}

func (e *encoder) entry(x verdict.Entry) {
	e.Incarnation(x.Node.Incarnation)
	e.UUID(x.Node.UUID)
	e.U64(x.Node.Epoch)
	e.Text(x.Node.Name(), verdict.MaxName)
	e.U8(uint8(x.Node.State))
	e.claims(x.Node.Claims)
	e.texts(x.Node.Labels, verdict.MaxLabels, verdict.MaxLabel)
	e.Time(x.Node.Until)
	e.Time(x.Node.Since)
	e.Text(string(x.Reason), verdict.MaxReason)
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
