package proto

// A Kind says what a request that may wait takes a place of, so that requests of
// one kind, which may all be waiting, keep out none of another one.
type Kind uint8

const (
	AtOnce    Kind = iota // never waits, and takes no place
	GivesBack             // gives something back: never refused to a correct application
	Accepts               // waits for a peer, for ever
	Connects              // waits for a peer
	Moves                 // everything else: RMA, fences, windows
	Kinds
)

// Waits returns the kind of requests with op o.
func (o Op) Waits() Kind {
	switch o {
	case OpBye, OpWatch, OpWatchServices, OpClose, OpAbort, OpUnregister:
		return GivesBack
	case OpAccept, OpTryAccept:
		return Accepts
	case OpConnect, OpTryConnect, OpConnectService, OpPath, OpRMAPath:
		return Connects
	case OpChannel, OpFarWindow, OpRegister, OpWriteTo, OpReadFrom, OpVWriteTo, OpVReadFrom,
		OpAtomic, OpPostAtomic, OpPutSignal, OpVPutSignal, OpMmap, OpWindow,
		OpFenceMark, OpFenceWait, OpFenceSignal:
		return Moves
	}
	return AtOnce
}
