// Package state is the state directory of a fabricd: the identity of the node, the
// number of its starts, the grant it holds, and on the host, the grants to others.
//
// Data that a call stored is on the disk before the call returns, and a damaged or
// older file is noticed when the directory is opened: nothing here ever leads to an
// epoch, a term or a generation that was used before. Every file carries its kind,
// version, length and checksum; [Seal] has the format. The host's lease table is a
// bbolt file whose records have checksums of their own, beside a small seal that
// records how new it must be; see [Leases].
//
// Certificates, keys, tokens and keyrings are opaque bytes here; package trust
// knows their forms.
package state
