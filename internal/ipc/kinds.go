package ipc

// A kind says what a request that may wait takes a place of, so that requests of
// one kind, which may all be waiting, keep out none of another one.
type kind uint8

const (
	atOnce    kind = iota // never waits, and takes no place
	givesBack             // gives something back: never refused to a correct application
	accepts               // waits for a peer, for ever
	connects              // waits for a peer
	moves                 // everything else: RMA, fences, windows
	kinds
)

// waits returns the kind of requests with op o.
func (o op) waits() kind {
	switch o {
	case opBye, opWatch, opWatchServices, opClose, opAbort, opUnregister:
		return givesBack
	case opAccept, opTryAccept:
		return accepts
	case opConnect, opTryConnect, opConnectService, opPath, opRMAPath:
		return connects
	case opChannel, opFarWindow, opRegister, opWriteTo, opReadFrom, opVWriteTo, opVReadFrom,
		opAtomic, opPostAtomic, opPutSignal, opVPutSignal, opMmap, opWindow,
		opFenceMark, opFenceWait, opFenceSignal:
		return moves
	}
	return atOnce
}
