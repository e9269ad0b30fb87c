// Package pagetest reads the page of a node in a real browser, while its cluster is broken
// on purpose, and asks a real Prometheus for what the dashboards name. It looks at the
// reports of the lab and the benchmark in the same browser.
//
// It needs Debian's chromium and chromium-driver, and prometheus. What the environment
// says is not there is not tested:
//
//	FABRICD_TEST_WITHOUT=chromium,prometheus go test ./internal/test/pagetest
package pagetest
