// Package fabric is SCIF for applications of fabricd: nodes with small IDs,
// 16-bit ports, connected endpoints with an ordered byte stream, windows of
// memory that a peer reads and writes one-sidedly, fences that report when such
// transfers are done, and an event when a node is lost.
//
// A program reaches its node with [Attach], through the fabricd of the machine;
// with embed.Start, as a node of its own; or with fabrictest.NewCluster, as
// many nodes in one test. The rest of this page holds for all three.
//
//	n, err := fabric.Attach(ctx, "")               // $FABRIC_SOCKET
//	conn, err := n.Dial(ctx, "0:2050")
//	_, err = conn.Write([]byte("hello"))           // a net.Conn …
//	ep := conn.Endpoint()                          // … and a SCIF endpoint
//	mem, err := n.Alloc(1 << 20)
//	off, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
//	err = ep.WriteTo(off, 1<<20, peerOffset, fabric.Sync)
//
// # Cancellation
//
// Calls that may block take a context. One rule holds for all of them: a call
// that need not block succeeds even if its context is done. A call that its
// context ended has not happened, or, for Send and Recv, has happened for the n
// bytes that it returns. [Conn] is the exception that net.Conn asks for: with a
// deadline in the past it fails at once.
//
// # From SCIF to Go
//
//	scif_open             Node.Open
//	scif_bind             Endpoint.Bind
//	scif_listen           Endpoint.Listen; Node.Listen opens, binds and listens
//	scif_connect          Endpoint.Connect; Node.Dial opens and connects
//	  with O_NONBLOCK     Endpoint.TryConnect
//	scif_accept           Endpoint.Accept (SCIF_ACCEPT_SYNC), TryAccept
//	scif_close            Endpoint.Close
//	scif_send             Endpoint.Send (SCIF_SEND_BLOCK), TrySend; Conn.Write
//	scif_recv             Endpoint.Recv (SCIF_RECV_BLOCK), TryRecv; Conn.Read
//	scif_poll             Node.Poll
//	scif_get_fd           none: Poll waits for endpoints
//	scif_get_nodeIDs      Node.Nodes
//	scif_register         Endpoint.Register, on memory of Node.Alloc
//	scif_unregister       Endpoint.Unregister
//	scif_mmap             Endpoint.Mmap
//	scif_munmap           Mapping.Close
//	scif_readfrom         Endpoint.ReadFrom
//	scif_writeto          Endpoint.WriteTo
//	scif_vreadfrom        Endpoint.VReadFrom
//	scif_vwriteto         Endpoint.VWriteTo
//	scif_fence_mark       Endpoint.FenceMark
//	scif_fence_wait       Endpoint.FenceWait
//	scif_fence_signal     Endpoint.FenceSignal
//	scif_event_register   Node.OnEvent
//	scif_event_unregister the function that OnEvent returns
//	none                  Allow, an option of Listen: the nodes and users
//	                      that may connect
//	none                  Endpoint.Peer: the node, its labels and the user at the
//	                      other end
//	none                  the atomics: Endpoint.FetchAdd64 and its kin with the
//	                      old value, Endpoint.Add64 and its kin without
//	none                  Endpoint.PutSignal, VPutSignal: a write that a word
//	                      behind it announces
//	none                  Word32, Word64: the same words, where they are mapped
//
// The differences, with their reasons:
//
//   - A call returns its error, an [*OpError], where SCIF sets errno; errors.Is
//     matches the errno. Nothing to do is EAGAIN for TryAccept, and 0 bytes and
//     no error for TrySend and TryRecv, as with SCIF's drivers.
//   - A Recv that the end of the connection cuts short returns the short count
//     together with the error, not the error with the next call.
//   - Calls that are blocked when their endpoint is closed return. SCIF's
//     guide says so; its drivers left them hanging.
//   - Close of an endpoint that has mappings ends the connection at once; the
//     mappings stay.
//   - A protection mismatch is EACCES, as the header says (the drivers: EPERM).
//   - A listener that closes refuses the requests that wait.
//   - Register takes a free, aligned, non-zero offset as a hint without
//     MapFixed. It takes whole, aligned pages on a Node of any kind.
//   - Unregister of a range without windows succeeds; of a part of a window it
//     fails with EINVAL.
//   - Each family of flags has its own type. SCIF_FENCE_RAS_* do not exist.
//   - A lost node's mappings fault or keep their last contents; processes are
//     not killed.
//   - Endpoints are not inherited by child processes.
//   - A transfer that fails after it was begun fails FenceWait on every mark
//     behind it; the first one that failed gives the error.
//   - Poll does not report PollOut on a connection that has ended.
//   - VReadFrom through Attach is complete when it returns.
//   - Mmap needs both ends on one node and a range inside one window, which may be
//     read. Across nodes it is EOPNOTSUPP; the next section has the alternative.
//   - A mapping outlives its window, as with SCIF. Between processes it is then no
//     memory of the peer's any more; see "Memory that a peer on this node sees".
//
// # Memory of the peer, near and far
//
//	                 both ends on one node       across nodes
//	Mmap             the peer's own pages        EOPNOTSUPP
//	NewMirror        a copy                      a copy
//	stores are seen  Mmap: by both, at once, in  each its own copy, until Acquire
//	                 the order of their atomics  and Release move bytes
//	writers          Mmap: any                   Mirror: one at a time
//	the peer is      Mmap: the pages stay        Release: ECONNRESET, and dirty
//	lost                                         ranges stay dirty
//
// A [Mirror] moves ranges on request, and is not memory that two nodes share: no
// load through it waits for the network, and none sees bytes that were not acquired.
// Words that two nodes change at the same time are for the atomics.
//
// # Memory that a peer on this node sees
//
// A peer gets the bytes of windows, with the protection given at Register. An
// application on another node gets nothing else. One on the same node
// may get the memory itself, to map it and to copy without the node:
//
//	the peer is of         another user         the same user, or after ShareWindows
//	a window that is all   through the node     directly; Mmap works
//	of one Memory
//	a window on a part     through the node     through the node
//	of a Memory            Mmap: EOPNOTSUPP     Mmap: EOPNOTSUPP
//	without ProtRead       through the node     through the node
//	                       Mmap: EOPNOTSUPP     Mmap: EOPNOTSUPP
//
// So Alloc a Memory for each window that is to be fast. A peer that has a Memory sees all of it,
// at any time and in any order. A peer that has it with ProtRead alone cannot write it,
// whatever its user: the kernel refuses. Therefore one Memory is never handed out both ways: where
// a window on it allows writing, one that does not goes through the node, and the other
// way round.
//
// Memory that was handed out cannot be taken back. When the last window on such a Memory is gone,
// the Unregister, [Endpoint.Close] or [Node.Close] that has ended it moves the Memory to
// fresh pages at the same addresses, with its contents, before it returns. From then on
// the peer sees and writes nothing of this application. Until then it may: also after an
// earlier Unregister, while another window is on the Memory. The move takes as long as
// copying the Memory and needs as much again; stores of other goroutines of this process
// into it during that call may be lost. A Memory that is closed before is not moved, and
// one that no other application has had stays where it is. Where there is no room,
// Unregister and Node.Close fail with ENOMEM although the window is gone, and Register of
// that Memory does until there is.
//
// # When the peer is gone
//
// After the peer closed, or its process or node was lost:
//
//	Recv, TryRecv         the bytes that had arrived, then ECONNRESET; that
//	                      error is io.EOF as well after an orderly close. After
//	                      the loss of a node those bytes may be gone
//	Conn.Read             the bytes that had arrived, then io.EOF after an
//	                      orderly close, ECONNRESET after a loss
//	Send, TrySend, Write  ECONNRESET
//	blocked Send, Recv    wake with the short count and the error
//	Poll                  PollHup, and PollIn while there are bytes
//	Register, Unregister, Mmap, RMA, atomics, fences   ECONNRESET
//	a FenceWait that waits, or on an older mark        ECONNRESET
//	Connect in progress   ECONNREFUSED (the listener closed), ENODEV (its node
//	                      was lost)
//	Connect again         EINVAL: open a new endpoint
//	Connect to a lost node  ENODEV
//	a Mapping             stays, with its contents
//	Bind, Listen, Accept  EISCONN, EINVAL, EINVAL
//	Close                 succeeds
//
// The local port is free as soon as the connection has ended. NodeRemoved
// arrives after all of this holds. When the application's own fabricd goes
// away, every call fails and [Node.Done] is closed.
//
// # Limits
//
// Ports are 16 bits per node, the backlog is at most 1024, one transfer is at
// most 2⁶³−1 bytes and lies inside registered windows. The node bounds
// endpoints, windows and window memory per application; over a bound, calls
// fail with ENOMEM. By default an application may have 16384 endpoints, and two
// nodes may have 16,000 connections between them, of all their applications; over that, Connect fails
// with ENOBUFS, as fences do over 1024 of a connection that are not decided. A
// connection buffers a bounded number of bytes; a receiver
// that does not receive blocks its own sender only. The buffers of all connections of a
// node are bounded too, by half of its memory by default: when
// that runs short, new ones buffer less, and in the end Connect fails with ENOMEM.
package fabric
