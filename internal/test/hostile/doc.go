// Package hostile attacks the product the way its threat model describes:
// as a stranger on the network, as an authenticated member that went bad, and
// as a local process without privileges. Every attack is a test; there is
// nothing else here but what tests look for secrets with.
//
// Against nodes in this process, attacks know the cluster's secrets. Against a fleet
// of fabricd processes (TestFinding, and TestAttack, which `make attack` runs and
// which prints a timeline) they know a join token and no more.
//
// An attack passes when it is answered with a reason or cut off, when what it
// makes the node hold is bounded, and when everybody else goes on meanwhile.
package hostile
