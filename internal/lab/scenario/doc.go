// Package scenario is the file that lists the faults and the conditions that must
// hold: a cluster, a workload, faults on a timeline, expectations and figures.
//
//	version: 1
//	name: node-killed
//	on: [sim, local]
//	cluster: {nodes: 5, detection: normal}
//	select: {victim: {any: 1, not: [0]}}
//	workload: {pairs: mesh, messages: {size: 64..4096, rate: 200}}
//	duration: 12s
//	timeline:
//	  - {at: 3s..4s, node: {id: $victim, do: kill, for: 4s}}
//	expect:
//	  - removed: {node: $victim, times: 1, within: 1s}
//	figures: [time_to_removed]
//
// [Decode] reads one, strictly: every unknown, impossible or out-of-range entry is an
// [Error] with a line for each problem, "file:line:column: field: value: allowed
// values". [Scenario.Resolve] draws everything random from a seed, and makes the same
// [Schedule] for every lab. [Schedule.Fixed] is the scenario with nothing random
// left, and [Encode] writes it back: that is how a failing schedule is shortened.
//
// The package is pure: it reads no file, no clock, and draws from the seed
// alone. [Schema] is the format as a JSON Schema, made from the same types.
//
// A node is named by its index here, 0 … nodes-1, which a machine, a container or
// a state directory has in the scenario. Node 0 is the host. An index is no node
// ID: IDs are granted when nodes join.
package scenario
