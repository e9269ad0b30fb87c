package verdict

// The shells call these functions to choose how soon to ask Next again.

// Harmless reports whether an input of the host can bring no deadline nearer, as most
// inputs of a host. To find the next deadline costs a look at every node. nil, no
// input of the host's, is not harmless: it may be a member's.
func Harmless(in HostInput) bool {
	got, ok := in.(Received)
	if !ok {
		return false
	}
	_, ping := got.Message.(Ping)
	return ping
}

// DoubtAtHost reports whether an input of the host makes a life doubtful.
func DoubtAtHost(in HostInput) bool {
	switch in := in.(type) {
	case Down, LossReport:
		return true
	case Received:
		_, report := in.Message.(Report)
		return report
	}
	return false
}

// DoubtAtMember reports whether an input of a member does.
func DoubtAtMember(in MemberInput) bool {
	switch in := in.(type) {
	case Down, DialFailed, Doubt:
		return true
	case Link:
		return in.Evidence != LinkAlive
	case Gossip:
		return in.Rumour != RumouredAlive
	}
	return false
}

// Urgent reports whether an action begins something that has a deadline.
func Urgent(x Action) bool {
	switch x := x.(type) {
	case Redial, Probe, DialHost:
		return true
	case Send:
		_, check := x.Message.(Check)
		return check
	}
	return false
}
