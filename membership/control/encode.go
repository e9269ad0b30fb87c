package control

import (
	"encoding/binary"
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// AppendFrame appends the frame of f, one of this package's frames or a message
// of package verdict, to b. It fails with [ErrTooLarge] if a value is beyond its
// limit; b is then unchanged.
func AppendFrame(b []byte, f any) ([]byte, error) {
	e := encoder{b: append(b, 0, 0, 0, 0, 0)}
	t := e.frame(f)
	body := len(e.b) - len(b) - HeaderLen
	if e.bad || body > MaxBody {
		return b, fmt.Errorf("%w: %T", ErrTooLarge, f)
	}
	binary.BigEndian.PutUint32(e.b[len(b):], uint32(body))
	e.b[len(b)+4] = byte(t)
	return e.b, nil
}

// frame appends f's body and returns its type.
func (e *encoder) frame(f any) frameType {
	switch f := f.(type) {
	case Hello:
		e.u16(f.VersionMin)
		e.u16(f.VersionMax)
		e.uuid(f.Cluster)
		e.end(f.From)
		e.bytes(f.Lease, verdict.MaxLease)
		e.uuid(f.To.UUID)
		e.u64(f.To.Epoch)
		e.life(f.To.Life)
		e.bytes(f.Challenge, verdict.MaxChallenge)
		return typeHello
	case Welcome:
		e.u16(f.Version)
		e.end(f.From)
		e.bytes(f.Lease, verdict.MaxLease)
		e.bytes(f.Proof, verdict.MaxProof)
		return typeWelcome
	case Refuse:
		e.u8(uint8(f.Code))
		e.u16(f.VersionMin)
		e.u16(f.VersionMax)
		e.words(f.Text, MaxText)
		return typeRefuse
	case Close:
		e.words(f.Text, MaxText)
		return typeClose
	case Beat:
		e.u64(f.Seq)
		return typeBeat
	case JoinAsk:
		e.joinAsk(f)
		return typeJoinAsk
	case JoinGrant:
		e.joinGrant(f)
		return typeJoinGrant
	case Renew:
		e.bytes(f.Request, maxCertificate)
		return typeRenew
	case Certificate:
		e.bytes(f.Certificate, maxCertificate)
		e.blobs(f.Roots, maxRoots, maxCertificate)
		e.words(f.Text, MaxText)
		return typeCertificate
	case Keys:
		e.u64(f.Seq)
		e.bytes(f.Keyring, maxKeyring)
		return typeKeys
	case KeysHeld:
		e.u64(f.Seq)
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

// trusted is frame for what says which keys are to be trusted.
func (e *encoder) trusted(f any) frameType {
	switch f := f.(type) {
	case Roots:
		e.u64(f.Seq)
		e.blobs(f.Roots, maxRoots, maxCertificate)
		e.bool(f.Renew)
		return typeRoots
	case RootsHeld:
		e.u64(f.Seq)
		return typeRootsHeld
	case Bans:
		e.bool(f.First)
		e.bool(f.Last)
		e.count(len(f.Nodes), maxBans)
		for _, u := range f.Nodes {
			e.uuid(u)
		}
		return typeBans
	}
	panic(fmt.Sprintf("BUG: control: no frame for %T", f))
}

func (e *encoder) services(l services.List) frameType {
	e.life(l.Life)
	e.u64(l.Seq)
	e.count(len(l.Services), services.MaxPerNode)
	for _, s := range l.Services {
		e.text(s.Name, addr.MaxService)
		e.u16(uint16(s.Port))
	}
	return typeServices
}

func (e *encoder) end(p End) {
	e.uuid(p.UUID)
	e.u64(p.Epoch)
	e.life(p.Life)
	e.u64(p.Term)
	e.bool(p.Host)
}

func (e *encoder) joinAsk(f JoinAsk) {
	e.u16(f.VersionMin)
	e.u16(f.VersionMax)
	e.text(f.Name, verdict.MaxName)
	e.fixed(f.Token[:])
	e.fixed(f.Proof[:])
	e.bytes(f.Request, maxCertificate)
}

func (e *encoder) joinGrant(f JoinGrant) {
	e.uuid(f.Cluster)
	e.uuid(f.Host)
	e.uuid(f.Node)
	e.bytes(f.Certificate, maxCertificate)
	e.blobs(f.Roots, maxRoots, maxCertificate)
	e.bytes(f.Keyring, maxKeyring)
	e.text(f.Gossip, verdict.MaxAddress)
}

// message appends m's body and returns its type.
func (e *encoder) message(m verdict.Message) frameType {
	switch m := m.(type) {
	case verdict.Join:
		e.claim(m.Identity, m.Previous, m.Term, m.Lease)
		return typeJoin
	case verdict.Resume:
		e.claim(m.Identity, m.Life, m.Term, m.Lease)
		e.u32(uint32(m.HostOver))
		return typeResume
	case verdict.Leave:
		e.life(m.Life)
		return typeLeave
	case verdict.Report:
		e.life(m.About)
		e.u8(uint8(m.Evidence))
		return typeReport
	case verdict.Check:
		e.u64(m.Nonce)
		e.life(m.Life)
		e.uuid(m.UUID)
		e.u64(m.Epoch)
		e.texts(m.Addresses(), verdict.MaxAddresses, verdict.MaxAddress)
		e.bytes(m.Challenge, verdict.MaxChallenge)
		return typeCheck
	case verdict.CheckResult:
		e.u64(m.Nonce)
		e.life(m.Target)
		e.bool(m.Reached)
		e.bytes(m.Proof, verdict.MaxProof)
		return typeCheckResult
	case verdict.Ack:
		e.life(m.Life)
		return typeAck
	case verdict.Ping:
		e.life(m.Life)
		e.u64(m.Nonce)
		e.u64(m.Version)
		return typePing
	default:
		return e.hostMessage(m)
	}
}

// hostMessage is message for what only a host sends, and Sync.
func (e *encoder) hostMessage(m verdict.Message) frameType {
	switch m := m.(type) {
	case verdict.Pong:
		e.u64(m.Term)
		e.u64(m.Nonce)
		e.u64(m.Version)
		return typePong
	case verdict.Sync:
		return typeSync
	case verdict.Grant:
		e.u64(m.Term)
		e.life(m.Life)
		e.bytes(m.Lease, verdict.MaxLease)
		return typeGrant
	case verdict.Refused:
		e.u64(m.Term)
		e.u8(uint8(m.Code))
		e.words(m.Text, verdict.MaxText)
		return typeRefused
	case verdict.Table:
		e.table(m)
		return typeTable
	case verdict.Delta:
		e.u64(m.Term)
		e.u64(m.Version)
		e.entries(m.Entries, verdict.MaxNews)
		return typeDelta
	case verdict.RemovedLife:
		e.u64(m.Term)
		e.u64(m.Version)
		e.life(m.Life)
		e.text(string(m.Reason), verdict.MaxReason)
		return typeRemoved
	}
	panic(fmt.Sprintf("BUG: control: no frame for %T", m))
}

// claim appends what a Join and a Resume have in common.
func (e *encoder) claim(id verdict.Identity, life addr.Life, term uint64, lease []byte) {
	e.uuid(id.UUID)
	e.u64(id.Epoch)
	e.life(life)
	e.text(id.Name(), verdict.MaxName)
	e.claims(id.Claims)
	e.u64(term)
	e.bytes(lease, verdict.MaxLease)
}

// claims appends what a node says of itself beside its name.
func (e *encoder) claims(c verdict.Claims) {
	e.texts(c.Addresses(), verdict.MaxAddresses, verdict.MaxAddress)
	e.texts(c.Providers(), verdict.MaxProviders, verdict.MaxProvider)
}

func (e *encoder) table(m verdict.Table) {
	e.u64(m.Term)
	e.u64(m.Version)
	e.bool(m.First)
	e.bool(m.Last)
	e.entries(m.Entries, verdict.MaxEntries)
}

func (e *encoder) entries(list []verdict.Entry, limit int) {
	e.count(len(list), limit)
	for _, x := range list {
		e.entry(x)
	}
}

func (e *encoder) entry(x verdict.Entry) {
	e.life(x.Node.Life)
	e.uuid(x.Node.UUID)
	e.u64(x.Node.Epoch)
	e.text(x.Node.Name(), verdict.MaxName)
	e.u8(uint8(x.Node.State))
	e.claims(x.Node.Claims)
	e.texts(x.Node.Labels, verdict.MaxLabels, verdict.MaxLabel)
	e.time(x.Node.Until)
	e.time(x.Node.Since)
	e.text(string(x.Reason), verdict.MaxReason)
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
