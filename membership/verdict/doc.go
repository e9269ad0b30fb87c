// Package verdict decides which nodes are in the cluster. It is the pure part of
// membership: two state machines without clock, goroutine, lock, randomness or
// I/O. Step takes the time and one input, and returns a list of actions for the
// shell to perform. The same inputs at the same times give the same actions,
// byte for byte.
//
//	h, err := NewHost(HostConfig{...}, now)     h.Step(now, in HostInput) []Action
//	m, err := NewMember(MemberConfig{...}, now) m.Step(now, in MemberInput) []Action
//
// Next() of each returns when the next Tick is due.
//
// A [Host] is the authority. It leases node IDs, keeps the table of all incarnations,
// and decides that an incarnation is over, once. A [Member] is in every node, the
// host's own process included: it holds the table as the host sends it, turns
// it into [Event]s, carries evidence to the host, and decides for itself while
// there is no host.
//
// # The shell
//
// The shell owns one Host (on the host) and one Member. One goroutine calls
// Step, performs the actions of a Step in order, and only then calls Step
// again; an action that takes long (a dial, a probe, a write) is started in
// order and answered by a later input. now must come from a monotonic clock
// and never go back; a [time.Time] from time.Now does.
//
// Tick is fed at the time that Next returns, which every Step may change. Next is the earliest
// deadline of the machine, and [Timing.Tick] after the last Tick at the latest:
// a machine notices by a missing Tick that its process stood still (below). A
// Tick may always come earlier: before Next it causes no more than a Ping, and
// that only in the second half of a heartbeat. So the shell can move it to a
// moment at which the process is awake anyway. After a Tick nothing is due at
// that same moment. A [Pace] steps the machines and decides when to tick, and turns
// what the lifelines between two members show into evidence ([Lifeline], [DialResult]).
//
// The type of each action documents the shell's part. Together:
//
//	Host action   shell does                                    answers with
//	Send          sends on the session, in order, Grants signed –
//	CloseSession  flushes, closes                               –
//	Persist       writes lease records, cursor and term, syncs  Persisted, PersistFailed
//	Redial        dials the incarnation, at most Timing.Redial         Redialed
//	Note          logs                                          –
//	StepDown      ends the process                              –
//
//	Member action shell does                                    answers with
//	Send          sends on the session, in order                –
//	CloseSession  flushes, closes                               –
//	DialHost      opens a control session and its lifeline      Connected, DialFailed
//	Probe         round trip with an incarnation over the data path     Probed
//	Look          dials the incarnation                                Link, or nothing
//	Emit          hands the event to the handlers, in order     Handled, after an EventRemoved
//	Remember      writes incarnation, lease, term to the state dir.    –
//	Revalidate    suspends the data links until both ends agree –
//	Note          logs                                          –
//	Halt          ends the process, exit code and text          –
//	Departed      ends the process, its leave is confirmed      –
//
// A session is a control link and its lifeline together: it is up when both
// are, and the first of them to end ends it. Its messages keep their order and
// are complete up to its end (see [Message]). The member dials; its certificate
// identifies it, and the shell passes a Join or Resume on only if
// the UUID is that of the certificate. All other messages of a session speak
// for the incarnation that was granted or resumed on it; the Host checks that.
//
// On the host's own node the shell connects the Member to the Host by
// [LocalSession]: the Member's DialHost is answered at once by
// Connected{LocalSession}, a message m that the Member sends is fed to the Host
// as Received{LocalSession, m}, and the other way round. The Member of the host
// has the host's UUID and epoch, and is granted node 0. A CloseSession of
// [LocalSession] does nothing.
//
// # Leases
//
// A Grant carries a lease: the grant, signed by the host. The shell of
// the Host makes it when it sends the Grant, after the record is on disk. The
// shell of a Member verifies it before it passes the Grant on, and ends the
// session if it is not this node's; the Member has it remembered and shows it
// in every Join and Resume.
//
// A host steps down before a higher term that a member claims, and gives an ID
// back to the node that had it, so its shell passes on the Term and the Previous of a
// Join only as far as the lease proves them: without a lease both are zero, and
// the Term is at most that of the lease. A Resume without the lease of its Incarnation
// is not passed on at all.
//
// A host that lost its table ([HostConfig].Floor) knows no node: it refuses each
// Resume as fenced, and each node claims its ID with the lease of its last
// incarnation. It gets the ID with a generation above the floor and above its lease.
// Newcomers wait for the grace period, so that they get no ID that is claimed.
//
// A node may want one ID and no other ([Join].Want). That is decided before the Join has
// any effect, and gives no node more than a free ID would: a node has one ID for good, and
// that of a node which belongs to the cluster stays that node's while it is away.
//
// A state directory that went back to an older copy looks whole. The grants made after
// the copy reveal it. No ID and generation is granted again:
//
//   - A term is above the age of the cluster in seconds, and each generation is at
//     least the term in which it is granted. So a host that starts on a copy is
//     above all that was granted before, as long as its clock is right and an incarnation
//     lasts a second on average.
//   - A proved lease ([Join], [Resume], [Claim]) of an incarnation that the table lacks
//     raises the floor to that incarnation, and newcomers wait for the grace period.
//   - A proved lease of the host's own term or a later one, while no node was served
//     in that term, means that another process had it. The host takes a term above
//     that, and a new incarnation with it, before it grants anything.
//
// A backup that was restored by command has a Floor and a term far above both, so that
// it needs none of that but for incarnations that were shorter still: until an incarnation is granted
// above the Floor, newcomers wait for the grace period of each start.
//
// # Starting
//
// The host raises its term and writes it to disk before NewHost; term
// and leases come from the lease table. A member passes the last [Remember] that was
// written. A damaged file is never replaced by an older one: the shell refuses
// to start a host without its table unless forced, and a member that lost its
// file starts as a new node.
//
// # An incarnation
//
//	           Join                  Persisted
//	(nothing) ------> granting ----------------------> live <---------------.
//	                     ^                              |  |                |
//	  host restart       | Join, generation + 1         |  | session down,  | Resume, or
//	(disk) --> unclaimed |                              |  | silence        | a node reaches it
//	     Resume |  |     |                  Leave,      |  v                |
//	      live <'  |     |                  restarted   | in doubt ---------'
//	               |     |                              |  |
//	   grace over  |     |                              v  v redial failed, no node reaches it
//	               '---> quarantine <---- removed (written, then sent to all)
//	                     |
//	                     '-- 10 min passed and every live member acknowledged --> free
//
// A generation is used once: the record keeps it when the ID is free again.
// Node 0 is no lease: its generation is the host's term.
//
// # Evidence
//
// A Host removes an incarnation on this evidence, for this reason:
//
//	Leave                                            at once, left
//	session ended, redial failed within 100 ms       crashed
//	session ended, redial met a newer epoch          restarted
//	stateless reset, redial failed                   restarted
//	Join of the same UUID with a newer epoch, and    restarted; if the older one
//	  the older incarnation does not answer a check           answers, the Join is refused
//	control link silent beyond its bound, or a       silent, if no node reaches the
//	  report (link silent, reset, refused, fenced,     incarnation within Timing.Check, and
//	  gossip dead), starts a check                     not before the silence bound and
//	                                                   a check have passed since it was
//	                                                   seen; nothing, if a node does
//	a report that nothing of the host arrives there  silent, if no node reaches the
//	                                                   incarnation within Timing.Check and it
//	                                                   does not take that back
//	unclaimed at the end of the grace period         silent
//	an operator's command (Expel)                    at once, expelled or banned
//	a member reports that it announced the end of    partitioned, for that member,
//	  an incarnation that the table has (EndAnnounced)              unless a line below applies
//	two incarnations that announced each other's end in     partitioned, for one of the two
//	  an outage of the host
//	more than two incarnations, and most of those that      partitioned, for the incarnation that
//	  lived before an outage, or at least five,        they announced as ended
//	  announced the end of one that lived before it too
//
// A report about another incarnation alone removes no node, so that two members that lie
// together cannot remove a third one. Gossip only starts a check.
// That a member reaches another incarnation counts only with that incarnation's signature of
// the host's challenge: the shell passes nothing else on, so that no member can hide that
// an incarnation is over. An outage is the time before this host started, and a time in which
// its process stood still for longer than the silence bound; it ends with the grace
// period.
//
// With PartialEvict the host evicts an incarnation that complains about another one for long, or
// about which as many complain as the outage rule above asks for.
//
// # A member and its host
//
//	seeking -- Connected --> asking -- Grant, Table --> serving
//	   ^  ^                    | |                        |
//	   |  '-- Refused, Down ---' | Refused fenced:        | Down, or silent:
//	   |                         | EventReset, Join       v
//	   |                         v                     in doubt: redial, probe
//	   |                                                  |
//	   '---- dials on; decides alone <-- host is gone ----'
//
// In doubt, a host that is silent and that a probe does not reach is gone when
// gossip does not count it among its members, or when most of the links to the
// others are silent too. If it is the path to the host alone that is lost, the
// member stays and dials on.
//
// While the host is gone the table is frozen, and the member removes a peer
// when its own link to it is dead and gossip or a fresh probe agrees, or when
// gossip gave it up and probes fail for the silence bound. Each incarnation has a fixed
// number of watchers, [Watched]; a member that receives the doubt of one of them
// dials the incarnation itself, and removes it if probes fail for the silence bound. So
// the time in which the end of an incarnation is known does not depend on how many there are.
//
// A member resets itself (EventReset, then Join, then EventSelf) when the host
// reports that its incarnation is over, when a Resume is refused as fenced, when a table
// of the host lacks it, and when the host still has an incarnation that the member
// announced as ended: an end is never taken back, so the member gives up its own
// incarnation instead. If the incarnation that it announced as ended is another member's, it
// reports that (EndAnnounced), and begins anew unless the host finds in an outage that the
// other one has to.
// After an EventReset the view is empty: there is no EventRemoved for the peers
// that it held, and every live peer is added anew, because to the new incarnation each
// of them is new.
//
// EventSelf comes with the first table of an incarnation, right before the EventAdded of
// the incarnations in it, and has their number, so that a handler can wait for all of them
// before it shows the incarnation to applications. An incarnation that ends before is reported with its end.
//
// A member that starts while there is no host, and has a lease of its last incarnation, shows
// that incarnation to the applications of its own machine (EventLocal). No other node sees
// it: it asks the host for its next incarnation as ever, and an EventSelf with that one takes
// its place. If the host does not want the node an EventReset does.
//
// # Standing still
//
// Both machines compare each input's time with that of the last Tick. After a
// gap of more than [Timing].Stall nothing that was received, or missed, before
// counts: silences and gossip are discarded, running checks start over, and
// every incarnation has a fresh bound. A member has the data path revalidate and
// reports nothing before the host has answered it. A host that stood still for
// longer than the silence bound may have been removed by its members; when most of
// them report so within a silence bound, more than two if there are so many, it takes
// the next term and with it a new incarnation, and the members keep theirs. Fewer begin
// anew themselves.
package verdict
