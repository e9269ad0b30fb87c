package conformance

import "slices"

// A rest is a line of the contract that cannot apply to fabricd, with the reason.
type rest struct {
	call, name, why string
}

// rests are all lines of the contract without a row.
var rests = slices.Concat([]rest{
	{"open", "no driver=ENOENT, ENODEV, or another version of it=ENXIO", "there is no device file; fabric.Attach fails instead, and package attach/client tests how"},
	{"connect", "NULL address=EINVAL", "an address is a value"},
	{"connect", "no buffers=ENOBUFS", "the header alone has it: in the drivers no path returns it, and what a connection needs is counted as memory"},
	{"accept", "unknown flags=EINVAL", "Accept and TryAccept are the only two flags"},
	{"accept", "NULL peer or endpoint=EINVAL", "both are results"},
	{"accept", "no buffers=ENOBUFS", "as with connect"},
	{"accept", "the requester's node is lost=ENODEV", "its request leaves the queue with it: Accept goes on to the next, TryAccept has a row"},
	{"accept", "the new descriptor cannot be set up=ENOENT", "the new endpoint comes from one call, not from two"},
	{"close", "no valid endpoint=EINVAL", "the kernel's and the Windows variant of EBADF, which has a row"},
	{"send", "length < 0=EINVAL", "a slice has no negative length"},
	{"send", "unknown flags=EINVAL", "Send and TrySend are the only two flags"},
	{"send", "closed by another thread=EINTR", "the Guide has ECONNRESET, which has a row"},
	{"send", "no memory for the copy=ENOMEM", "the connection has had its room since connect"},
	{"recv", "length < 0=EINVAL", "a slice has no negative length"},
	{"recv", "unknown flags=EINVAL", "Recv and TryRecv are the only two flags"},
	{"recv", "the node comes back from low power=EAGAIN", "nodes have no power states"},
	{"recv", "no memory for the copy=ENOMEM", "the connection has had its room since connect"},
	{"poll", "more items than descriptors=EINVAL", "items are no descriptors"},
	{"poll", "no memory for tables=ENOMEM", "Poll keeps no tables; memory of the Go runtime is not refused"},
	{"get_fd", "O_NONBLOCK by fcntl", "TryConnect is connect with O_NONBLOCK and has rows"},
	{"get_nodeIDs", "shorter array=truncated, total returned", "Nodes returns a slice of the right length"},
	{"get_nodeIDs", "bad memory=EFAULT", "results are values"},
	{"register", "lack of resources=EAGAIN", "it is ENOMEM, as in Linux; that has a row"},
	{"register", "over RLIMIT_MEMLOCK=ENOMEM", "pages are not pinned; the node's quota of windows has a row"},
	{"register", "fixed, offset of 2^62 or more=EADDRINUSE", "the header calls it a limit of one implementation; the space goes on to 2^63, and has rows"},
	{"register", "copy-on-write after fork", "Go programs do not fork without exec"},
	{"unregister", "no window in the range=ENXIO", "the Guide has 0, which has a row"},
	{"mmap", "store through a mapping that only reads=SIGSEGV", "it ends the process; package attach/client tests the mapping's protection"},
	{"mmap", "mapping is not inherited over fork", "Go programs do not fork without exec"},
	{"mmap", "unknown flags=EINVAL", "Mmap has none"},
	{"fence_mark", "NULL mark=EFAULT", "the mark is a result"},
	{"fence_mark", "no memory=ENOMEM", "a mark takes none; a queue that is full is ENOBUFS"},
	{"fence_wait", "no memory=ENOMEM", "as with fence_mark"},
	{"fence_wait", "10 s pass=ETIMEDOUT", "a watchdog of the drivers; the caller's context bounds the wait, which has a row"},
	{"events", "unknown callback=EINVAL", "unregistering is a function that only OnEvent returns"},
	{"events", "no memory=ENOMEM", "memory of the Go runtime is not refused"},
	{"events", "kernel calls (pin_pages, get_pages, pci_info, …)", "not user-mode calls"},
},
	each("descriptor of something else=ENOTTY", "an endpoint is a type of its own",
		"bind", "listen", "connect", "accept", "send", "recv", "register", "unregister", "mmap",
		"readfrom", "writeto", "vreadfrom", "vwriteto", "fence_mark", "fence_wait", "fence_signal"),
	each("signal=EINTR", "signals do not interrupt calls in Go; a context does, which has rows",
		"connect", "send", "recv", "poll"),
	each("bad memory=EFAULT", "a slice is memory",
		"send", "recv", "poll", "vreadfrom", "vwriteto"),
	each("the peer's node is lost=ENODEV", "the Guide has ECONNRESET, which has rows: a lost node disconnects its endpoints before a call finds it gone",
		"send", "recv", "register", "unregister", "mmap",
		"readfrom", "writeto", "vreadfrom", "vwriteto", "fence_mark", "fence_wait", "fence_signal"),
	each("the window of the pinned pages is not valid=EPERM", "nothing is pinned; a window that does not allow the transfer is EACCES, which has rows",
		"vreadfrom", "vwriteto"),
)

// each returns the same line for several calls.
func each(name, why string, calls ...string) (lines []rest) {
	for _, call := range calls {
		lines = append(lines, rest{call, name, why})
	}
	return lines
}
