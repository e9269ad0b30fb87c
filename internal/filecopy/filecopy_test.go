package filecopy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// both runs a sender and a receiver over a connection that wrap may change.
func both(t *testing.T, dir, path, name string, r Receiver, wrap func(net.Conn) net.Conn) (sent, got Result, serr, rerr error) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	r.Into = root
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, b := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer b.Close()
		got, rerr = r.Receive(b)
	}()
	sent, serr = Send(wrap(a), f, name, nil)
	a.Close()
	<-done
	return sent, got, serr, rerr
}

// pair returns the two ends of a connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		ends[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

func plain(c net.Conn) net.Conn { return c }

// file makes one of n random bytes.
func file(t *testing.T, n int) (path string, text []byte) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	text = make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	path = filepath.Join(t.TempDir(), "from")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, text
}

func TestAFileArrives(t *testing.T) {
	for _, n := range []int{0, 1, piece, 3*piece + 17} {
		path, text := file(t, n)
		dir := t.TempDir()
		sent, got, serr, rerr := both(t, dir, path, "to", Receiver{}, plain)
		sum := sha256.Sum256(text)
		want := Result{Name: "to", Size: int64(n), SHA256: hex.EncodeToString(sum[:])}
		if serr != nil || rerr != nil || sent != want || got != want {
			t.Fatalf("%d bytes: %+v, %v; %+v, %v", n, sent, serr, got, rerr)
		}
		if have, err := os.ReadFile(filepath.Join(dir, "to")); err != nil || !bytes.Equal(have, text) {
			t.Errorf("%d bytes: %d arrived, %v", n, len(have), err)
		}
		if all, _ := os.ReadDir(dir); len(all) != 1 {
			t.Errorf("the directory has %v", all)
		}
	}
}

// A cutConn ends after so many bytes were written.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Write(p []byte) (int, error) {
	if len(p) > c.left {
		n, _ := c.Conn.Write(p[:c.left])
		c.Conn.Close()
		return n, errors.New("cut")
	}
	c.left -= len(p)
	return c.Conn.Write(p)
}

// TestASecondTryGoesOn where the first was cut off, and begins anew with another file.
func TestASecondTryGoesOn(t *testing.T) {
	path, text := file(t, 3*piece)
	dir := t.TempDir()
	_, _, serr, rerr := both(t, dir, path, "to", Receiver{}, func(c net.Conn) net.Conn { return &cutConn{c, piece + piece/2} })
	if serr == nil || rerr == nil {
		t.Fatalf("cut: %v, %v", serr, rerr)
	}
	if _, err := os.Stat(filepath.Join(dir, "to")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("part of a file has its name: %v", err)
	}
	sent, got, serr, rerr := both(t, dir, path, "to", Receiver{}, plain)
	if serr != nil || rerr != nil || sent.From == 0 || sent != got {
		t.Fatalf("%+v, %v; %+v, %v", sent, serr, got, rerr)
	}
	if have, err := os.ReadFile(filepath.Join(dir, "to")); err != nil || !bytes.Equal(have, text) {
		t.Errorf("%d bytes, %v", len(have), err)
	}
	both(t, dir, path, "other", Receiver{}, func(c net.Conn) net.Conn { return &cutConn{c, 2 * piece} })
	path, text = file(t, 2*piece)
	sent, _, serr, rerr = both(t, dir, path, "other", Receiver{}, plain)
	if serr != nil || rerr != nil || sent.From != 0 {
		t.Fatalf("%+v, %v, %v", sent, serr, rerr)
	}
	if have, err := os.ReadFile(filepath.Join(dir, "other")); err != nil || !bytes.Equal(have, text) {
		t.Errorf("%d bytes, %v", len(have), err)
	}
}

// A liar changes one of the sent bytes.
type liar struct {
	net.Conn
	at int
}

func (c *liar) Write(p []byte) (int, error) {
	if c.at >= 0 && c.at < len(p) {
		p = bytes.Clone(p)
		p[c.at] ^= 1
	}
	c.at -= len(p)
	return c.Conn.Write(p)
}

func TestAWrongChecksumLeavesNoFile(t *testing.T) {
	path, _ := file(t, piece)
	dir := t.TempDir()
	_, _, serr, rerr := both(t, dir, path, "to", Receiver{}, func(c net.Conn) net.Conn { return &liar{c, piece / 2} })
	if rerr == nil || !strings.Contains(rerr.Error(), "checksum is wrong") || serr == nil || !strings.Contains(serr.Error(), "checksum is wrong") {
		t.Errorf("%v, %v", serr, rerr)
	}
	if _, err := os.Stat(filepath.Join(dir, "to")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}

func TestAFileThatIsThereIsReplacedOnlyIfAsked(t *testing.T) {
	path, text := file(t, 100)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "to"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, serr, rerr := both(t, dir, path, "to", Receiver{}, plain)
	if serr == nil || !strings.Contains(serr.Error(), "is there already") || rerr == nil {
		t.Errorf("%v, %v", serr, rerr)
	}
	_, _, serr, rerr = both(t, dir, path, "to", Receiver{MaxSize: 99, Replace: true}, plain)
	if serr == nil || !strings.Contains(serr.Error(), "more than 99") || rerr == nil {
		t.Errorf("%v, %v", serr, rerr)
	}
	_, _, serr, rerr = both(t, dir, path, "to", Receiver{Replace: true}, plain)
	if have, err := os.ReadFile(filepath.Join(dir, "to")); serr != nil || rerr != nil || err != nil || !bytes.Equal(have, text) {
		t.Errorf("%v, %v: %q, %v", serr, rerr, have, err)
	}
}

// TestACopyThatWasCutOffBehindItsNameIsWhole: the receiver ended before it removed the
// partial file's name. The same file is there then, and another one changes nothing.
func TestACopyThatWasCutOffBehindItsNameIsWhole(t *testing.T) {
	path, text := file(t, 2*piece)
	dir := t.TempDir()
	cut := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, partOf("to")), text, 0o600); err != nil {
			t.Fatal(err)
		}
		os.Remove(filepath.Join(dir, "to"))
		if err := os.Link(filepath.Join(dir, partOf("to")), filepath.Join(dir, "to")); err != nil {
			t.Fatal(err)
		}
	}
	left := func(want int) {
		t.Helper()
		all, _ := os.ReadDir(dir)
		if have, err := os.ReadFile(filepath.Join(dir, "to")); err != nil || !bytes.Equal(have, text) || len(all) != want {
			t.Errorf("%d bytes are there, %v, in %v", len(have), err, all)
		}
	}
	cut()
	sent, got, serr, rerr := both(t, dir, path, "to", Receiver{}, plain)
	if serr != nil || rerr != nil || sent.From != 2*piece || sent != got {
		t.Fatalf("%+v, %v; %+v, %v", sent, serr, got, rerr)
	}
	left(1)
	for _, n := range []int{0, piece, 2 * piece, 3 * piece} {
		cut()
		other, _ := file(t, n)
		if _, _, serr, rerr := both(t, dir, other, "to", Receiver{}, plain); serr == nil || rerr == nil || !strings.Contains(serr.Error(), "to is there already") {
			t.Errorf("another file of %d bytes: %v, %v", n, serr, rerr)
		}
		left(2)
	}
	cut()
	if _, _, serr, rerr := both(t, dir, path, "to", Receiver{Replace: true}, plain); serr != nil || rerr != nil {
		t.Errorf("replace: %v, %v", serr, rerr)
	}
	left(1)
}

// TestASenderWaitsForAnEarlierOne, but not for long.
func TestASenderWaitsForAnEarlierOne(t *testing.T) {
	name := filepath.Join(t.TempDir(), partOf("to"))
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			ends time.Duration
			want bool
		}{{0, true}, {lockTime - lockPause, true}, {2 * lockTime, false}} {
			earlier, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			if !lock(earlier) {
				t.Fatal("a file of nobody cannot be locked")
			}
			time.AfterFunc(c.ends, func() { earlier.Close() })
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if got := lock(f); got != c.want {
				t.Errorf("an earlier sender ends after %v: locked %v after %v, want %v", c.ends, got, time.Since(began), c.want)
			}
			f.Close()
			time.Sleep(2 * lockTime)
		}
	})
}

// TestAPartialFileIsNoOtherFile: a file that another user of the directory has put in its
// place is neither changed nor waited for.
func TestAPartialFileIsNoOtherFile(t *testing.T) {
	path, text := file(t, piece)
	dir := t.TempDir()
	part, other := filepath.Join(dir, partOf("to")), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(other, part); err != nil {
		t.Fatal(err)
	}
	_, _, serr, rerr := both(t, dir, path, "to", Receiver{}, plain)
	have, err := os.ReadFile(filepath.Join(dir, "to"))
	if serr != nil || rerr != nil || err != nil || !bytes.Equal(have, text) {
		t.Errorf("%v, %v: %d bytes, %v", serr, rerr, len(have), err)
	}
	if have, err := os.ReadFile(other); string(have) != "precious" || err != nil {
		t.Errorf("the other file is %.20q, %v", have, err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, partOf("pipe")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, serr, rerr := both(t, dir, path, "pipe", Receiver{}, plain); serr == nil || rerr == nil || !strings.Contains(serr.Error(), "no regular file") {
		t.Errorf("a pipe: %v, %v", serr, rerr)
	}
}

// TestHostileSendersReachNoOtherFile: names, links, sizes and messages.
func TestHostileSendersReachNoOtherFile(t *testing.T) {
	outside := t.TempDir()
	for _, sent := range []string{
		`{"version":1,"name":"../x","size":1}`, `{"version":1,"name":"..","size":1}`, `{"version":1,"name":"/x","size":1}`,
		`{"version":1,"name":"a/b","size":1}`, `{"version":1,"name":".x","size":1}`, `{"version":1,"name":"","size":1}`,
		`{"version":1,"name":"a\u0000","size":1}`, `{"version":1,"name":"a\u001b[2J","size":1}`, `{"version":1,"name":"a","size":-1}`,
		`{"version":2,"name":"a","size":1}`, `{}`, `[]`, `x`, strings.Repeat("x", 2*maxMessage), `{"version":1,"name":"` + strings.Repeat("x", maxName+1) + `","size":1}`,
		`{"version":1,"name":"link","size":1}` + "\n" + `{"offset":0}` + "\nxx",
		`{"version":1,"name":"a","size":9}` + "\n" + `{"offset":5}` + "\nx",
	} {
		dir := t.TempDir()
		if err := os.Symlink(filepath.Join(outside, "f"), filepath.Join(dir, ".link.partial")); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		a, b := net.Pipe()
		done := make(chan error)
		go func() {
			_, err := Receiver{Into: root}.Receive(b)
			b.Close()
			done <- err
		}()
		go io.Copy(io.Discard, a)
		io.WriteString(a, sent+"\n")
		a.Close()
		if err := <-done; err == nil {
			t.Errorf("%.100q was taken", sent)
		}
		root.Close()
		if all, _ := os.ReadDir(outside); len(all) != 0 {
			t.Fatalf("%.100q has written %v", sent, all)
		}
		if _, err := os.Stat(filepath.Join(dir, "a")); err == nil {
			t.Errorf("%.100q has made a file", sent)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"a","size":1}` + "\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := read(bufio.NewReaderSize(bytes.NewReader(b), maxMessage))
		if err == nil && CheckName(m.Name) == nil && (strings.ContainsAny(m.Name, "/\x00") || m.Name == "..") {
			t.Errorf("the name %q", m.Name)
		}
	})
}

// TestOtherEndIsNoReceiver: another program that ends the connection or answers with something else.
func TestOtherEndIsNoReceiver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"", "220 hello\r\n", strings.Repeat("x", 2*maxMessage)} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		a, b := pair(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = bufio.NewReader(b).ReadString('\n') // the offer; without it Send fails
			_, _ = io.WriteString(b, says)             // as above
			b.Close()
		}()
		_, err = Send(a, f, "file", nil)
		if err == nil || err.Error() != "the other end is no fabricd cp" {
			t.Errorf("%.20q: %v", says, err)
		}
		<-done
		a.Close()
		f.Close()
	}
}
