package shm

// Step is called before each operation on a doorbell, with its name.
var Step = func(what string, b *Doorbell) {}
