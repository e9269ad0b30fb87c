package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A packet from a TUN device is at most 64 KiB, after the header that describes how the kernel
// would segment it: TCP sends many segments at once, and the line carries them as one.
const (
	vnetHeader  = 10
	mostPacket  = vnetHeader + 1<<16
	segmentSize = 1448
	segmentHead = 66 // of each segment: Ethernet, IP and TCP
)

// mostUnderWay bounds the packets on the wire of one direction.
const mostUnderWay = 1 << 15

func (a *app) relayProcess() *cobra.Command {
	var text, from, to string
	cmd := &cobra.Command{
		Use: relayCommand, Hidden: true, Args: cobra.NoArgs, Short: "Be the way between two namespaces: fabric-bench run starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := parseWay(text)
			if err != nil {
				return err
			}
			near, err := tunIn(from)
			if err != nil {
				return err
			}
			defer near.Close()
			far, err := tunIn(to)
			if err != nil {
				return err
			}
			defer far.Close()
			fmt.Fprintln(a.stdout, "ready")
			var both sync.WaitGroup
			errs := make([]error, 2)
			both.Go(func() { errs[0] = relay(cmd.Context(), near, far, w) })
			both.Go(func() { errs[1] = relay(cmd.Context(), far, near, w) })
			both.Wait()
			return errors.Join(errs...)
		},
	}
	f := cmd.Flags()
	f.StringVar(&text, "way", "", "the way")
	f.StringVar(&from, "from", "", "network namespace of one end")
	f.StringVar(&to, "to", "", "network namespace of the other end")
	return cmd
}

// tunIn creates the TUN device eth0 in a namespace.
func tunIn(space string) (*os.File, error) {
	var file *os.File
	errs := make(chan error, 1)
	go func() { // ends at once, together with its thread, whose namespace is changed
		runtime.LockOSThread()
		errs <- func() error {
			ns, err := os.Open("/run/netns/" + space)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("setns %s: %w", space, err)
			}
			file, err = tun("eth0")
			return err
		}()
	}()
	return file, <-errs
}

// tun creates a TUN device in this thread's namespace. The kernel passes TCP's data unsegmented,
// with checksums still to be computed: both ends are this machine.
func tun(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	file := os.NewFile(uintptr(fd), "/dev/net/tun")
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a TUN device: %w", err), file.Close())
	}
	return file, nil
}

// A flying packet is in flight on the wire.
type flying struct {
	due   time.Time
	bytes []byte
}

// relay carries packets in one direction until ctx ends or a device fails. A packet that finds the
// queue full is dropped.
func relay(ctx context.Context, from, to *os.File, w way) error {
	wire := make(chan flying, mostUnderWay)
	var landing sync.WaitGroup
	var failed error
	landing.Go(func() {
		for p := range wire {
			sleepUntil(p.due)
			if _, err := to.Write(p.bytes); err != nil && !errors.Is(err, unix.EINVAL) && failed == nil {
				failed = err
			}
		}
	})
	defer landing.Wait()
	defer close(wire)
	l := newLine(w)
	buf := make([]byte, mostPacket)
	for ctx.Err() == nil {
		n, err := from.Read(buf)
		if err != nil {
			return errors.Join(failed, err)
		}
		due, ok := l.pass(time.Now(), onWire(n-vnetHeader))
		if !ok || len(wire) == cap(wire) {
			continue
		}
		wire <- flying{due, append([]byte(nil), buf[:n]...)} // never blocks: only this goroutine sends
	}
	return failed
}

// onWire returns the number of bytes of a packet on the wire, after segmentation.
func onWire(n int) int { return n + (n+segmentSize-1)/segmentSize*segmentHead }

// sleepUntil waits in the kernel: the runtime's timers have a resolution of a millisecond if
// nothing else runs.
func sleepUntil(t time.Time) {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		ts := unix.NsecToTimespec(d.Nanoseconds())
		_ = unix.Nanosleep(&ts, nil) // after an interruption the loop sleeps for the rest
	}
}
