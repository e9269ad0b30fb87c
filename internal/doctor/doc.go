// Package doctor checks whether a machine is ready for a node: it finds obstacles to its start,
// causes of lower performance, and remedies. Inspection ([Look]) and judgement ([Judge]) are
// separate: the second has no side effects.
package doctor
