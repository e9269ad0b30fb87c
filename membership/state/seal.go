package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

const (
	sealMagic   = "fabricd-state"
	sealVersion = 1
	// maxHeader is longer than any header; a longer line is no header.
	maxHeader = 128
	// MaxFile bounds the content of a state file.
	MaxFile = 16 << 20
	// sumBytes is how much of the SHA-256 a header carries.
	sumBytes = 16
)

// Seal returns the bytes of a state file of this kind (one word) with this
// content:
//
//	fabricd-state 1 KIND LENGTH SUM\n
//	content
//
// LENGTH is the number of bytes of the content, decimal. SUM is the first half
// of the SHA-256 of the header up to it and the content, in lower-case
// hexadecimal. The kind is in the sum, so one file cannot stand in for another.
func Seal(kind string, content []byte) []byte {
	head := fmt.Sprintf("%s %d %s %d ", sealMagic, sealVersion, kind, len(content))
	b := make([]byte, 0, len(head)+2*sumBytes+1+len(content))
	b = append(b, head...)
	b = append(b, sealSum(head, content)...)
	b = append(b, '\n')
	return append(b, content...)
}

func sealSum(head string, content []byte) string {
	h := sha256.New()
	h.Write([]byte(head))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil)[:sumBytes])
}

// Unseal returns the content of a file of this kind. The result shares b's memory.
// Anything but exactly the output of [Seal] is an error that wraps [ErrDamaged] or
// [ErrNewer].
func Unseal(kind string, b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, damaged("empty")
	}
	end := bytes.IndexByte(b[:min(len(b), maxHeader)], '\n')
	if end < 0 || !strings.HasPrefix(string(b[:end]), sealMagic+" ") {
		return nil, damaged("no header")
	}
	content := b[end+1:]
	if bytes.Equal(b, Seal(kind, content)) {
		return content, nil
	}
	return nil, explainSeal(kind, string(b[:end]), len(content))
}

// explainSeal describes how a header differs from the one that the content needs.
func explainSeal(kind, header string, length int) error {
	fields := strings.Split(header, " ")
	if len(fields) != 5 {
		return damaged("no header")
	}
	if v, err := strconv.Atoi(fields[1]); err == nil && v > sealVersion {
		return fmt.Errorf("%w (or %w): version %d, this fabricd reads %d", ErrNewer, ErrDamaged, v, sealVersion)
	}
	if fields[2] != kind {
		return damaged("it is of kind %q, want %q", fields[2], kind)
	}
	if fields[3] != strconv.Itoa(length) {
		return damaged("its header says %q bytes of content, there are %d", fields[3], length)
	}
	return damaged("wrong checksum")
}
