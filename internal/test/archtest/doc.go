// Package archtest holds the rules that the source tree keeps: which package
// may import which, where unsafe and system calls may be used, the limits of
// pure packages, and the required parts of every file and package. The
// rules are tests; there is no other code here.
package archtest
