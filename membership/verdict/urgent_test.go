package verdict

import "testing"

func TestWhatIsUrgent(t *testing.T) {
	if !harmless(Received{Message: Ping{}}) || harmless(Received{Message: Report{}}) || harmless(Down{}) || harmless(nil) {
		t.Error("of all that a host receives a ping is harmless")
	}
	if !doubtAtHost(Down{}) || !doubtAtHost(LossReport{}) || !doubtAtHost(Received{Message: Report{}}) || doubtAtHost(Received{Message: Ping{}}) || doubtAtHost(nil) {
		t.Error("a lost session and a report make an incarnation doubtful to the host")
	}
	if !doubtAtMember(Down{}) || !doubtAtMember(DialFailed{}) || !doubtAtMember(Link{Evidence: LinkSilent}) || doubtAtMember(Link{Evidence: LinkAlive}) ||
		doubtAtMember(Gossip{State: GossipAlive}) || doubtAtMember(nil) {
		t.Error("a lost session, a refused dial, a link that is not alive and a gossip report make an incarnation doubtful to a member")
	}
	if !urgent(Redial{}) || !urgent(Send{Message: Check{}}) || urgent(Send{Message: Ping{}}) || urgent(Persist{}) {
		t.Error("what begins a deadline is urgent")
	}
}
