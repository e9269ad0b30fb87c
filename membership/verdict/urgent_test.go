package verdict

import "testing"

func TestWhatIsUrgent(t *testing.T) {
	if !Harmless(Received{Message: Ping{}}) || Harmless(Received{Message: Report{}}) || Harmless(Down{}) || Harmless(nil) {
		t.Error("of all that a host hears a ping is harmless")
	}
	if !DoubtAtHost(Down{}) || !DoubtAtHost(LossReport{}) || !DoubtAtHost(Received{Message: Report{}}) || DoubtAtHost(Received{Message: Ping{}}) || DoubtAtHost(nil) {
		t.Error("a lost session and a report make a life doubtful to the host")
	}
	if !DoubtAtMember(Down{}) || !DoubtAtMember(DialFailed{}) || !DoubtAtMember(Link{Evidence: LinkSilent}) || DoubtAtMember(Link{Evidence: LinkAlive}) ||
		DoubtAtMember(Gossip{Rumour: RumouredAlive}) || DoubtAtMember(nil) {
		t.Error("a lost session, a refused dial, a link that is not alive and a rumour make a life doubtful to a member")
	}
	if !Urgent(Redial{}) || !Urgent(Send{Message: Check{}}) || Urgent(Send{Message: Ping{}}) || Urgent(Persist{}) {
		t.Error("what begins a deadline is urgent")
	}
}
