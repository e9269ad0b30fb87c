// Package faults breaks links on purpose: between two nodes, in one direction, for one plane of
// traffic, it drops, delays, reorders, duplicates, corrupts, limits or stops the traffic.
//
// A [Rule] names the links and their faults, a [Plane] holds the rules of one node. Package faults
// only decides; package inject, below it, applies a Plane's decisions to sockets, TCP connections
// and providers.
//
//	p := faults.NewPlane(faults.Options{Seed: 42})
//	p.SetSelf(1)
//	id, err := p.Add(faults.Rule{
//		From: faults.Nodes{1}, To: faults.Nodes{2},
//		On: faults.Link, Drop: 0.2, Delay: faults.Duration(20 * time.Millisecond),
//		For: faults.Duration(10 * time.Second),
//	})
//
// # Which end breaks
//
// Every node has its own Plane and enforces it at its own sockets: rules with itself in From on
// sent traffic, rules with itself in To on received traffic. So one rule at either end is enough. A
// rule that is given to both ends acts twice, unless its field At names the one end that acts: a
// rule for all nodes needs At set to [AtFrom].
//
// # The faults of each carrier
//
// Packets, of gossip and of QUIC links, are dropped, duplicated, reordered,
// corrupted and cut one way, as a network does. Streams are reliable and in
// order: TCP connections of gossip and control, and the streams of a provider.
// There a lost, corrupted or overtaken piece costs the time that TCP takes to
// send it again, a duplicate costs nothing, and a cut of one direction stalls both, since nothing
// is acknowledged any more: only bytes that were handed to the
// kernel before are still under way. A connection that is opened across a cut
// hangs until its opener gives up, across a half-open link it is refused.
//
// A connection's messages and its remote memory operations share the encrypted
// packets of a link, so that packet faults act on the whole [Link]. [Messages]
// and [RMA] alone take faults that make sense on an ordered stream: delay, jitter, rate,
// cut, reset.
//
// # Limits
//
// The faults are in the process. When a process dies under a cut, its kernel
// still resets the peers of its TCP connections. Where several nodes share one IP
// address, as on loopback, an accepted gossip stream does not show the node that has opened it: a
// cut or half-open rule then stops all those of that address that may be meant, other rules none.
//
// # The schedule is repeatable
//
// The decision about a packet follows from the rule's seed, the directed link, the carrier and how many
// packets the rule has seen there before. The same rule makes the same decision about the n-th packet in
// every run, although that packet's contents may differ.
package faults
