// Package doctor says what a machine lacks for a node: what keeps it from starting,
// what makes it slower than it could be, and what to do about it. Looking at the
// machine ([Look]) and judging what was seen ([Judge]) are apart: the second one only
// decides.
package doctor
