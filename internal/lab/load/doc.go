// Package load decides the operations of a lab's applications: the bytes that they send
// and write and when, the bytes that the other end has to find, and the records that go
// to the history. It has no clock, goroutine, lock or I/O. It drives the simulation and
// the applications of real labs alike.
//
// An [End] is one end of a connection. Its work is a set of [Task]s, which run beside
// each other. Each is a chain of [Step]s: a call that the driver makes and the function
// that maps its [Result] to the next step. So a task is a state machine, whose state is
// the next function. A driver makes the calls of one task one after the other, in any
// goroutine, and runs at most one function of an end at a time.
//
//	step := task.First
//	for step.Then != nil {
//		step = step.Then(perform(step.Call))
//	}
package load
