package mutants

// All are the mutants, by the package that they break.
var All = []Mutant{
	// Fences and signals.
	{
		Name: "fence-skipped", What: "a fence wait returns at once",
		File: "internal/core/fence.go", By: Simulation, Hint: "fences-in-time",
		Old: "	if c.ops.Reached(m.Seq) {\n", New: "	if true {\n",
	},
	{
		Name: "fence-one-ahead", What: "a fence is reached one operation too early",
		File: "fence/tracker.go", By: Simulation, Hint: "fences-in-time",
		Old: "return mark <= t.done }", New: "return mark <= t.done+1 }",
	},
	{
		Name: "fence-out-of-order", What: "an operation that ends before its turn ends all before it",
		File: "fence/tracker.go", By: "./fence",
		Old: "	if seq != t.done+1 {\n", New: "	if t.done = max(t.done, seq-1); false {\n",
	},
	{
		Name: "fence-never-wakes", What: "a caller that waits for exactly the last operation is not woken",
		File: "fence/waiters.go", By: Simulation,
		Old: "w.queue[0].seq > done {", New: "w.queue[0].seq >= done {",
	},
	{
		Name: "signal-early", What: "a signal is stored before the operations that it covers have ended",
		File: "internal/core/fence.go", By: Simulation, Hint: "signals-in-order",
		Old: "	reached := c.ops.Reached(w.mark)\n", New: "	reached := true\n",
	},
	{
		Name: "signal-overtakes", What: "a signal overtakes one that waits for a read",
		File: "internal/core/fence.go", By: Simulation, Hint: "signals-in-order",
		Old: "c.reads == 0 && c.deferred == 0 &&", New: "c.reads == 0 &&",
	},
	{
		Name: "signal-after-failure", What: "a signal is sent although an operation before it failed",
		File: "internal/core/fence.go", By: "./internal/core",
		Old: "		if code == status.OK {\n			c.signalPeer(s)\n", New: "		if true {\n			c.signalPeer(s)\n",
	},

	// Operations and windows of a connection.
	{
		Name: "ack-dropped", What: "every seventh operation is not acknowledged",
		File: "internal/core/incoming.go", By: Simulation,
		Old: "	if code == status.OK {\n		c.reply(wire.Done{Op: number}", New: "	if number%7 == 0 {\n		return\n	}\n	if code == status.OK {\n		c.reply(wire.Done{Op: number}",
	},
	{
		Name: "ack-one-short", What: "an acknowledgement does not count for the operation that it names",
		File: "internal/core/op.go", By: Simulation,
		Old: "	for s := from; s <= seq; s++ {\n		if op := c.find(s); op != nil && op.Kind", New: "	for s := from; s < seq; s++ {\n		if op := c.find(s); op != nil && op.Kind",
	},
	{
		Name: "read-ends-early", What: "an acknowledgement ends reads whose bytes have not come",
		File: "internal/core/op.go", By: "./internal/core",
		Old: "op != nil && op.Kind != OpRead && op.Kind != OpAtomic {", New: "op != nil {",
	},
	{
		Name: "write-overtakes-read", What: "a write changes what a read before it returns",
		File: "internal/core/op.go", By: "./internal/core",
		Old: "	if c.reads == 0 {\n", New: "	if c.reads >= 0 {\n",
	},
	{
		Name: "waiters-forgotten", What: "operations under way do not fail when the peer is lost",
		File: "internal/core/conn.go", By: Simulation, Hint: "requests-under-way",
		Old: "	c.failed = code\n	c.endThrough(c.ops.Begun(), code)\n", New: "	c.failed = code\n",
	},
	{
		Name: "requests-forgotten", What: "a caller that asked the peer for something is not notified that it is lost",
		File: "internal/core/conn.go", By: Simulation, Hint: "requests-under-way",
		Old: "		c.wake(waiter, code)\n", New: "		_ = waiter\n",
	},
	{
		Name: "unregister-does-not-wait", What: "a window is let go of while a read of it is under way",
		File: "internal/core/requests.go", By: Simulation, Hint: "windows-taken-back",
		Old: "	if c.reads > 0 || c.deferred > 0 {\n", New: "	if false {\n",
	},
	{
		Name: "withdrawn-refused", What: "a window that is being unregistered refuses what was under way",
		File: "rma/span.go", By: Simulation, Hint: "windows-taken-back",
		Old: "	return s.spans(dst, off, n, need, withdrawn)\n", New: "	return s.spans(dst, off, n, need, registered)\n",
	},
	{
		Name: "window-not-retained", What: "an operation under way does not keep its window",
		File: "rma/space.go", By: Simulation, Hint: "window-races",
		Old: "	w.refs++\n", New: "",
	},
	{
		Name: "bounds-off-by-one", What: "a range may reach one byte beyond its window",
		File: "rma/span.go", By: "./rma",
		Old: "Length: min(n, e.end-off)}", New: "Length: min(n, e.end-off+1)}",
	},
	{
		Name: "protection-ignored", What: "the protection of a window is not looked at",
		File: "rma/span.go", By: "./rma",
		Old: "	if e.w.Prot&need != need {\n", New: "	if false {\n",
	},

	// Links, credit and ports.
	{
		Name: "serves-unconfirmed", What: "operations are applied without a fresh confirmation of both incarnations",
		File: "internal/core/link.go", By: Simulation, Run: "^TestZombies$",
		Old: "{ return now <= p.FreshUntil() }", New: "{ return true }",
	},
	{
		Name: "hello-epoch", What: "a HELLO of an older start of the process is accepted",
		File: "internal/core/link.go", By: "./internal/core",
		Old: "	case h.FromEpoch != known.Epoch:\n", New: "	case false:\n",
	},
	{
		Name: "hello-generation", What: "a HELLO of an incarnation that is over is accepted",
		File: "internal/core/link.go", By: "./internal/core",
		Old: "	case h.From.Generation < known.Incarnation.Generation:\n", New: "	case false:\n",
	},
	{
		Name: "evidence-sticks", What: "a link that answers again does not take its silence back",
		File: "internal/core/link.go", By: "./internal/core",
		Old: "	report, p.alive = !p.alive, true\n", New: "	report, p.alive = false, true\n",
	},
	{
		Name: "keepalives-in-step", What: "a silent peer is asked at the pace of the heartbeats only",
		File: "internal/core/link.go", By: "./internal/core",
		Old: "		if silent > p.times.Heartbeat*5/4 {", New: "		if false {",
	},
	{
		Name: "standstill-counts", What: "a standstill of one's own counts as silence of the peer",
		File: "internal/core/link.go", By: "./internal/core",
		Old: "		p.lastArrival = min(p.lastArrival+late, now)\n", New: "",
	},
	{
		Name: "credit-leaks", What: "an eighth of what is read is never granted again",
		File: "internal/core/flow.go", By: Simulation, Hint: "credit-comes-back",
		Old: "f.read += uint64(n) }", New: "f.read += uint64(n - n/8) }",
	},
	{
		Name: "credit-ignored", What: "messages are sent beyond what the peer has room for",
		File: "internal/core/flow.go", By: Simulation,
		Old: "	k := int(min(uint64(n), f.Room()))\n", New: "	k := n\n",
	},
	{
		Name: "port-kept", What: "a port that was shared is never free again",
		File: "portmap/table.go", By: Simulation,
		Old: "	if n > 1 {\n		t.refs[port] = n - 1\n", New: "	if n > 0 {\n		t.refs[port] = max(n-1, 1)\n",
	},
	{
		Name: "port-taken-twice", What: "a port that is bound can be bound again",
		File: "portmap/table.go", By: "./portmap",
		Old: "	} else if t.refs[port] > 0 {\n", New: "	} else if t.refs[port] > 1 {\n",
	},

	// The wire.
	{
		Name: "wire-last", What: "every part of a write is taken for its last",
		File: "internal/wire/rma.go", By: Simulation,
		Old: "		Last:    flags&flagLast != 0,\n		Ordered: flags&flagOrdered != 0,\n", New: "		Last:    true,\n		Ordered: flags&flagOrdered != 0,\n",
	},
	{
		Name: "wire-offset", What: "a write goes to the wrong place by eight bytes",
		File: "internal/wire/rma.go", By: Simulation,
		Old: "	return appendFrame(b, TypeWrite, flags, u64(f.Op), u64(f.Offset), u32(f.Length))\n",
		New: "	return appendFrame(b, TypeWrite, flags, u64(f.Op), u64(f.Offset+8), u32(f.Length))\n",
	},

	// Who is in the cluster.
	{
		Name: "generation-not-raised", What: "a new incarnation gets the generation of the one before",
		File: "membership/verdict/lease.go", By: Simulation, Hint: "node-killed",
		Old: "Generation: last + 1,", New: "Generation: max(last, 1),",
	},
	{
		Name: "removal-not-on-disk", What: "a removal is sent before it is written",
		File: "membership/verdict/host_judge.go", By: Simulation, Hint: "node-killed",
		Old: "	h.persist(write{node: n}, *n.lease)\n", New: "	h.removed(now, n)\n",
	},
	{
		Name: "grant-not-on-disk", What: "an incarnation is granted before it is written",
		File: "membership/verdict/host_join.go", By: Simulation,
		Old: "	h.persist(write{node: n}, *l)\n", New: "	h.granted(now, n)\n",
	},
	{
		Name: "removed-twice", What: "the end of an incarnation is reported twice",
		File: "membership/verdict/member_table.go", By: Simulation, Hint: "node-killed",
		Old: "	m.emit(Event{Kind: EventRemoved, Node: n, Reason: why})\n", New: "	m.emit(Event{Kind: EventRemoved, Node: n, Reason: why})\n	m.emit(Event{Kind: EventRemoved, Node: n, Reason: why})\n",
	},
	{
		Name: "removal-not-sent", What: "the host sends a removal to no node at once",
		File: "membership/verdict/host_judge.go", By: Simulation, Hint: "node-killed",
		Old: "		h.broadcast(n, verdict)\n", New: "",
	},
	{
		Name: "report-removes", What: "a report makes the bound of a silent node shorter",
		File: "membership/verdict/host_judge.go", By: "./membership/verdict",
		Old: "	if n.waiting == nil {\n		until = later(until,", New: "	if false {\n		until = later(until,",
	},
	{
		Name: "reports-any-time", What: "a member is removed by reports about a time in which there was a host",
		File: "membership/verdict/host_dispute.go", By: "./membership/verdict", Run: "^TestNobodyIsRemovedByFew$",
		Old: "	return now.Before(o.until) && o.known[about] && o.known[by]\n", New: "	return true\n",
	},
	{
		Name: "liars-believed", What: "two members remove another one by their reports",
		File: "membership/verdict/host_dispute.go", By: "./membership/verdict", Run: "^TestNobodyIsRemovedByFew$",
		Old: "	return count > maxLiars && (2*count", New: "	return count > 0 && (2*count",
	},
	{
		Name: "outage-goes-on", What: "reports of an outage end also the incarnation that the host takes after it",
		File: "membership/verdict/host_join.go", By: "./membership/verdict", Run: "^TestAnOutageEndsTheHostsIncarnationOnce$",
		Old: "	h.outage.stalled = false ", New: "	",
	},
	{
		Name: "gossip-removes", What: "without a host gossip alone removes a node",
		File: "membership/verdict/member_judge.go", By: "./membership/verdict",
		Old: "	if p.deadByTwo() || (p.failed", New: "	if p.bad() != 0 || (p.failed",
	},
	{
		Name: "end-taken-back", What: "an incarnation whose end was reported is reported again as alive",
		File: "membership/verdict/member_table.go", By: "./membership/verdict",
		Old: "	return e.Node.State == Alive && l != m.self && l.Generation <= m.over[l.Node]\n", New: "	_ = l\n	return false\n",
	},
	{
		Name: "check-not-ended", What: "a message of a node that is being checked does not save it",
		File: "membership/verdict/host_judge.go", By: "./membership/verdict",
		Old: "		case now.Sub(n.lastSeen) < h.t.Silence && !n.check.losesAll:\n", New: "		case false:\n",
	},
	{
		Name: "id-reused-early", What: "an ID is granted to another node while it is in quarantine",
		File: "membership/verdict/lease.go", By: Simulation, Run: "^TestAnIDGoesOnAfterItsQuarantine$",
		Old: "	return l == nil || (l.State == LeaseFree && ", New: "	return l == nil || (l.State != LeaseActive && ",
	},
	{
		Name: "fenced-resume", What: "a node may go on with an incarnation that is over",
		File: "membership/verdict/host_join.go", By: "./membership/verdict",
		Old: "	known := n != nil && n.node.Incarnation == m.Incarnation && n.node.UUID", New: "	known := n != nil && n.node.UUID",
	},
	{
		Name: "loss-report-is-ignored", What: "a node that reports that nothing of the host arrives is not looked at",
		File: "membership/verdict/host_judge.go", By: "./membership/verdict",
		Old: "		h.takeHostReport(now, from, m.Evidence)\n", New: "",
	},
	{
		Name: "any-incarnation", What: "a process that answers is a sign of each of its incarnations",
		File: "membership/verdict/lifeline.go", By: "./membership/verdict",
		Old: "	case incarnation != c.Incarnation:\n", New: "	case false:\n",
	},
	{
		Name: "stall-unnoticed", What: "a member that stood still judges others by that time",
		File: "membership/verdict/timing.go", By: "./membership/verdict",
		Old: "	if by <= t.Stall {\n", New: "	if true {\n",
	},

	// What the simulation has of the engine and of the provider.
	{
		Name: "reported-before-failed", What: "NODE_REMOVED is reported, and operations to the incarnation fail 5 ms later",
		File: "internal/lab/sim/node.go", By: Simulation, Hint: "node-killed",
		Old: "	n.failLinks(transport.CodeFenced, func(l *link) bool { return l.peer.Incarnation == incarnation })\n	if !n.p.step(failpoint.LostFenced) {\n		return\n	}\n",
		New: "	n.p.after(5*time.Millisecond, func() { n.failLinks(transport.CodeFenced, func(l *link) bool { return l.peer.Incarnation == incarnation }) })\n",
	},
	{
		Name: "tail-not-sent", What: "a session that finds no answer leaves it to QUIC's probes",
		File: "internal/lab/sim/quic_tail.go", By: Simulation, Hint: "flapping-full",
		Old: "		e.resend()\n		e.p.after(e.patience(), e.watch)\n", New: "		e.p.after(e.patience(), e.watch)\n",
	},

	// The shells, which the simulation does not run.
	{
		Name: "removed-before-failed", What: "NODE_REMOVED is reported while operations to the incarnation are under way",
		File: "internal/engine/node.go", By: "./internal/engine",
		Old: "	_ = n.cfg.Faults.Hit(failpoint.LostBeforeFence)\n",
		New: "	n.mu.Lock()\n	n.publishLocked(attach.Event{Kind: attach.NodeRemoved, Incarnation: incarnation, Name: p.Name, Reason: reason})\n	n.mu.Unlock()\n	_ = n.cfg.Faults.Hit(failpoint.LostBeforeFence)\n",
	},
	{
		Name: "serving-not-awaited", What: "the engine applies operations without asking whether it may",
		File: "internal/engine/fresh.go", By: "./internal/engine",
		Old: "	for l.otherEnd == nil && int64(l.n.now()) > l.freshUntil.Load() {\n", New: "	for false {\n",
	},
	{
		Name: "ordered-broken", What: "an ordered write does not leave its last line for the end",
		File: "internal/core/incoming.go", By: "./internal/core",
		Old: "Length: int64(f.Length), Ordered: f.Ordered, last: f.Last", New: "Length: int64(f.Length), last: f.Last",
	},
	{
		Name: "close-does-not-drain", What: "an end that closes does not wait for its operations",
		File: "internal/engine/closing.go", By: "./internal/engine",
		Old: "	if !c.isFailed() && c.drain(ctx) {\n", New: "	if !c.isFailed() {\n",
	},
	{
		Name: "persisted-not-committed", What: "the lease table is said to be on disk and is not",
		File: "membership/disk.go", By: "./membership",
		Old: "	if d.commit(writes) == nil {\n", New: "	if true {\n",
	},
	{
		Name: "fenced-lifeline", What: "a lifeline of an incarnation that is over is accepted",
		File: "membership/leases.go", By: "./membership",
		Old: "	if over := a.view.over[l.Node]; over >= l.Generation {\n", New: "	if false {\n",
	},
}
