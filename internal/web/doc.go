// Package web serves the page and the metrics of one node, for people and programs that
// may only look: the access checks, the page's files, and the stream that keeps it up to date.
package web
