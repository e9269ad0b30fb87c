package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// memberlist trusts each holder of a key: it takes the padding of seal version 0 from the last byte
// whatever that is, the first byte of a message that may have none, and memory for as many members
// as a message announces. So everything is opened here first, and only the format of SPEC.md
// goes on to it.
const (
	labelMessage = 244 // begins the label header
	sealedFrame  = 10  // begins a frame
	sealVersion  = 1
	nonceLen     = 12
	sealOverhead = 1 + nonceLen + 16 // version, nonce, tag

	// maxFrame bounds a frame that was asked for, in bytes: it holds some 5,000
	// members of the largest metadata.
	maxFrame = 2 << 20
	// baseFrame and memberFrame bound one that a peer sends unasked: the size for the members that
	// are known here, and for some hundreds that are not.
	baseFrame   = 256 << 10
	memberFrame = 512
)

var (
	errSeal    = errors.New("not sealed as gossip of this cluster")
	errMessage = errors.New("malformed gossip message")
)

// A sealer opens packets and frames that are sealed with one of its keys.
type sealer struct {
	header []byte // the label header
	keys   atomic.Pointer[[]cipher.AEAD]
}

func newSealer(label string, keys [][]byte) (*sealer, error) {
	s := &sealer{header: append([]byte{labelMessage, byte(len(label))}, label...)}
	return s, s.set(keys)
}

// set replaces the keys.
func (s *sealer) set(keys [][]byte) error {
	var list []cipher.AEAD
	for _, k := range keys {
		block, err := aes.NewCipher(k)
		if err != nil {
			return err
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return err
		}
		list = append(list, gcm)
	}
	s.keys.Store(&list)
	return nil
}

func (s *sealer) label() []byte { return s.header[2:] }

// open appends the message that is sealed in b to dst.
func (s *sealer) open(dst, b, additional []byte) ([]byte, error) {
	if len(b) <= sealOverhead || b[0] != sealVersion {
		return nil, fmt.Errorf("%w: %d bytes", errSeal, len(b))
	}
	for _, k := range *s.keys.Load() {
		if plain, err := k.Open(dst, b[1:1+nonceLen], b[1+nonceLen:], additional); err == nil {
			return plain, nil
		}
	}
	return nil, fmt.Errorf("%w: no key opens it", errSeal)
}

// checkPacket returns the error in a packet, and how many requests it holds to ping a third member.
// scratch is memory that it may use.
func (s *sealer) checkPacket(scratch, b []byte) (indirect int, err error) {
	sealed, ok := bytes.CutPrefix(b, s.header)
	if !ok {
		return 0, fmt.Errorf("%w: it has no label or another one", errSeal)
	}
	plain, err := s.open(scratch[:0], sealed, s.label())
	if err != nil {
		return 0, err
	}
	const checksumMessage, compoundMessage = 12, 7
	if len(plain) > checksum && plain[0] == checksumMessage {
		plain = plain[checksum:]
	}
	if plain[0] == compoundMessage {
		return checkCompound(plain[1:])
	}
	return checkPacketMessage(plain)
}

const indirectPing = 1

// checkCompound checks the messages of a compound, which holds no other compound.
func checkCompound(b []byte) (indirect int, err error) {
	if len(b) == 0 || len(b) < 1+2*int(b[0]) {
		return 0, fmt.Errorf("%w: a compound of %d bytes", errMessage, len(b))
	}
	lengths, rest := b[1:1+2*int(b[0])], b[1+2*int(b[0]):]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(rest) {
			return 0, fmt.Errorf("%w: a compound is cut off", errMessage)
		}
		one, err := checkPacketMessage(rest[:n])
		if err != nil {
			return 0, err
		}
		indirect, rest = indirect+one, rest[n:]
	}
	return indirect, nil
}

// checkPacketMessage checks that b is a message that packets carry.
func checkPacketMessage(b []byte) (indirect int, err error) {
	if len(b) > 0 {
		switch b[0] {
		case indirectPing:
			return 1, nil
		case 0, 2, 3, 4, 5, 8, 11: // ping, ack to dead, user, nack
			return 0, nil
		}
	}
	return 0, fmt.Errorf("%w: %.1x in a packet", errMessage, b)
}

// checkStreamMessage checks that b is a message that streams carry, and that a
// push-pull has the bytes of as many members as it announces.
func checkStreamMessage(b []byte) error {
	const minEntry = 32 // bytes of a member; the names of its fields are longer
	switch b[0] {
	case 0, 2, 13: // ping, ack, error
		return nil
	case 6:
		fields, rest, err := readNumbers(b[1:])
		if err == nil && (fields["Nodes"] > uint64(len(rest)/minEntry) || fields["UserStateLen"] > uint64(len(rest))) {
			err = fmt.Errorf("%w: %d members announced in %d bytes", errMessage, fields["Nodes"], len(rest))
		}
		return err
	}
	return fmt.Errorf("%w: %.1x in a stream", errMessage, b)
}

// readNumbers reads a MessagePack map from names to integers and booleans.
func readNumbers(b []byte) (fields map[string]uint64, rest []byte, err error) {
	malformed := fmt.Errorf("%w: no map of numbers", errMessage)
	if len(b) == 0 || b[0]&0xf0 != 0x80 {
		return nil, nil, malformed
	}
	fields = make(map[string]uint64)
	n, b := int(b[0]&0x0f), b[1:]
	for range n {
		if len(b) == 0 || b[0]&0xe0 != 0xa0 || len(b) < 2+int(b[0]&0x1f) {
			return nil, nil, malformed
		}
		end := 1 + int(b[0]&0x1f)
		name := string(b[1:end])
		c := b[end]
		b = b[end+1:]
		size := 0
		switch {
		case 0xcc <= c && c <= 0xcf: // unsigned
			size = 1 << (c - 0xcc)
		case 0xd0 <= c && c <= 0xd3: // signed; memberlist refuses negative ones
			size = 1 << (c - 0xd0)
		case c > 0x7f && c != 0xc0 && c != 0xc2 && c != 0xc3:
			return nil, nil, malformed
		}
		if len(b) < size {
			return nil, nil, malformed
		}
		v := uint64(c & 0x7f)
		if size > 0 {
			v = 0
		}
		for _, x := range b[:size] {
			v = v<<8 | uint64(x)
		}
		fields[name], b = v, b[size:]
	}
	return fields, b, nil
}

// A frame is the one that a peer sends over a stream. All of it is read and checked
// before any of it is handed on.
type frame struct {
	sealer *sealer
	header []byte // that must precede it; none from the listener
	max    int    // bytes of the frame

	began bool
	rest  []byte // not handed on yet
	err   error  // the error in it
}

// read reads from r, which the peer writes.
func (f *frame) read(r io.Reader, p []byte) (int, error) {
	if !f.began {
		f.began = true
		f.rest, f.err = f.begin(r)
	}
	switch {
	case f.err != nil:
		return 0, f.err
	case len(f.rest) == 0:
		return 0, io.EOF
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// begin reads the frame, in memory that grows with the bytes that have come.
func (f *frame) begin(r io.Reader) ([]byte, error) {
	head := len(f.header) + 1 + 4
	in := bytes.NewBuffer(make([]byte, 0, 512))
	if err := readInto(in, r, head); err != nil {
		return nil, err
	}
	b, ok := bytes.CutPrefix(in.Bytes(), f.header)
	if !ok || b[0] != sealedFrame {
		return nil, fmt.Errorf("%w: no label, another one, or no frame", errSeal)
	}
	length := binary.BigEndian.Uint32(b[1:])
	if length > uint32(f.max) {
		return nil, fmt.Errorf("%w: a frame of %d bytes, at most %d are taken", errMessage, length, f.max)
	}
	if err := readInto(in, r, int(length)); err != nil {
		return nil, err
	}
	b = in.Bytes()
	additional := append(bytes.Clone(b[head-5:head]), f.sealer.label()...)
	plain, err := f.sealer.open(nil, b[head:], additional)
	if err != nil {
		return nil, err
	}
	return b, checkStreamMessage(plain)
}

// readInto reads n bytes. io.EOF is an end before the first byte of all.
func readInto(in *bytes.Buffer, r io.Reader, n int) error {
	_, err := io.CopyN(in, r, int64(n))
	if err == io.EOF && in.Len() > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}
