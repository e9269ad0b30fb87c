package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// This file is a second implementation of the format, written from SPEC.md and
// without memberlist: whatever it cannot speak with, the page does not describe.

var errSecond = errors.New("not as in SPEC.md")

// A seal holds the secrets that both ends share.
type seal struct {
	keys  [][]byte // the first seals
	label string
}

func (s seal) header() []byte { return append([]byte{244, byte(len(s.label))}, s.label...) }

// cutHeader returns the bytes behind the label header.
func (s seal) cutHeader(b []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(b, s.header())
	if !ok {
		return nil, fmt.Errorf("%w: no label header in %.40x", errSecond, b)
	}
	return rest, nil
}

func (s seal) close(nonce, plain, additional []byte) []byte {
	block, err := aes.NewCipher(s.keys[0])
	if err != nil {
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm.Seal(append([]byte{1}, nonce...), nonce, plain, additional)
}

func (s seal) open(b, additional []byte) ([]byte, error) {
	if len(b) < 1+12+16 || b[0] != 1 {
		return nil, fmt.Errorf("%w: sealed %.20x", errSecond, b)
	}
	for _, k := range s.keys {
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, err
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		if plain, err := gcm.Open(nil, b[1:13], b[13:], additional); err == nil {
			return plain, nil
		}
	}
	return nil, fmt.Errorf("%w: no key opens it", errSecond)
}

// packet seals one message for UDP.
func (s seal) packet(nonce, message []byte) []byte {
	return append(s.header(), s.close(nonce, message, []byte(s.label))...)
}

// openPacket returns the messages of a packet, those of a compound one by one.
func (s seal) openPacket(b []byte) ([]message, error) {
	b, err := s.cutHeader(b)
	if err != nil {
		return nil, err
	}
	plain, err := s.open(b, []byte(s.label))
	if err != nil {
		return nil, err
	}
	var list []message
	if len(plain) > 5 && plain[0] == 12 {
		if crc32.ChecksumIEEE(plain[5:]) != binary.BigEndian.Uint32(plain[1:]) {
			return nil, fmt.Errorf("%w: checksum", errSecond)
		}
		plain = plain[5:]
		list = append(list, message{number: 12})
	}
	more, err := messages(plain)
	return append(list, more...), err
}

// frame seals one message for TCP, without the label header of the dialer.
func (s seal) frame(nonce, message []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{10}, uint32(1+12+len(message)+16))
	return append(head, s.close(nonce, message, append(bytes.Clone(head), s.label...))...)
}

// readFrame reads one message of a stream.
func (s seal) readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if head[0] != 10 || n > 20<<20 {
		return nil, fmt.Errorf("%w: frame %x", errSecond, head)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return s.open(b, append(head, s.label...))
}

// A message is one that was opened: its number and its maps, the first of them
// its fields, the others the entries of a push-pull.
type message struct {
	number byte
	maps   []map[string]any
}

func (m message) text(field string) string { s, _ := m.maps[0][field].([]byte); return string(s) }

// messages reads the messages of a packet or frame.
func messages(b []byte) ([]message, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty", errSecond)
	}
	if b[0] == 7 {
		return compound(b[1:])
	}
	if b[0] == 8 { // a report, which has one form
		if len(b) != 1+2+2*(16+8)+8+32 || b[1] != 1 || b[2] != 1 {
			return nil, fmt.Errorf("%w: report %x", errSecond, b)
		}
		return []message{{number: 8, maps: []map[string]any{{}}}}, nil
	}
	m, rest, err := readMap(b[1:])
	if err != nil {
		return nil, fmt.Errorf("message %d: %w", b[0], err)
	}
	out := message{number: b[0], maps: []map[string]any{m}}
	if b[0] == 6 {
		nodes, _ := m["Nodes"].(uint64)
		for range nodes {
			if m, rest, err = readMap(rest); err != nil {
				return nil, fmt.Errorf("push-pull: %w", err)
			}
			out.maps = append(out.maps, m)
		}
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after message %d", errSecond, len(rest), b[0])
	}
	return []message{out}, nil
}

func compound(b []byte) ([]message, error) {
	if len(b) == 0 || len(b) < 1+2*int(b[0]) {
		return nil, fmt.Errorf("%w: compound", errSecond)
	}
	lengths, rest := b[1:1+2*int(b[0])], b[1+2*int(b[0]):]
	out := []message{{number: 7}}
	for ; len(lengths) > 0; lengths = lengths[2:] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(rest) {
			return nil, fmt.Errorf("%w: compound is cut off", errSecond)
		}
		part, err := messages(rest[:n])
		if err != nil {
			return nil, err
		}
		out, rest = append(out, part...), rest[n:]
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after a compound", errSecond, len(rest))
	}
	return out, nil
}

// readMap reads a map of this page's MessagePack. Its values are []byte,
// uint64, bool or nil.
func readMap(b []byte) (map[string]any, []byte, error) {
	if len(b) == 0 || b[0]&0xf0 != 0x80 {
		return nil, nil, fmt.Errorf("%w: no map in %.20x", errSecond, b)
	}
	n := int(b[0] & 0x0f)
	m := make(map[string]any, n)
	b = b[1:]
	for range n {
		k, rest, err := readValue(b)
		name, ok := k.([]byte)
		if err != nil || !ok {
			return nil, nil, fmt.Errorf("%w: key %v, %v", errSecond, k, err)
		}
		if m[string(name)], b, err = readValue(rest); err != nil {
			return nil, nil, err
		}
	}
	return m, b, nil
}

func readValue(b []byte) (any, []byte, error) {
	if len(b) == 0 {
		return nil, nil, fmt.Errorf("%w: value is cut off", errSecond)
	}
	c, b := b[0], b[1:]
	number := func(size int) (uint64, bool) {
		if len(b) < size {
			return 0, false
		}
		var n uint64
		for _, x := range b[:size] {
			n = n<<8 | uint64(x)
		}
		b = b[size:]
		return n, true
	}
	raw := func(n uint64, ok bool) (any, []byte, error) {
		if !ok || n > uint64(len(b)) {
			return nil, nil, fmt.Errorf("%w: raw is cut off", errSecond)
		}
		return bytes.Clone(b[:n:n]), b[n:], nil
	}
	switch {
	case c <= 0x7f:
		return uint64(c), b, nil
	case c&0xe0 == 0xa0:
		return raw(uint64(c&0x1f), true)
	case c == 0xda:
		return raw(number(2))
	case c == 0xdb:
		return raw(number(4))
	case c == 0xc0:
		return nil, b, nil
	case c == 0xc2 || c == 0xc3:
		return c == 0xc3, b, nil
	case 0xcc <= c && c <= 0xcf: // unsigned of 1, 2, 4, 8 bytes
		n, ok := number(1 << (c - 0xcc))
		return after(n, b, ok)
	case 0xd0 <= c && c <= 0xd3: // signed; these fields are never negative
		size := 1 << (c - 0xd0)
		n, ok := number(size)
		return after(n, b, ok && n>>(8*size-1) == 0)
	}
	return nil, nil, fmt.Errorf("%w: type %#x", errSecond, c)
}

func after(n uint64, b []byte, ok bool) (any, []byte, error) {
	if !ok {
		return nil, nil, fmt.Errorf("%w: integer", errSecond)
	}
	return n, b, nil
}

// A pair is a field to write; a list of them makes a map in their order.
type pair struct {
	name  string
	value any // []byte, int, bool or nil
}

func appendMap(b []byte, fields ...pair) []byte {
	b = append(b, 0x80|byte(len(fields)))
	for _, f := range fields {
		b = appendRaw(b, []byte(f.name))
		switch v := f.value.(type) {
		case []byte:
			b = appendRaw(b, v)
		case int:
			b = binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
		case bool:
			c := byte(0xc2)
			if v {
				c = 0xc3
			}
			b = append(b, c)
		default:
			b = append(b, 0xc0)
		}
	}
	return b
}

func appendRaw(b, v []byte) []byte {
	if len(v) < 32 {
		return append(append(b, 0xa0|byte(len(v))), v...)
	}
	return append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(v))), v...)
}

// provedLossReport appends the proof to a report.
func provedLossReport(secret, w []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write(w)
	return m.Sum(w)
}
