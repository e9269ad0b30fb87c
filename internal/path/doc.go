// Package path is the socket that belongs to one connection: a TCP connection
// between the two processes that hold its ends. The nodes make it and hand it to
// their applications; the applications move the connection's messages through it,
// with TLS 1.3 between the two processes, and the nodes can end it.
//
//	Token       opens one path, once: it goes over the link, and begins the socket
//	Key, Hash   the key of a process, and its hash, which goes over the link
//	Conn        one end, in the process that uses it
//
// Each direction begins with the binding of the connection (32 bytes), which means that
// its sender is ready. When the
// sender goes over to the path it sends the number of message bytes that it has
// sent over the link before (8 bytes, big-endian), and then the messages: the
// receiver takes as many from the link first.
package path
