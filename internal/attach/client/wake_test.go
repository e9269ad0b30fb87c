package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/shm"
)

// A waker is one of two processes that wake each other.
type waker interface {
	wake() error
	wait() error
}

// A waking is a way of waking the other process.
type waking struct {
	name    string
	eventfd bool // one for each direction; else a socket pair
	blocked bool // a thread waits, else the runtime's poller
	make    func(in, out *os.File) (waker, error)
}

// A doorbell is a socket pair, so that its end is visible: the others show the cost of that.
var wakings = []waking{
	{"doorbell", false, false, func(in, _ *os.File) (waker, error) {
		b, err := shm.NewDoorbell(in)
		return doorbellWaker{b}, err
	}},
	{"socket pair byte", false, false, func(in, out *os.File) (waker, error) { return fileWaker{in, out, []byte{1}, make([]byte, 64)}, nil }},
	{"eventfd", true, false, func(in, out *os.File) (waker, error) { return fileWaker{in, out, one, make([]byte, 8)}, nil }},
	{"socket pair byte to a thread", false, true, func(in, out *os.File) (waker, error) {
		return threadWaker{fileWaker{in, out, []byte{1}, make([]byte, 64)}}, nil
	}},
	{"eventfd to a thread", true, true, func(in, out *os.File) (waker, error) {
		return threadWaker{fileWaker{in, out, one, make([]byte, 8)}}, nil
	}},
}

// one is the number added to an eventfd.
var one = binary.NativeEndian.AppendUint64(nil, 1)

type doorbellWaker struct{ *shm.Doorbell }

func (b doorbellWaker) wake() error { b.Ring(); return nil }
func (b doorbellWaker) wait() error { return b.Wait(context.Background()) }

type fileWaker struct {
	in, out *os.File
	ring    []byte
	buf     []byte
}

func (w fileWaker) wake() error { _, err := w.out.Write(w.ring); return err }
func (w fileWaker) wait() error { return filled(w.in.Read(w.buf)) }

// A threadWaker is a fileWaker past the runtime.
type threadWaker struct{ fileWaker }

func (w threadWaker) wake() error { _, err := syscall.Write(int(w.out.Fd()), w.ring); return err }
func (w threadWaker) wait() error { return filled(syscall.Read(int(w.in.Fd()), w.buf)) }

func filled(n int, err error) error {
	if err == nil && n == 0 {
		return io.EOF
	}
	return err
}

// answerWakings is the other process: it wakes the process that has woken it, until it is
// killed or the other end is closed.
func answerWakings(name string) error {
	i := slices.IndexFunc(wakings, func(k waking) bool { return k.name == name })
	if i < 0 {
		return fmt.Errorf("no waking %q", name)
	}
	go func() { // until the test that has started this process is gone
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if wakings[i].blocked {
		runtime.LockOSThread()
	}
	w, _, err := wakerOf(i, 3, 4)
	for err == nil {
		if err = w.wait(); err == nil {
			err = w.wake()
		}
	}
	return err
}

// wakerOf makes a waker of two descriptors, which it takes. close gives them back.
func wakerOf(i, in, out int) (w waker, closes func(), err error) {
	for _, fd := range []int{in, out} {
		if err := syscall.SetNonblock(fd, !wakings[i].blocked); err != nil {
			return nil, nil, err
		}
	}
	from, to := os.NewFile(uintptr(in), "in"), os.NewFile(uintptr(out), "out")
	w, err = wakings[i].make(from, to)
	return w, func() {
		from.Close()
		to.Close()
		if b, ok := w.(doorbellWaker); ok {
			b.Close()
		}
	}, err
}

// wakingEnds returns for each of two processes the descriptors at which it waits and with which it
// wakes, in this order, all distinct.
func wakingEnds(eventfd bool) (here, there [2]int, err error) {
	if !eventfd {
		var pair [2]int
		if pair, err = syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err != nil {
			return here, there, err
		}
		here[0], there[0] = pair[0], pair[1]
		if here[1], err = dup(pair[0]); err == nil {
			there[1], err = dup(pair[1])
		}
		return here, there, err
	}
	for j := range 2 {
		fd, _, e := syscall.RawSyscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC, 0)
		if e != 0 {
			return here, there, e
		}
		here[j] = int(fd)
		if there[1-j], err = dup(here[j]); err != nil {
			return here, there, err
		}
	}
	return here, there, nil
}

// dup duplicates a descriptor that programs started from here do not get.
func dup(fd int) (int, error) {
	n, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// startWaking starts the other process, and returns this one's side. It ends with
// the test.
func startWaking(t testing.TB, i int) waker {
	t.Helper()
	here, there, err := wakingEnds(wakings[i].eventfd)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), "ATTACH_TEST_WAKES="+wakings[i].name), os.Stderr
	for _, fd := range there {
		f := os.NewFile(uintptr(fd), "there")
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	stdin, err := cmd.StdinPipe() // the end of it is the child's
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	w, closes, err := wakerOf(i, here[0], here[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closes)
	return w
}

// Every way of waking that is measured does wake.
func TestWakings(t *testing.T) {
	for i, k := range wakings {
		t.Run(k.name, func(t *testing.T) {
			w := startWaking(t, i)
			for range 100 {
				if err := errors.Join(w.wake(), w.wait()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWake measures a wake-up there and one back, between two processes.
func BenchmarkWake(b *testing.B) {
	for i, k := range wakings {
		b.Run(k.name, func(b *testing.B) {
			w := startWaking(b, i)
			if k.blocked {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
			}
			for b.Loop() {
				if err := errors.Join(w.wake(), w.wait()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
