package web

import (
	"context"
	"embed"
	"io/fs"
	"net/http"

	"github.com/fabricd/fabricd/internal/observe"
)

//go:embed static
var static embed.FS

// Options say what is served.
type Options struct {
	// Token is what requests have to show; nil: nothing, and only requests for loopback
	// are answered.
	Token    []byte
	Snapshot func() observe.Snapshot // for the page
	// Watched runs while a page is open, until its context ends.
	Watched func(context.Context)
	Read    http.Handler // of /v1/
	Health  http.Handler // of /healthz
	Metrics http.Handler // of /metrics
}

// Handler serves the page at /, the metrics at /metrics, and what both are made of.
func Handler(o Options) http.Handler {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic("BUG: web: the page's files are not there: " + err.Error())
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.Handle("/v1/", o.Read)
	mux.Handle("/v1/stream", newStreams(o.Snapshot, o.Watched))
	mux.Handle("/healthz", o.Health)
	mux.Handle("/metrics", o.Metrics)
	return &guard{token: o.Token, next: mux}
}
