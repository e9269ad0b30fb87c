// Package load decides what the applications of a lab do: what is sent and written
// when, what has to be found at the other end, and what of it a history tells. It has
// no clock, goroutine, lock or I/O. The simulation and the applications of real labs
// drive it alike.
//
// An [End] is one end of a connection. What it does are its [Task]s, which run beside
// each other: each is a chain of [Step]s, a call that the driver makes and the function
// that takes the [Result] to the next step. So a task is a state machine, whose state
// is the function that comes next. A driver makes the calls of one task one after the
// other, in any goroutine, and keeps two functions of one end from running at a time.
//
//	step := task.First
//	for step.Then != nil {
//		step = step.Then(perform(step.Call))
//	}
package load
