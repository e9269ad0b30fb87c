// Package trust proves the identities of a cluster's nodes: certificates with one exact identity
// each, the host's certificate authority, the TLS configurations of links and of joining, join
// tokens, and the gossip keys.
//
// A certificate proves a node's identity. The node's rights (which ID it has, whether its incarnation is
// over) are in the lease table and are not here.
//
// Nothing in this package reads a clock or starts a goroutine. Times are
// arguments, or a func that [NewStore] received, so that everything works on
// virtual time.
package trust
