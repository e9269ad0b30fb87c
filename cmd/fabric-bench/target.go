package main

// A Target is a row of the design's table of targets.
type Target struct{}

func (t *table) targets([]Target) {}
