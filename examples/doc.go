// Package examples is a folder of small programs, one idea each, for a first look at
// package fabric. README.md lists them. The tests of this package run every program
// with the commands that its doc comment shows.
package examples
