// Package hostile attacks the product the way its threat model describes:
// as a stranger on the network, as an authenticated member that went bad, and
// as a local process without privileges. Every attack is a test; the only other
// code here searches texts for secrets.
//
// Against nodes in this process, attacks know the cluster's secrets. Against a fleet
// of fabricd processes (TestFinding, and TestAttack, which `make attack` runs and
// which prints a timeline) they know a join token and no more.
//
// An attack passes when it is answered with a reason or cut off, when its cost
// to the node is bounded, and when all other nodes and applications go on meanwhile.
package hostile
