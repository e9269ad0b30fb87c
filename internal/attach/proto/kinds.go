package proto

// A Kind is a class of requests that may wait. Each kind has its own limit, so that the waiting
// requests of one kind do not block another kind.
type Kind uint8

const (
	AtOnce    Kind = iota // never waits, and counts towards no limit
	GivesBack             // releases a resource: never refused to a correct application
	Accepts               // waits for a peer, without limit
	Connects              // waits for a peer
	Moves                 // everything else: RMA, fences, windows
	Kinds
)

// Ends reports whether requests with op o belong to the end of an endpoint or a session.
func (o Op) Ends() bool {
	return o == OpBye || o == OpClose || o == OpAbort || o == OpPathRest
}

// Waits returns the kind of requests with op o.
func (o Op) Waits() Kind {
	switch o {
	case OpBye, OpWatch, OpWatchServices, OpClose, OpAbort, OpUnregister:
		return GivesBack
	case OpAccept, OpTryAccept:
		return Accepts
	case OpConnect, OpTryConnect, OpConnectService, OpPath, OpRMAPath:
		return Connects
	case OpShmPath, OpFarWindow, OpRegister, OpWriteTo, OpReadFrom, OpVWriteTo, OpVReadFrom,
		OpAtomic, OpPostAtomic, OpPutSignal, OpVPutSignal, OpMmap, OpWindow,
		OpFenceMark, OpFenceWait, OpFenceSignal:
		return Moves
	}
	return AtOnce
}
