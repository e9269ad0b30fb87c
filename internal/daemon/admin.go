package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/status"
)

// Bounds of the admin interface. Its users are operators of this machine, but
// one of their scripts may go wrong.
const (
	adminConns     = 64               // connections served at once; more wait in the socket's backlog
	adminBody      = 512 << 10        // bytes of a request's body
	adminRequest   = 16 << 10         // bytes of one that is no list of faults
	adminHeader    = 16 << 10         // bytes of a request's header
	adminTimeout   = 10 * time.Second // for a request to arrive and for an answer to be taken
	adminIdle      = time.Minute      // between two requests of one connection
	maxPingTimeout = time.Minute
	defaultPing    = 2 * time.Second
)

// TableNames are the tables of the engine that the admin interface shows.
var TableNames = []string{"ports", "conns", "windows", "links", "services"}

// A Pong is the answer to a ping.
type Pong struct {
	Node  addr.NodeID `json:"node"`
	RTTns int64       `json:"rtt_ns"`
}

// Health reports whether a node can serve applications.
type Health struct {
	Healthy bool   `json:"healthy"`
	Detail  string `json:"detail"`
}

// A subject is the node that the admin interface shows and asks. Daemon is the only
// implementation outside tests.
type subject interface {
	Status() Status
	Nodes() Nodes
	// Table returns the rows of one of TableNames: a slice of structs, not nil.
	Table(name string) any
	Health() Health
	Findings() []Finding
	Ping(ctx context.Context, id addr.NodeID) (time.Duration, error)
	CreateToken(lifetime time.Duration, uses int, labels ...string) (Token, error)
	Tokens() (Tokens, error)
	RevokeToken(id string) (bool, error)
	Enrolled() (Enrolment, error)
	Act(ctx context.Context, action string, r NodeRequest) (NodeAction, error)
	Authorities() (Authorities, error)
	RotateCA(ctx context.Context) (Authorities, error)
	Keys() (Keys, error)
	RotateKey(ctx context.Context) (Keys, error)
	Preview(ctx context.Context, node string, port addr.Port, uid uint32) (Preview, error)
	Backup() (Backup, error)
	Debug() Debug
	Metrics() http.Handler
	LogState() (LogState, error)
	SetLogLevel(zerolog.Level, time.Duration) (LogState, error)
	Gateways() []spec.Status
	RunGateway(ctx context.Context, line spec.Gateway, report func(spec.Event)) error
	LinkFaults(ended bool) ([]faults.Status, error)
	AddLinkFaults(rules []faults.Rule) ([]uint64, error)
	ClearLinkFaults(id uint64, name string) (int, error)
	NodeFaults() ([]NodeFaultReport, error)
	AddNodeFault(NodeFault) (uint64, error)
	ClearNodeFaults(id uint64) (int, error)
	Collect()
	// Recorded returns the kept events that come after the event seq, and not before from.
	Recorded(seq uint64, from time.Time) []flight.Event
	subscribe() *subscription
	unsubscribe(*subscription)
}

// An admin is the admin interface: HTTP and JSON over a Unix socket whose mode
// lets only its owner in.
type admin struct {
	subject subject
	log     zerolog.Logger
	audit   *audit.Log
	server  *httpServer
}

// startAdmin serves s on l until close. Requests that may change something are
// written to the audit log.
func startAdmin(l net.Listener, s subject, log zerolog.Logger, to *audit.Log) *admin {
	a := &admin{subject: s, log: log, audit: to}
	a.server = serveHTTP(l, "admin", a.routes(), log)
	return a
}

// httpLog makes net/http's complaints debug lines of ours: they report
// clients that went away.
type httpLog struct {
	log zerolog.Logger
	op  string
}

func (l httpLog) Write(p []byte) (int, error) {
	l.log.Debug().Str("op", l.op).Msg(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// close ends every request and waits for the serving goroutine.
func (a *admin) close() { a.server.close() }

func (a *admin) routes() http.Handler {
	mux := http.NewServeMux()
	a.readRoutes(mux, 0)
	a.on(mux, "GET /v1/ping", a.ping)
	a.on(mux, "GET /v1/access", a.preview)
	a.tokenRoutes(mux)
	a.enrolmentRoutes(mux)
	a.authorityRoutes(mux)
	a.keyRoutes(mux)
	a.nodeFaultRoutes(mux)
	a.linkFaultRoutes(mux)
	a.backupRoute(mux)
	a.logRoutes(mux)
	a.gatewayRoutes(mux)
	a.on(mux, "GET /v1/debug", func(http.ResponseWriter, *http.Request) (any, error) { return a.subject.Debug(), nil })
	mux.Handle("GET /v1/metrics", a.subject.Metrics())
	a.on(mux, "POST /v1/collect", a.collect)
	return a.audited(http.MaxBytesHandler(mux, adminBody))
}

// on has do answer the requests of a pattern.
func (a *admin) on(mux *http.ServeMux, pattern string, do answerer) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		v, err := do(w, r)
		if err != nil {
			a.refuse(w, err)
			return
		}
		a.answer(w, http.StatusOK, v)
	})
}

// readRoutes are those for every user that may see the node. An answer may be as old as
// age: requests share it, however many there are. 0: each has its own.
func (a *admin) readRoutes(mux *http.ServeMux, age time.Duration) {
	show := func(path string, value func() any) {
		answer := &sharedAnswer{make: value, age: age}
		mux.HandleFunc("GET /v1/"+path, func(w http.ResponseWriter, r *http.Request) {
			a.send(w, http.StatusOK, answer.text())
		})
	}
	show("status", func() any {
		st := a.subject.Status()
		st.Findings = a.subject.Findings()
		return st
	})
	show("nodes", func() any { return a.subject.Nodes() })
	for _, name := range TableNames {
		show(name, func() any { return map[string]any{name: a.subject.Table(name)} })
	}
	mux.HandleFunc("GET /v1/health", a.health)
	mux.HandleFunc("GET /v1/events", a.events)
}

// A sharedAnswer is made anew for a request when the last one is older than age.
type sharedAnswer struct {
	make func() any
	age  time.Duration

	mu   sync.Mutex // guards the fields below; held while one is made
	last []byte
	at   time.Time
}

func (s *sharedAnswer) text() []byte {
	if s.age == 0 {
		return jsonOf(s.make())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.last == nil || now.Sub(s.at) >= s.age {
		s.last, s.at = jsonOf(s.make()), now
	}
	return s.last
}

// jsonOf returns v as a line of JSON.
func jsonOf(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: daemon: admin answer has no JSON: " + err.Error())
	}
	return append(text, '\n')
}

// answer sends v as JSON.
func (a *admin) answer(w http.ResponseWriter, code int, v any) { a.send(w, code, jsonOf(v)) }

// send sends JSON. A reader that does not take it in time is cut off.
func (a *admin) send(w http.ResponseWriter, code int, text []byte) {
	// The deadline cannot be set only on a connection that is gone, and then
	// the write below fails.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(adminTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if _, err := w.Write(text); err != nil {
		a.log.Debug().Str("op", "admin").Err(err).Msg("answer not delivered")
	}
}

// adminError is the body of every answer that is not a success.
type adminError struct {
	Error string `json:"error"`
}

// refuse sends an error.
func (a *admin) refuse(w http.ResponseWriter, err error) {
	about(w, func(e *audit.Event) { e.Result = err.Error() })
	a.answer(w, statusOf(err), adminError{err.Error()})
}

// A codedError is one whose answer has a status of its own.
type codedError struct {
	code int
	error
}

func (e codedError) Unwrap() error { return e.error }

// coded returns a codedError.
func coded(code int, format string, args ...any) error {
	return codedError{code, fmt.Errorf(format, args...)}
}

// wrong is the error of a request that cannot be served at any node.
func wrong(format string, args ...any) error { return coded(http.StatusBadRequest, format, args...) }

// statusOf returns the status of an error's answer: without a reason for another one, that the
// request does not fit the state of the node.
func statusOf(err error) int {
	own, is := errors.AsType[codedError](err)
	_, ofFault := errors.AsType[*faults.FieldError](err)
	switch {
	case is:
		return own.code
	case ofFault:
		return http.StatusBadRequest
	case errors.Is(err, errFaultsOff):
		return http.StatusForbidden
	case errors.Is(err, failpoint.ErrNoFault), errors.Is(err, errNoNode):
		return http.StatusNotFound
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusConflict
}

func (a *admin) health(w http.ResponseWriter, r *http.Request) {
	h := a.subject.Health()
	code := http.StatusOK
	if !h.Healthy {
		code = http.StatusServiceUnavailable
	}
	a.answer(w, code, h)
}

func (a *admin) ping(_ http.ResponseWriter, r *http.Request) (any, error) {
	text := r.FormValue("node")
	id, byID := addr.ParseNode(text)
	switch {
	case byID:
	case !addr.ValidNode(text):
		return nil, wrong("node: %.80q: want a node's name or ID", text)
	default:
		n, err := a.subject.Nodes().Find(text)
		if err != nil {
			return nil, err
		}
		id = n.ID
	}
	timeout, err := formDuration(r, "timeout", defaultPing, 1, maxPingTimeout)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	rtt, err := a.subject.Ping(ctx, id)
	switch {
	case err == nil:
		return Pong{id, rtt.Nanoseconds()}, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, coded(http.StatusGatewayTimeout, "node %d did not answer within %v", id, timeout)
	case errors.Is(err, status.NoDevice):
		return nil, coded(http.StatusNotFound, "node %d: %w", id, err)
	}
	return nil, coded(http.StatusBadGateway, "node %d: %w", id, err)
}

// formDuration reads a duration of a request's form, def if there is none.
func formDuration(r *http.Request, key string, def, least, most time.Duration) (time.Duration, error) {
	text := r.FormValue(key)
	if text == "" {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		return 0, wrong("%s: %q: want a duration from %v to %v", key, text, least, most)
	}
	return d, nil
}

// beginBody bounds the wait for a request's body. The server has no timeout for bodies: one would
// end event streams.
func beginBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(adminTimeout)) // as in send
}

// decode reads the body of a request, which holds one JSON object with known
// members; an empty body is an empty object.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	beginBody(w)
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, adminRequest))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil && !errors.Is(d.Decode(&struct{}{}), io.EOF) {
		err = errors.New("more than one JSON object")
	}
	if err != nil {
		return wrong("request: %w", err)
	}
	return nil
}

// An answerer makes the answer to a request, or its error; see statusOf.
type answerer = func(http.ResponseWriter, *http.Request) (any, error)

// taking returns the answerer of requests whose body is a T.
func taking[T any](do func(http.ResponseWriter, *http.Request, T) (any, error)) answerer {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		var body T
		if err := decode(w, r, &body); err != nil {
			return nil, err
		}
		return do(w, r, body)
	}
}

// forAll returns the answerer of requests that wait for all nodes, for as long as they say.
func forAll(do answerer) answerer {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		timeout, err := formDuration(r, "timeout", defaultRotation, time.Second, maxRotation)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		return do(w, r.WithContext(ctx))
	}
}

// jsonLines is an answer of one JSON object per line.
type jsonLines struct {
	out     *json.Encoder
	control *http.ResponseController
}

func newJSONLines(w http.ResponseWriter) jsonLines {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return jsonLines{json.NewEncoder(w), http.NewResponseController(w)}
}

// send writes lines, which a reader has to take in time. It reports false if there is no reader.
func (l jsonLines) send(lines ...any) bool {
	_ = l.control.SetWriteDeadline(time.Now().Add(adminTimeout)) // as in admin.send
	for _, v := range lines {
		if l.out.Encode(v) != nil {
			return false
		}
	}
	return l.control.Flush() == nil
}

// events streams one JSON object per line: the current nodes, then new events,
// until the reader goes away, is too slow, or the node ends.
func (a *admin) events(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("since") != "" {
		a.recorded(w, r)
		return
	}
	sub := a.subject.subscribe()
	defer a.subject.unsubscribe(sub)
	out := newJSONLines(w)
	for _, e := range sub.current {
		if !out.send(e) {
			return
		}
	}
	if len(sub.current) == 0 && !out.send() { // the reader knows that it is connected
		return
	}
	for {
		select {
		case e, ok := <-sub.events:
			if !ok {
				if sub.lagged {
					out.send(NodeEvent{Time: time.Now(), Event: EventLagging, Detail: "the reader is too slow; events were lost"})
				}
				return
			}
			if !out.send(e) {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// A limitListener lets at most cap(free) connections be open at once.
type limitListener struct {
	net.Listener
	free   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newLimitListener(l net.Listener, n int) *limitListener {
	return &limitListener{Listener: l, free: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept waits until there is room for one more connection.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &limitConn{Conn: c, release: sync.OnceFunc(func() { <-l.free })}, nil
}

func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A limitConn gives its room back when it is closed.
type limitConn struct {
	net.Conn
	release func()
}

func (c *limitConn) Close() error {
	c.release()
	return c.Conn.Close()
}
