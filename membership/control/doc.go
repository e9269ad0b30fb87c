// Package control carries the messages of membership over TCP: control sessions
// between a node and the host, lifelines between two nodes, and the one
// exchange that lets a node join. SPEC.md in this folder is the format.
//
// Everything runs over TLS 1.3. The kind of a connection is its ALPN protocol;
// its first frame is a HELLO, whose claims are checked against the certificate.
// A refusal names its reason and is returned, as a [RefusedError], on both
// sides.
//
// A [Session] is one control session; its TCP connection is its own lifeline. A
// [Lifeline] exists for its end: when the kernel closes it, the process behind
// it is gone, and the other side knows at once.
//
// The package decides nothing about members; it moves the messages of package
// verdict.
package control
