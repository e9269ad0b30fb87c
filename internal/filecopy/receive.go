package filecopy

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// partOf is the name that a file has until all of it has come.
func partOf(name string) string { return "." + name + ".partial" }

// Bounds of the wait for an earlier sender of a file.
const (
	lockTime  = 5 * time.Second
	lockPause = 50 * time.Millisecond
)

// A Receiver takes files into one directory. Its fields do not change.
type Receiver struct {
	Into    *os.Root
	Replace bool  // a file that is there already is replaced, and not refused
	MaxSize int64 // of a file, in bytes; 0: as large as the directory takes
}

// Receive takes one file from a sender. A refused sender gets the reason.
func (r Receiver) Receive(c net.Conn) (Result, error) {
	in := &incoming{Receiver: r, c: c, r: bufio.NewReaderSize(c, maxMessage), sum: sha256.New()}
	result, err := in.take()
	if err != nil {
		_ = c.SetDeadline(time.Now().Add(patience))   // an error also fails the next line
		_ = write(c, message{Error: in.forPeer(err)}) // it may be gone
	}
	return result, err
}

// An incoming is a file that comes.
type incoming struct {
	Receiver
	c    net.Conn
	r    *bufio.Reader
	sum  hash.Hash // of the bytes in file
	file *os.File
}

// take takes the file.
func (in *incoming) take() (res Result, err error) {
	offer, err := in.offer()
	if err != nil {
		return res, err
	}
	res = Result{Name: offer.Name, Size: offer.Size}
	part := partOf(offer.Name)
	whole := in.kept(part, offer.Name)
	if in.file, err = in.open(part, offer.Name, whole); err != nil {
		return res, err
	}
	defer in.file.Close()
	if res.From, err = in.resume(offer, whole); err != nil {
		return res, err
	}
	if res.SHA256, err = in.rest(offer.Size - res.From); errors.Is(err, syscall.ENOSPC) {
		return res, errors.Join(err, in.Into.Remove(part)) // the bytes that have come would keep the volume full
	}
	if err != nil {
		return res, err
	}
	if whole {
		err = in.Into.Remove(part)
	} else {
		err = in.keep(part, offer.Name)
	}
	if err != nil {
		return res, err
	}
	// Keeping it may have taken longer than the last piece could.
	if err := in.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return res, err
	}
	return res, write(in.c, message{Done: true})
}

// offer reads the sender's offer, and refuses it if it is not allowed.
func (in *incoming) offer() (message, error) {
	if err := in.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return message{}, err
	}
	m, err := read(in.r)
	if err != nil {
		return m, err
	}
	if m.Version != version {
		return m, fmt.Errorf("version %d, want %d", m.Version, version)
	}
	if err := CheckName(m.Name); err != nil {
		return m, err
	}
	if m.Size < 0 || in.MaxSize > 0 && m.Size > in.MaxSize {
		return m, fmt.Errorf("%s has %d bytes, more than %d", m.Name, m.Size, in.MaxSize)
	}
	if _, err := in.Into.Lstat(m.Name); !in.Replace && !errors.Is(err, fs.ErrNotExist) && !in.kept(partOf(m.Name), m.Name) {
		return m, errThere(m.Name)
	}
	return m, nil
}

func errThere(name string) error { return fmt.Errorf("%s is there already", name) }

// kept reports whether the file has its final name and still that of the partial file: an
// earlier receiver ended before it removed the latter.
func (in *incoming) kept(part, name string) bool {
	if in.Replace {
		return false
	}
	a, aerr := in.Into.Lstat(part)
	b, berr := in.Into.Lstat(name)
	return aerr == nil && berr == nil && os.SameFile(a, b)
}

// open opens the partial file, or makes it. One sender has it at a time: another one would
// write into bytes that this one's checksum covers, or into the finished file.
func (in *incoming) open(part, name string, whole bool) (*os.File, error) {
	for range 3 {
		// Neither a link nor a pipe: to open one must not wait for another process.
		f, err := in.Into.OpenFile(part, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		if !lock(f) {
			f.Close()
			break
		}
		mine, err := f.Stat()
		if err != nil || !mine.Mode().IsRegular() {
			f.Close()
			return nil, errors.Join(err, fmt.Errorf("%s: what is there of it is no regular file", name))
		}
		there, err := in.Into.Lstat(part)
		same := err == nil && os.SameFile(mine, there)
		if same && (mine.Sys().(*syscall.Stat_t).Nlink == 1 || whole) {
			return f, nil
		}
		if same { // another name leads to it: that file is not to change
			err = in.Into.Remove(part)
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: another sender sends it now", name)
}

// lock makes f this sender's. The end of an earlier one, such as the same that was interrupted
// a moment ago, may be known here only after its last bytes.
func lock(f *os.File) bool {
	for limit := time.Now().Add(lockTime); ; <-time.After(lockPause) {
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return true
		}
		if time.Now().After(limit) {
			return false
		}
	}
}

// resume sends the sender the size and checksum of the partial file, and returns the offset
// at which the sender starts. Of a whole file the sender sends nothing.
func (in *incoming) resume(offer message, whole bool) (int64, error) {
	if info, err := in.file.Stat(); err != nil || whole && info.Size() != offer.Size {
		return 0, cmp.Or(err, errThere(offer.Name))
	}
	have, err := io.Copy(in.sum, io.LimitReader(in.file, offer.Size))
	if err != nil {
		return 0, err
	}
	if err := write(in.c, message{Offset: have, SHA256: hex.EncodeToString(in.sum.Sum(nil))}); err != nil {
		return 0, err
	}
	// The sender reads as much as this end has: it may take as long.
	if err := in.c.SetDeadline(time.Now().Add(readPatience(have))); err != nil {
		return 0, err
	}
	m, err := read(in.r)
	if err != nil {
		return 0, err
	}
	if whole {
		if m.Offset != have {
			return 0, errThere(offer.Name)
		}
		return have, nil
	}
	if m.Offset != have {
		m.Offset = 0
		in.sum.Reset()
	}
	if err := in.file.Truncate(m.Offset); err != nil {
		return 0, err
	}
	_, err = in.file.Seek(m.Offset, io.SeekStart)
	return m.Offset, err
}

// rest takes the last n bytes of the file, and compares the checksum of all of it.
func (in *incoming) rest(n int64) (string, error) {
	something := n > 0
	buf := make([]byte, piece)
	for n > 0 {
		if err := in.c.SetDeadline(time.Now().Add(patience)); err != nil {
			return "", err
		}
		k, err := io.ReadFull(in.r, buf[:min(piece, n)]) // all of it in time: one byte a minute is no file
		in.sum.Write(buf[:k])                            // does not fail
		if _, werr := in.file.Write(buf[:k]); werr != nil {
			return "", werr
		}
		n -= int64(k)
		if errors.Is(err, io.EOF) && n > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && n > 0 {
			return "", err
		}
	}
	m, err := read(in.r)
	if err != nil {
		return "", err
	}
	sum := hex.EncodeToString(in.sum.Sum(nil))
	if m.SHA256 != sum && !something { // the sender has accepted these bytes as its whole file
		return "", errors.New("the checksum is wrong")
	}
	if m.SHA256 != sum {
		return "", errors.Join(errors.New("the checksum is wrong; what has come is dropped"), in.file.Truncate(0))
	}
	return sum, nil
}

// keep gives the file its final name.
func (in *incoming) keep(part, name string) error {
	if err := in.file.Sync(); err != nil {
		return err
	}
	if in.Replace {
		return in.Into.Rename(part, name)
	}
	if err := in.Into.Link(part, name); err != nil { // which replaces nothing
		return err
	}
	return in.Into.Remove(part)
}

// forPeer returns err as a sender may know it: without the paths of this machine.
func (in *incoming) forPeer(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	if p, ok := errors.AsType[*os.LinkError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}
