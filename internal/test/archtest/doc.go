// Package archtest holds the rules that the source tree keeps: which package
// may import which, where unsafe and system calls may be used, what pure
// packages must not touch, and what every file and package must have. The
// rules are tests; there is nothing else here.
package archtest
