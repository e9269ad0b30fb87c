// Package daemon is one node's life: it reads the configuration, joins the
// rooms (membership, providers, engine, attach protocol, admin interface) and
// carries what one says to the others.
//
// The rooms know nothing of each other. Membership decides who is in the
// cluster and tells it as events; the daemon turns every event into calls of
// the engine, one at a time and in order, and acknowledges a removal only when
// the engine has ended all that went towards the lost life. What the engine's
// links notice of their peers goes back to membership as evidence.
package daemon
