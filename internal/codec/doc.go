// Package codec encodes and decodes the fields of this module's binary formats: between nodes, with
// applications, of membership, of gossip and on disk. Each format documents its own layout in a
// SPEC.md.
//
// A body is decoded field by field and checked once, at its end:
//
//	d := codec.From(body)
//	m := Message{Incarnation: d.Incarnation(), Name: d.Text(64)}
//	if !d.Whole() {
//		return Message{}, ErrMalformed
//	}
package codec
