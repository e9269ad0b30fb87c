// Package inject applies the decisions of a [faults.Plane] to sockets, TCP connections and
// providers. A [Layer] wraps the node's sockets and providers:
//
//	layer := inject.New(plane)
//	packets = layer.PacketConn(packets, faults.Link)   // the socket below QUIC
//	provider = layer.Provider(provider, true)          // its streams
//	listener = layer.Listener(listener, faults.Control)
//	dial = layer.Dial(dial, faults.Control)
//
// While the Plane has no rules, each packet, read and write costs one atomic
// load more than without the Layer, and QUIC keeps its batches and segmentation
// offload.
//
// # The node at the other end
//
// Packets and dialed connections are known by their address, in the Plane's Names. An accepted
// connection is no node's until its user calls [Conn.Identified],
// which the control server does when TLS has proved the peer; from then on rules
// for that peer hold, in both directions. A stream of gossip, which never names its peer,
// is believed to be from the node that has its IP address; if several nodes
// have, rules that stop streams hold if they mean any of these, others do not.
//
// # Goroutines
//
// A Layer has one goroutine that notifies streams when the rules have changed. A
// stream that a rule has delayed or stopped once keeps one for each such
// direction until it ends, a socket one for the packets that wait. All of them
// are the Layer's, whose Close waits for them.
package inject
