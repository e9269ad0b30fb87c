package filecopy

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"time"
)

// patience bounds how long either end waits for the other one's next message or piece.
const patience = time.Minute

// readPatience bounds how long either end waits while the other one reads n bytes of a file.
func readPatience(n int64) time.Duration { return patience + time.Duration(n>>20)*100*time.Millisecond }

// piece is how much is sent and received at a time, in bytes.
const piece = 256 << 10

// A Result describes a copied file.
type Result struct {
	Name   string `json:"name"`
	Size   int64  `json:"size_bytes"`
	From   int64  `json:"resumed_at_bytes"` // 0: it began at the beginning
	SHA256 string `json:"sha256"`
}

// CheckFile returns the size of an open file, or an error if Send does not send it: it is
// no regular file.
func CheckFile(f *os.File) (size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s: not a regular file", f.Name())
	}
	return info.Size(), nil
}

// Send sends the open file f as name. It calls progress, unless that is nil, with how much
// of how much the receiver has.
func Send(c net.Conn, f *os.File, name string, progress func(done, size int64)) (Result, error) {
	size, err := CheckFile(f)
	if err != nil {
		return Result{}, err
	}
	s := &sender{c: c, r: bufio.NewReaderSize(c, maxMessage), f: f, sum: sha256.New(), progress: progress, size: size}
	if err := s.offer(name); err != nil {
		return Result{}, err
	}
	from, err := s.resume()
	if err != nil {
		return Result{}, err
	}
	r := Result{Name: name, Size: s.size, From: from}
	r.SHA256, err = s.rest(from)
	return r, err
}

// A sender sends one file.
type sender struct {
	c        net.Conn
	r        *bufio.Reader
	f        *os.File
	sum      hash.Hash // of the bytes that the receiver has
	size     int64
	progress func(done, size int64)
}

func (s *sender) offer(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := s.c.SetDeadline(time.Now().Add(readPatience(s.size))); err != nil { // the receiver reads its partial file
		return err
	}
	return write(s.c, message{Version: version, Name: name, Size: s.size})
}

// resume returns the offset from which the receiver needs the file: the size of its partial
// file if that is the beginning of this file, else 0.
func (s *sender) resume() (int64, error) {
	m, err := answer(s.r)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errNoMessage) {
		return 0, errors.New("the other end is no fabricd cp")
	}
	if err != nil {
		return 0, err
	}
	if m.Offset < 0 || m.Offset > s.size {
		m.Offset = 0
	}
	if _, err := io.CopyN(s.sum, s.f, m.Offset); err != nil {
		return 0, err
	}
	if hex.EncodeToString(s.sum.Sum(nil)) == m.SHA256 {
		return m.Offset, nil
	}
	s.sum.Reset()
	_, err = s.f.Seek(0, io.SeekStart)
	return 0, err
}

// rest sends the bytes from offset from on, and returns the checksum of the file.
func (s *sender) rest(from int64) (string, error) {
	if err := s.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if err := write(s.c, message{Offset: from}); err != nil {
		return "", err
	}
	buf := make([]byte, piece)
	for at := from; at < s.size; {
		n, err := s.f.Read(buf[:min(piece, s.size-at)])
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.f.Name(), notShorter(err))
		}
		s.sum.Write(buf[:n]) // does not fail
		if err := s.c.SetDeadline(time.Now().Add(patience)); err != nil {
			return "", err
		}
		if _, err := s.c.Write(buf[:n]); err != nil {
			return "", s.why(err)
		}
		at += int64(n)
		if s.progress != nil {
			s.progress(at, s.size)
		}
	}
	sum := hex.EncodeToString(s.sum.Sum(nil))
	if err := write(s.c, message{SHA256: sum}); err != nil {
		return "", s.why(err)
	}
	if err := s.c.SetDeadline(time.Now().Add(readPatience(s.size))); err != nil { // the receiver syncs its file
		return "", err
	}
	m, err := answer(s.r)
	if err == nil && !m.Done {
		err = errors.New("the receiver does not confirm the file")
	}
	return sum, err
}

// why returns the error that the receiver sent before it ended the connection, or err.
func (s *sender) why(err error) error {
	if m, aerr := answer(s.r); aerr != nil && m.Error != "" {
		return aerr
	}
	return err
}

// notShorter names the reason of an early end of file: the file has become shorter.
func notShorter(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("has become shorter meanwhile")
	}
	return err
}
