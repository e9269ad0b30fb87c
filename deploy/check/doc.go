// Package check tests the files in deploy/ with the libraries of Kubernetes and of
// compose 2: they are decoded strictly, judged by the Pod Security Standards, and
// checked against each other. A validator of JSON Schema applies the schema of scenarios
// to all of them, and to wrong ones.
//
// It is a module of its own, of tests only, so that no other module depends on those
// libraries. `make test` runs it.
package check
