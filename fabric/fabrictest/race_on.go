//go:build race

package fabrictest

// raced says that the race detector is on. It knows nothing of sockets for packets.
const raced = true
