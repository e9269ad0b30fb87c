package state

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/membership/verdict"
)

// The record of a lease, without the reason of its end, big endian:
//
//	 0         1       2    4            8       16      32      40       41     n
//	+---------+-------+----+------------+-------+-------+-------+--------+------+----------+
//	| version | state | ID | generation | epoch | UUID  | since | length | name | checksum |
//	+---------+-------+----+------------+-------+-------+-------+--------+------+----------+
//
// since is nanoseconds since 1970; the checksum is the CRC-32C of all before it.
const (
	grantVersion = 1
	grantHead    = 41
	sumSize      = 4
	maxGrant     = grantHead + maxName + sumSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendSum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// cutSum checks the checksum at b's end and returns the bytes before it.
func cutSum(b []byte) ([]byte, error) {
	if len(b) < sumSize {
		return nil, damaged("a record of %d bytes", len(b))
	}
	body := b[:len(b)-sumSize]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(body):]) {
		return nil, damaged("a record has a wrong checksum")
	}
	return body, nil
}

// AppendLease appends the record of g to b.
func AppendLease(b []byte, g verdict.Lease) []byte {
	e := codec.To(make([]byte, 0, maxGrant))
	e.U8(grantVersion)
	e.U8(uint8(g.State))
	e.U16(uint16(g.ID))
	e.U32(uint32(g.Generation))
	e.U64(g.Epoch)
	e.UUID(g.UUID)
	e.U64(uint64(g.Since.UnixNano()))
	e.U8(uint8(len(g.Name)))
	e.FixedText(g.Name)
	return append(b, appendSum(e.Encoded())...)
}

// ParseLease parses a record that fills b exactly.
func ParseLease(b []byte) (verdict.Lease, error) {
	body, err := cutSum(b)
	if err != nil {
		return verdict.Lease{}, err
	}
	if len(body) > 0 && body[0] > grantVersion {
		return verdict.Lease{}, fmt.Errorf("%w: lease record of version %d", ErrNewer, body[0])
	}
	d := codec.From(body)
	version := d.U8()
	g := verdict.Lease{
		State:      verdict.LeaseState(d.U8()),
		ID:         addr.NodeID(d.U16()),
		Generation: addr.Generation(d.U32()),
		Epoch:      d.U64(),
		UUID:       d.UUID(),
		Since:      time.Unix(0, int64(d.U64())).UTC(),
		Name:       string(d.Take(int(d.U8()))),
	}
	switch {
	case !d.Whole():
		return verdict.Lease{}, damaged("a lease record of %d bytes", len(b))
	case version != grantVersion:
		return verdict.Lease{}, damaged("a lease record of version %d", version)
	}
	if err := check(g); err != nil {
		return verdict.Lease{}, damaged("%w", err)
	}
	return g, nil
}

// check refuses values that cannot be a lease's.
func check(g verdict.Lease) error {
	switch {
	case g.ID >= addr.FirstReserved:
		return fmt.Errorf("lease %d: reserved ID", g.ID)
	case g.Generation == 0:
		return fmt.Errorf("lease %d: generation 0", g.ID)
	case g.State < verdict.LeaseFree || g.State > verdict.LeaseQuarantine:
		return fmt.Errorf("lease %d: state %d", g.ID, g.State)
	case len(g.Name) > maxName:
		return fmt.Errorf("lease %d: name of %d bytes, want at most %d", g.ID, len(g.Name), maxName)
	}
	return nil
}

// A leaseMeta is the record about the whole table. With seq, count and digest a
// table that lost a record, or went back, is noticed.
type leaseMeta struct {
	Seq    uint64 // counts the commits
	Term   uint64
	Cursor addr.NodeID
	Floor  addr.Generation
	Count  uint32
	Digest digest
}

const metaSize = 1 + 8 + 8 + 2 + 4 + 4 + 16 + sumSize

func (m leaseMeta) encode() []byte {
	e := codec.To(make([]byte, 0, metaSize))
	e.U8(grantVersion)
	e.U64(m.Seq)
	e.U64(m.Term)
	e.U16(uint16(m.Cursor))
	e.U32(uint32(m.Floor))
	e.U32(m.Count)
	e.Fixed(m.Digest[:])
	return appendSum(e.Encoded())
}

func parseMeta(b []byte) (leaseMeta, error) {
	body, err := cutSum(b)
	if err != nil {
		return leaseMeta{}, err
	}
	if len(body) > 0 && body[0] > grantVersion {
		return leaseMeta{}, fmt.Errorf("%w: lease table of version %d", ErrNewer, body[0])
	}
	d := codec.From(body)
	d.Require(d.U8() == grantVersion)
	m := leaseMeta{
		Seq:    d.U64(),
		Term:   d.U64(),
		Cursor: addr.NodeID(d.U16()),
		Floor:  addr.Generation(d.U32()),
		Count:  d.U32(),
	}
	copy(m.Digest[:], d.Take(len(m.Digest)))
	if !d.Whole() {
		return leaseMeta{}, damaged("a table record of %d bytes", len(b))
	}
	return m, nil
}
