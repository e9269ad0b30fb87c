package history

// Kind methods, one for each type.

// Kind implements [Body].
func (*Begin) Kind() Kind { return KindBegin }

// Kind implements [Body].
func (*Timeline) Kind() Kind { return KindTimeline }

// Kind implements [Body].
func (*End) Kind() Kind { return KindEnd }

// Kind implements [Body].
func (*Fault) Kind() Kind { return KindFault }

// Kind implements [Body].
func (*FaultEnd) Kind() Kind { return KindFaultEnd }

// Kind implements [Body].
func (*Process) Kind() Kind { return KindProcess }

// Kind implements [Body].
func (*Event) Kind() Kind { return KindEvent }

// Kind implements [Body].
func (*View) Kind() Kind { return KindView }

// Kind implements [Body].
func (*Call) Kind() Kind { return KindCall }

// Kind implements [Body].
func (*Return) Kind() Kind { return KindReturn }

// Kind implements [Body].
func (*Opened) Kind() Kind { return KindOpened }

// Kind implements [Body].
func (*Closed) Kind() Kind { return KindClosed }

// Kind implements [Body].
func (*Offered) Kind() Kind { return KindOffered }

// Kind implements [Body].
func (*Sent) Kind() Kind { return KindSent }

// Kind implements [Body].
func (*Received) Kind() Kind { return KindReceived }

// Kind implements [Body].
func (*RMA) Kind() Kind { return KindRMA }

// Kind implements [Body].
func (*RMADone) Kind() Kind { return KindRMADone }

// Kind implements [Body].
func (*Fenced) Kind() Kind { return KindFenced }

// Kind implements [Body].
func (*Checked) Kind() Kind { return KindChecked }

// Kind implements [Body].
func (*Signal) Kind() Kind { return KindSignal }

// Kind implements [Body].
func (*SignalSeen) Kind() Kind { return KindSignalSeen }

// Kind implements [Body].
func (*Window) Kind() Kind { return KindWindow }

// Kind implements [Body].
func (*WindowGone) Kind() Kind { return KindWindowGone }

// Kind implements [Body].
func (*Scan) Kind() Kind { return KindScan }

// Kind implements [Body].
func (*Resources) Kind() Kind { return KindResources }

// Kind implements [Body].
func (*Paths) Kind() Kind { return KindPaths }

// Kind implements [Body].
func (*Logged) Kind() Kind { return KindLogged }

// Kind implements [Body].
func (*Still) Kind() Kind { return KindStill }

// Kind implements [Body].
func (*Note) Kind() Kind { return KindNote }
