package failpoint

import "fmt"

// A Step is a named moment of the protocol. The zero Step is none: nothing can
// be armed there.
type Step uint8

// The steps. A name is "part.moment"; renaming one breaks people's scenarios.
const (
	noStep Step = iota

	HelloSent
	HelloAnswered
	ConnectSent
	ConnectGranted
	ConnectConfirmed
	AcceptGranted
	AcceptConfirmed
	CloseSent
	CloseAnswered

	WindowAnnounced
	WindowKnown
	WindowWithdrawn
	WindowReleased
	WriteArrived
	WriteCopied
	WriteAcked
	ReadAsked
	ReadAnswered
	AtomicArrived
	AtomicApplied
	MarkCounted
	MarkAnswered
	SignalArrived
	SignalStored

	LostBeforeFence
	LostFenced

	JoinAsked
	JoinAnswered
	TokenRedeemed
	TokenStored
	GrantDecided
	GrantPersisted
	GrantSent
	RemovalDecided
	RemovalPersisted
	RemovalSent
	RemovalAcked
	ResumeArrived
	LeaseAsked
	LeaseGranted
	LeaseRemembered
	ResumeSent
	RemovalArrived
	RemovalHandled

	AppAttached
	AppDied
	AppReleased

	FileBegun
	FileWritten
	FileSynced
	FileRenamed
	TableBegun
	TableWritten

	stepCount
)

// A StepInfo describes one step.
type StepInfo struct {
	Step    Step   `json:"-"`
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	// Fails is the effect of an error at the step; empty: the step cannot fail.
	Fails string `json:"fails,omitempty"`
}

const (
	cutsLink  = "the link attempt fails and is tried again"
	cutsConn  = "the connection is reset"
	noAnswer  = "the node is refused and asks again"
	cutsWrite = "the write fails with EIO"
)

// table has a line for every step, in the order of the constants.
var table = [stepCount]StepInfo{
	HelloSent:        {Name: "link.hello_sent", Meaning: "dialer: HELLO is written, its answer has not come", Fails: cutsLink},
	HelloAnswered:    {Name: "link.hello_answered", Meaning: "acceptor: the answer to HELLO is written, the link is not in use yet", Fails: cutsLink},
	ConnectSent:      {Name: "conn.connect_sent", Meaning: "connector: the request is written, no answer has come", Fails: "the connect fails"},
	ConnectGranted:   {Name: "conn.connect_granted", Meaning: "connector: the grant has arrived, its confirmation is not written", Fails: "the connection is given up unconfirmed"},
	ConnectConfirmed: {Name: "conn.connect_confirmed", Meaning: "connector: connected, and the confirmation is on its way"},
	AcceptGranted:    {Name: "conn.accept_granted", Meaning: "acceptor: the grant is written, the requester has not confirmed it", Fails: "the grant is taken back"},
	AcceptConfirmed:  {Name: "conn.accept_confirmed", Meaning: "acceptor: the requester has confirmed, Accept has not returned", Fails: "the grant is taken back"},
	CloseSent:        {Name: "conn.close_sent", Meaning: "closing end: Close is on its way, the peer has not answered"},
	CloseAnswered:    {Name: "conn.close_answered", Meaning: "the other end: the answer to Close is on its way"},

	WindowAnnounced: {Name: "window.announced", Meaning: "peer: a new window was announced, the answer is not written", Fails: cutsConn},
	WindowKnown:     {Name: "window.known", Meaning: "owner: the peer knows the window, Register has not returned", Fails: cutsConn},
	WindowWithdrawn: {Name: "window.withdrawn", Meaning: "peer: a window is withdrawn, the answer is not written", Fails: cutsConn},
	WindowReleased:  {Name: "window.released", Meaning: "owner: the peer has let go of the window, it is not removed yet", Fails: cutsConn},
	WriteArrived:    {Name: "rma.write_arrived", Meaning: "target: a part of a write has arrived, none of it is copied", Fails: cutsConn},
	WriteCopied:     {Name: "rma.write_copied", Meaning: "target: the bytes are in the window, the acknowledgement is not written", Fails: cutsConn},
	WriteAcked:      {Name: "rma.write_acked", Meaning: "target: the acknowledgement is on its way", Fails: cutsConn},
	ReadAsked:       {Name: "rma.read_asked", Meaning: "target: a read has arrived, nothing of the answer is written", Fails: cutsConn},
	ReadAnswered:    {Name: "rma.read_answered", Meaning: "target: the answer to a read is on its way", Fails: cutsConn},
	AtomicArrived:   {Name: "rma.atomic_arrived", Meaning: "target: an atomic has arrived, the word is as it was", Fails: cutsConn},
	AtomicApplied:   {Name: "rma.atomic_applied", Meaning: "target: the word is changed, the old value is not written", Fails: cutsConn},
	MarkCounted:     {Name: "fence.mark_counted", Meaning: "peer: a mark is set at the operations so far, the answer is not written", Fails: cutsConn},
	MarkAnswered:    {Name: "fence.mark_answered", Meaning: "peer: the answer to a mark is on its way", Fails: cutsConn},
	SignalArrived:   {Name: "fence.signal_arrived", Meaning: "target: a signal is due, its value is not stored", Fails: cutsConn},
	SignalStored:    {Name: "fence.signal_stored", Meaning: "target: the value is stored, the acknowledgement is not written", Fails: cutsConn},

	LostBeforeFence: {Name: "node.lost", Meaning: "a removal is known, the links of the lost incarnation are not cut yet"},
	LostFenced:      {Name: "node.lost_fenced", Meaning: "every operation towards the lost incarnation has ended, no NODE_REMOVED is sent"},

	JoinAsked:        {Name: "join.asked", Meaning: "newcomer: about to ask the host for a certificate"},
	JoinAnswered:     {Name: "join.answered", Meaning: "newcomer: certificate and keys have arrived, nothing is stored", Fails: "the newcomer asks again"},
	TokenRedeemed:    {Name: "host.token_redeemed", Meaning: "host: a token is redeemed and a certificate issued, nothing is stored", Fails: noAnswer},
	TokenStored:      {Name: "host.token_stored", Meaning: "host: the redeemed token is on disk, the newcomer is not answered", Fails: noAnswer},
	GrantDecided:     {Name: "host.grant_decided", Meaning: "host: an ID is granted, the lease is not on disk"},
	GrantPersisted:   {Name: "host.grant_persisted", Meaning: "host: the lease is on disk, and not sent to any member"},
	GrantSent:        {Name: "host.grant_sent", Meaning: "host: the lease is on its way to its node"},
	RemovalDecided:   {Name: "host.removal_decided", Meaning: "host: a removal is decided, it is not on disk"},
	RemovalPersisted: {Name: "host.removal_persisted", Meaning: "host: the removal is on disk, and not sent to any member"},
	RemovalSent:      {Name: "host.removal_sent", Meaning: "host: the removal is on its way to one of the others"},
	RemovalAcked:     {Name: "host.removal_acked", Meaning: "host: a node's acknowledgement has arrived and is not counted"},
	ResumeArrived:    {Name: "host.resume_arrived", Meaning: "host: a node asks to go on with its incarnation, it is not answered"},
	LeaseAsked:       {Name: "member.lease_asked", Meaning: "node: the request for an ID is on its way"},
	LeaseGranted:     {Name: "member.lease_granted", Meaning: "node: an incarnation is granted, it is not on disk here"},
	LeaseRemembered:  {Name: "member.lease_remembered", Meaning: "node: the incarnation is on disk here, and not yet known to its applications"},
	ResumeSent:       {Name: "member.resume_sent", Meaning: "node: the request to go on with its incarnation is on its way"},
	RemovalArrived:   {Name: "member.removal_arrived", Meaning: "node: a removal is known, its handlers have not begun"},
	RemovalHandled:   {Name: "member.removal_handled", Meaning: "node: the handlers of a removal have returned, the host does not know"},

	AppAttached: {Name: "app.attached", Meaning: "an application has its session, and no answer yet", Fails: "the application is refused"},
	AppDied:     {Name: "app.died", Meaning: "the end of an application is noticed, nothing of it is released"},
	AppReleased: {Name: "app.released", Meaning: "everything of an application that ended is released"},

	FileBegun:    {Name: "state.file_begun", Meaning: "a state file is to be replaced, nothing is written", Fails: cutsWrite},
	FileWritten:  {Name: "state.file_written", Meaning: "a state file's new content is written, not synced", Fails: cutsWrite},
	FileSynced:   {Name: "state.file_synced", Meaning: "a state file's new content is on disk under its temporary name", Fails: cutsWrite},
	FileRenamed:  {Name: "state.file_renamed", Meaning: "a state file is replaced, the directory is not synced", Fails: cutsWrite},
	TableBegun:   {Name: "state.table_begun", Meaning: "host: leases are to be stored, the table is as it was", Fails: cutsWrite},
	TableWritten: {Name: "state.table_written", Meaning: "host: leases are in the table, its seal is the old one", Fails: cutsWrite},
}

var byName = func() map[string]Step {
	m := make(map[string]Step, stepCount)
	for s := noStep + 1; s < stepCount; s++ {
		table[s].Step = s
		m[table[s].Name] = s
	}
	return m
}()

// Steps returns all steps, in the order in which a node's incarnation meets them.
func Steps() []StepInfo {
	all := make([]StepInfo, 0, stepCount-1)
	return append(all, table[noStep+1:]...)
}

// FindStep returns the step of a name.
func FindStep(name string) (StepInfo, bool) {
	s, ok := byName[name]
	return table[s], ok
}

// String returns the step's name.
func (s Step) String() string {
	if s == noStep || s >= stepCount {
		return fmt.Sprintf("step %d", uint8(s))
	}
	return table[s].Name
}
