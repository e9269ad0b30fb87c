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

// Options configure a Handler.
type Options struct {
	// Token is the token that requests have to show; nil: none, and only requests for loopback
	// are answered.
	Token    []byte
	Snapshot func() observe.Snapshot // for the page
	// Watched runs while a page is open, until its context ends.
	Watched func(context.Context)
	Read    http.Handler // of /v1/
	Health  http.Handler // of /healthz
	Metrics http.Handler // of /metrics
}

// Handler serves the page at /, the metrics at /metrics, and the data behind both.
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
