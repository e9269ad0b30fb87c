package fabric

import (
	"context"
	"errors"
	"os"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach/client"
)

// DefaultSocket is the path of fabricd's socket without an argument or $FABRIC_SOCKET.
const DefaultSocket = "/run/fabricd/fabric.sock"

// Attach attaches to the fabricd of this machine through the Unix socket at
// path; "" is $FABRIC_SOCKET, and if that is empty [DefaultSocket]. ctx bounds
// the attaching only: while fabricd starts, or its node has no ID yet because the
// cluster's host is not reached, Attach waits. The caller closes the Node; when the
// process ends in any way, fabricd closes it.
//
// $FABRIC_LATENCY is normal, or low: with low, a call that waits for another
// application of this machine keeps its processor for some milliseconds, so that
// a message between the two takes less than one microsecond instead of several.
//
// $FABRIC_SPIN is how often such a call polls before it sleeps, at most: from 0,
// never, to 16777216. A poll takes some tens of nanoseconds. Without the variable a
// call polls a few hundred times where there are at least four processors, less
// often where that does not pay, and with low latency some 250,000 times.
//
// $FABRIC_HUGE_PAGES is off, try or require: with try and require the memory of
// [Node.Alloc] lies in huge pages, as far as it fills some. Where there are none,
// try leaves it as it is ([Memory.SmallPages] returns why), and with require Alloc
// fails. They are not those of vm.nr_hugepages: no page needs to be reserved.
//
// An application of another user on this node reaches the application's windows
// through the node, which copies; with [ShareWindows] as those of its own user do.
//
// Where every user may put a socket (a directory with mode 0777, not mounted read-only),
// the process that serves it must be of root, of this user or of the directory's
// owner.
//
// Errors: EINVAL for another value of these three, ENODEV if no fabricd serves the
// path, EACCES if it may not be opened, if another user serves it, or if fabricd
// refuses the application, EPROTONOSUPPORT if
// the two have no version in common, the context's error, with the reason why the node waits.
func Attach(ctx context.Context, path string, options ...AttachOption) (*Node, error) {
	if path == "" {
		path = os.Getenv("FABRIC_SOCKET")
	}
	if path == "" {
		path = DefaultSocket
	}
	var opt client.DialOptions
	for _, o := range options {
		o.set(&opt)
	}
	s, err := client.DialWith(ctx, path, opt)
	if err != nil {
		return nil, &OpError{Op: "attach", Local: Addr{Node: addr.NoNode}, Err: attachError(ctx, err)}
	}
	return newNode(s), nil
}

// attachError is contextError that keeps the reason why the node waited.
func attachError(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	return contextError(ctx, err)
}

// An AttachOption changes how an application attaches.
type AttachOption struct{ set func(*client.DialOptions) }

// ShareWindows gives applications of other users on this node the memory of the
// application's windows: they map it ([Endpoint.Mmap]) and copy by themselves, and keep
// it after the window is gone. Without it such a peer gets the bytes through the node
// alone, and its Mmap is EOPNOTSUPP. The protection of a window holds in any case.
func ShareWindows() AttachOption {
	return AttachOption{func(o *client.DialOptions) { o.ShareWindows = true }}
}
