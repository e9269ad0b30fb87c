// Package appsmoke runs PostgreSQL, Redis, nginx, ssh and git with their own clients,
// and pools that have to go on by themselves, across two fabricds in two network
// namespaces, and checks what these see when a fabricd or the network between the two fails.
//
// Unmodified applications speak TCP. The fabricds' own gateways carry their connections, by
// lines of their configuration. The promise that is checked end to end is that of
// docs/connect.md: only the orderly close of an application is an end of file for its peer.
//
//	make apps              everything, as a table; installs the Debian packages; needs root
//	make apps ARGS=--json  the same as JSON lines
//	go test ./internal/test/e2e/appsmoke  the tests of its own parts
package appsmoke
