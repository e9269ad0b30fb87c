// Package chaos runs scenarios: it starts a cluster and its applications in a lab,
// applies the faults of a schedule at their times, collects the records of all
// processes, and lets the checker judge them.
//
// A [Lab] is where a cluster runs: simulated, as processes on loopback, in
// network namespaces, or in containers. [Run] drives any of them and is the
// only owner of a run's time; the labs' goroutines are owned by the lab, whose
// Close waits for them.
//
// Everything that a run makes outside its report carries the run's name (see Name) and
// is removed at its end. A helper process, the cleaner, removes it if the runner is
// killed, and the next run removes leftovers of both.
package chaos
