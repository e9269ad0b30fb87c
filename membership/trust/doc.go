// Package trust proves who is who in a cluster: certificates with one exact
// identity each, the host's certificate authority, the TLS configurations of
// links and of joining, join tokens, and the gossip keys.
//
// A certificate says who a node is. What that node may do (which ID it has,
// whether its life is over) is for the lease table to say and is not here.
//
// Nothing in this package reads a clock or starts a goroutine. Times are
// arguments, or a func that [NewStore] received, so that everything works on
// virtual time.
package trust
