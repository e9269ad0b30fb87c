// Package check asks the libraries of Kubernetes and of compose 2 what they
// think of the files in deploy/: they are decoded strictly, judged by the Pod
// Security Standards, and held to each other. A validator of JSON Schema applies
// the schema of scenarios to all of them, and to wrong ones.
//
// It is a module of its own, of tests only, so that those libraries are nobody's
// but its own. `make test` runs it.
package check
