package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/wait"
)

// A Flood is an application that takes all that its node gives: connections with itself,
// bytes that it never receives, windows. It holds all of that until it is closed.
type Flood struct {
	node *fabric.Node
	ends []*fabric.Endpoint

	Conns, Windows int
	Bytes          int64 // sent and not received
}

const (
	floodPort   fabric.Port = 2052
	floodConns              = 1 << 10 // a node that gives more has no bound worth the name
	floodPasses             = 3       // over all connections: more messages would move to a shared-memory path, past the node
	floodPause              = 100 * time.Millisecond
	floodPiece              = 1 << 20
	floodLeast              = 32 << 10 // bytes that each end takes, of both ends' ways
	floodWindow             = 64 << 10 // bytes
	floodMost               = 1 << 16  // windows
)

// NewFlood floods the node with the socket at path until the node refuses connections
// and windows for want of memory, as it has to; any other result is an error.
func NewFlood(ctx context.Context, path string) (_ *Flood, err error) {
	f := new(Flood)
	if f.node, err = fabric.Attach(ctx, path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err = f.connect(ctx); err == nil {
		if err = f.fill(ctx); err == nil {
			err = f.register(ctx)
		}
	}
	return f, err
}

// Close gives everything back.
func (f *Flood) Close() error { return f.node.Close() }

// connect makes connections until the node has no memory for one more: either end may
// be the one that is refused.
func (f *Flood) connect(ctx context.Context) error {
	in, err := f.node.Listen(floodPort)
	if err != nil {
		return err
	}
	var accepted []*fabric.Endpoint
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			here, err := in.AcceptConn(ctx)
			if err != nil {
				return // closed below, or the node is gone, which dial reports
			}
			accepted = append(accepted, here.Endpoint())
		}
	})
	err = f.dial(ctx)
	in.Close()
	wg.Wait()
	f.ends = append(f.ends, accepted...)
	if err == nil && len(f.ends) == 0 {
		err = errors.New("the node had no room for a first connection")
	}
	return err
}

func (f *Flood) dial(ctx context.Context) error {
	for ; f.Conns < floodConns; f.Conns++ {
		there, err := f.node.DialAddr(ctx, fabric.Addr{Node: f.node.Incarnation().Node, Port: floodPort})
		if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		if err != nil {
			return err
		}
		f.ends = append(f.ends, there.Endpoint())
	}
	return fmt.Errorf("the node still had room after %d connections", f.Conns)
}

// fill sends into every connection, both ways, until it is full. The bytes of a send
// take a moment to move on.
func (f *Flood) fill(ctx context.Context) error {
	piece := make([]byte, floodPiece)
	for range floodPasses {
		for _, e := range f.ends {
			n, err := e.TrySend(piece)
			if f.Bytes += int64(n); err != nil && !errors.Is(err, syscall.EAGAIN) {
				return err
			}
		}
		if !wait.For(ctx.Done(), floodPause) {
			return context.Cause(ctx)
		}
	}
	if least := int64(floodLeast * len(f.ends)); f.Bytes < least {
		return fmt.Errorf("%d connections took %d bytes, want %d", f.Conns, f.Bytes, least)
	}
	return nil
}

// register makes windows until the node has no memory for one more.
func (f *Flood) register(ctx context.Context) error {
	for f.Windows < floodMost && ctx.Err() == nil {
		mem, err := f.node.Alloc(floodWindow)
		if err == nil {
			_, err = f.ends[0].Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
		}
		if errors.Is(err, syscall.ENOMEM) {
			return nil
		}
		if err != nil {
			return err
		}
		f.Windows++
	}
	return errors.Join(ctx.Err(), fmt.Errorf("the node still had room after %d windows", f.Windows))
}
