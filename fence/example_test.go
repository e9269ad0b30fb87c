package fence_test

import (
	"fmt"

	"github.com/fabricd/fabricd/fence"
)

func ExampleTracker() {
	var t fence.Tracker
	first, second := t.Begin(), t.Begin()
	mark := t.Mark()
	t.Begin() // begun after the mark: it does not hold the fence back

	t.End(second)
	fmt.Println(t.Reached(mark))
	t.End(first)
	fmt.Println(t.Reached(mark))
	// Output:
	// false
	// true
}

func ExampleWaiters() {
	var t fence.Tracker
	var signals fence.Waiters[string]
	t.Begin()
	signals.Add(t.Mark(), "header is there")
	t.Begin()
	signals.Add(t.Mark(), "all is there")

	t.End(1)
	fmt.Println(signals.Reached(t.Done()))
	t.End(2)
	fmt.Println(signals.Reached(t.Done()))
	// Output:
	// [header is there]
	// [all is there]
}
