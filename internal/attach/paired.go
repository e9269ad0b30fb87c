package attach

// A PairedEndpoint is an Endpoint of this process's node that knows the other end of its
// connection. The server of the attach protocol uses it to let two applications of one node
// exchange messages without the node.
type PairedEndpoint interface {
	Endpoint

	// Pair returns keys of this end of the connection and of its other end. They are comparable,
	// unique on the node and constant while the connection is open. It reports false unless both
	// ends are on this node.
	Pair() (self, peer any, ok bool)

	// Via records, for operators, the path of the endpoint's messages to its application, and why
	// no faster one is used.
	Via(path, why string)
}

// A WindowedEndpoint reports how many message bytes it buffers for an application that does not
// read. The relay and its socket buffer no more than that in addition.
type WindowedEndpoint interface {
	// Window returns that number, which does not change while the endpoint is
	// connected; 0 before.
	Window() int
}

// The paths of messages, see [PairedEndpoint].
const (
	ViaCall    = "call"    // in the node's process
	ViaSocket  = "socket"  // through the data socket, relayed by the node
	ViaChannel = "channel" // through shared memory, without the node
	ViaPath    = "path"    // through a socket to the application on the other node
)
