package shm

// Step is told what is about to be done to a bell.
var Step = func(what string, b *Bell) {}
