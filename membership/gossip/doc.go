// Package gossip spreads and collects what members report about each other.
//
// It runs memberlist behind types of its own. Its events are reports and never verdicts: a member
// that is Gone here may be well, and one that is still Seen may be dead for seconds. Package
// verdict decides. A [LossReport] alone proves its sender.
//
// A member is one start of one fabricd: its name is "UUID.epoch", so that a
// restart is another member and not, as memberlist would have it, no event at
// all. Everything else about it is in its [Meta].
//
// Every packet and stream is sealed with AES-GCM under the cluster's key and
// bound to the cluster's UUID; there is no mode without a key. SPEC.md has the
// whole format; a test speaks with a member from that page alone.
//
// A member with the key can send false reports. So everything is opened and checked before
// memberlist sees it (seal.go), and memberlist believes only in members that are proven otherwise,
// as soon as one is (register.go).
//
// Two parts that memberlist lacks are added here: a reconnector, because a partition never heals by
// itself once both sides have forgotten the other, and a flag in the metadata of a member that
// leaves, because memberlist's events do not distinguish leaving from dying.
package gossip
