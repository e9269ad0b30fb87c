package verdict

// A Pace asks these functions how soon to ask Next of the machines again.

// harmless reports whether an input of the host can bring no deadline nearer, as most
// inputs of a host. To find the next deadline costs a look at every node. nil, no
// input of the host's, is not harmless: it may be a member's.
func harmless(in HostInput) bool {
	got, ok := in.(Received)
	if !ok {
		return false
	}
	_, ping := got.Message.(Ping)
	return ping
}

// doubtAtHost reports whether an input of the host makes an incarnation doubtful.
func doubtAtHost(in HostInput) bool {
	switch in := in.(type) {
	case Down, LossReport:
		return true
	case Received:
		_, report := in.Message.(Report)
		return report
	}
	return false
}

// doubtAtMember reports whether an input of a member does.
func doubtAtMember(in MemberInput) bool {
	switch in := in.(type) {
	case Down, DialFailed, Doubt:
		return true
	case Link:
		return in.Evidence != LinkAlive
	case Gossip:
		return in.State != GossipAlive
	}
	return false
}

// urgent reports whether an action begins something that has a deadline.
func urgent(x Action) bool {
	switch x := x.(type) {
	case Redial, Probe, DialHost:
		return true
	case Send:
		_, check := x.Message.(Check)
		return check
	}
	return false
}
