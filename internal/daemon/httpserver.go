package daemon

import (
	"context"
	"errors"
	stdlog "log"
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"
)

// An httpServer serves HTTP within bounds, until close.
type httpServer struct {
	http   http.Server
	served chan struct{} // closed when the serving goroutine has ended
	ctx    context.Context
	cancel context.CancelFunc // ends the waits of requests
}

// serveHTTP serves h on l. op names it in logs.
func serveHTTP(l net.Listener, op string, h http.Handler, log zerolog.Logger) *httpServer {
	s := &httpServer{served: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.http = http.Server{
		Handler:           h,
		ReadHeaderTimeout: adminTimeout,
		IdleTimeout:       adminIdle,
		MaxHeaderBytes:    adminHeader,
		ErrorLog:          stdlog.New(httpLog{log, op}, "", 0),
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ConnContext:       withPeer,
	}
	go func() {
		defer close(s.served)
		if err := s.http.Serve(newLimitListener(l, adminConns)); !errors.Is(err, http.ErrServerClosed) {
			log.Error().Str("op", op).Err(err).Msg(op + " interface ended")
		}
	}()
	return s
}

// finishAnswers is how long answers that are under way may take at the end of a node.
const finishAnswers = time.Second

// finish ends the waits of requests and lets answers that are under way be delivered.
func (s *httpServer) finish() {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), finishAnswers)
	defer cancel()
	// close cuts off the remaining requests.
	_ = s.http.Shutdown(ctx)
	s.close()
}

// close ends every request and waits for the serving goroutine.
func (s *httpServer) close() {
	s.cancel()
	s.http.Close()
	<-s.served
}
