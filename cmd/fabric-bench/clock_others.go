//go:build !linux

package main

import "time"

// runTime returns how long the threads of a process were running.
func runTime(pid int) (time.Duration, error) { return cpuTime(pid) }
