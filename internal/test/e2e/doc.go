// Package e2e holds the tests of the whole product: real fabricd processes, real
// applications, real sockets, and real kills.
//
// The tests build fabricd once and start it as users do. Applications that are
// to be stopped or killed are this test binary, started again in a role (see
// roles); those that only watch live in the test itself and attach through the
// same Unix socket. Every cluster has a directory and a loopback address of its
// own, so that clusters run beside each other. Children die with the test,
// however it ends, and TestMain checks that nothing is left of them.
//
//	go test ./internal/test/e2e                    everything
//	go test -short ./internal/test/e2e             with fewer kills and restarts
//	FABRICD_E2E_LONG=1 go test ./internal/test/e2e with many more; for `make soak`
//	FABRICD_E2E_SEED=7 go test ./internal/test/e2e with the random choices of a run that printed 7
//	FABRICD_E2E_KEEP=1 go test ./internal/test/e2e keeps the directories with the logs
package e2e
