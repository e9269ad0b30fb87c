package attach

// A PairedEndpoint is an Endpoint of this process's node that knows the other
// end of its connection. The server of the attach protocol uses it, to let two
// applications of one node talk without it.
type PairedEndpoint interface {
	Endpoint

	// Pair returns what tells this end of the connection, and its other end, from
	// all others of the node: comparable, and the same as long as the connection
	// is open. It reports false unless both ends are on this node.
	Pair() (self, peer any, ok bool)

	// Via notes the way that the endpoint's messages take to its application, and
	// why not a faster one, for operators.
	Via(path, why string)
}

// A WindowedEndpoint says how many message bytes it keeps for an application that does
// not read. A pump keeps no more than that beside it, nor its socket.
type WindowedEndpoint interface {
	// Window returns that number, which does not change while the endpoint is
	// connected; 0 before.
	Window() int
}

// The ways of messages, see [PairedEndpoint].
const (
	ViaCall    = "call"    // in the node's process
	ViaSocket  = "socket"  // through the data socket, pumped by the node
	ViaChannel = "channel" // through shared memory, past the node
	ViaPath    = "path"    // through a socket to the application on the other node
)
