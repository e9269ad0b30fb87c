//go:build race

package fabrictest

// raced reports that the race detector is on. It does not see the order of packet sockets.
const raced = true
