// Package daemon runs one node: it reads the configuration, starts the
// components (membership, providers, engine, attach protocol, admin interface)
// and passes events between them.
//
// The components do not know each other. Membership decides which nodes are in
// the cluster and reports it as events; the daemon turns every event into calls
// of the engine, one at a time and in order, and acknowledges a removal only when
// the engine has ended all that went towards the lost incarnation. Observations of the
// engine's links about their peers go back to membership as evidence.
package daemon
