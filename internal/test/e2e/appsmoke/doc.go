// Package appsmoke runs PostgreSQL, Redis and nginx with their own clients across
// two fabricds in two network namespaces, and checks what these clients see when a
// fabricd or the network between the two fails.
//
// Unmodified applications speak TCP. A forwarder of this package, a program as a
// user would write it with package fabric, carries their connections: it accepts
// TCP on the clients' machine, dials the servers' node, and dials TCP there. The
// promise that is checked end to end is that of fabric.Conn: only the orderly close
// of an application is an end of file for its peer.
//
//	make apps-smoke                  everything, as a table; installs the Debian packages; needs root
//	make apps-smoke ARGS=--json      the same as JSON lines
//	go test ./internal/test/e2e/appsmoke  the forwarder's own tests
package appsmoke
