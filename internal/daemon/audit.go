package daemon

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/trust"
)

// Values of the setting audit-log that are no path.
const (
	AuditStderr = "stderr"
	AuditOff    = "off"
)

// auditFile is the audit log's name in the state directory.
const auditFile = "audit.jsonl"

// openAudit opens the audit log, which every part after it may write to.
func (d *Daemon) openAudit(context.Context) error {
	out, err := auditOutput(d.cfg)
	if err != nil || out == nil {
		return err
	}
	d.audit = audit.New(audit.Config{At: d.cfg.Name, Out: out, Now: d.nodeFaults.Now, Log: d.log})
	d.audit.Write(audit.Event{Event: audit.Started, Node: d.state.Identity().Node.String(), Name: d.cfg.Name,
		Text: string(d.cfg.Role) + ", version " + d.opts.Version})
	return nil
}

// auditOutput returns where c sends the audit log; nil: nowhere.
func auditOutput(c Config) (io.WriteCloser, error) {
	path := c.Log.Audit
	switch path {
	case AuditOff:
		return nil, nil
	case AuditStderr:
		return standardError{}, nil
	case "":
		path = filepath.Join(c.StateDir, auditFile)
	}
	f, err := audit.OpenFile(path)
	if err != nil {
		return nil, problem("audit-log", path, "cannot be opened: "+cause(err).Error(), err)
	}
	return f, nil
}

// standardError is the process's, which the audit log does not close.
type standardError struct{}

func (standardError) Write(line []byte) (int, error) { return os.Stderr.Write(line) }
func (standardError) Close() error                   { return nil }

// closeAudit writes the last line of a node that ends in order.
func (d *Daemon) closeAudit() error {
	d.audit.Write(audit.Event{Event: audit.Stopped})
	return d.audit.Close()
}

// auditToken writes that a token was made while no daemon runs. text is the token,
// or the gossip keys, which are none.
func auditToken(c Config, text string) error {
	token, err := trust.ParseToken(text)
	if err != nil {
		return nil
	}
	out, err := auditOutput(c)
	if err != nil || out == nil {
		return err
	}
	o, uid := c.JoinToken.options(nil), uint32(os.Getuid())
	made := Token{Uses: int(o.MaxUses)}
	if o.TTL > 0 {
		made.Expires = new(time.Now().Add(o.TTL).UTC())
	}
	log := audit.New(audit.Config{At: c.Name, Out: out})
	log.Write(audit.Event{Event: audit.TokenCreated, Token: token.ID.String(), UID: &uid, PID: int32(os.Getpid()),
		Command: "fabricd init", Text: made.bounds(nil)})
	return log.Close()
}

// auditMembership writes an audit event of membership. It does not block.
func (d *Daemon) auditMembership(m membership.Audit) {
	if m.Event == audit.ServeRefused {
		d.audit.Refused(audit.Refusal{Event: m.Event, Node: m.Node.String(), Name: m.Name, Incarnation: m.Incarnation.String(), Rule: m.Text})
		if node, _ := d.live.engineAndAgent(); node != nil {
			node.ServeRefused(m.Text)
		}
		return
	}
	d.audit.Write(auditEvent(m))
	if m.Event == audit.JoinRefused {
		d.record.Note(flight.Failed, observe.JoinRefused, addr.Incarnation{}, m.Name, oneLine(m.Text))
	}
}

// auditEvent returns the audit log's line of a membership event.
func auditEvent(m membership.Audit) audit.Event {
	e := audit.Event{Event: m.Event, Name: m.Name, Text: m.Text}
	if !m.Node.IsZero() {
		e.Node = m.Node.String()
	}
	if m.Token != (trust.TokenID{}) {
		e.Token = m.Token.String()
	}
	return e
}

// auditIncarnation writes that an incarnation began or ended: at the host of all nodes, at
// other nodes their own.
func (d *Daemon) auditIncarnation(ev membership.Event) {
	line := audit.Event{Event: audit.Incarnation, Node: ev.Node.UUID.String(), Name: ev.Node.Name(), Incarnation: ev.Node.Incarnation.String()}
	switch {
	case ev.Kind == membership.EventSelf && ev.Reason == "":
	case ev.Kind == membership.EventAdded && d.cfg.Role == RoleHost:
	case ev.Kind == membership.EventReset:
		line.Event, line.Text = audit.IncarnationEnded, resetReason(ev)
	case ev.Kind == membership.EventRemoved && d.cfg.Role == RoleHost:
		line.Event, line.Text = audit.IncarnationEnded, string(ev.Reason)
	default:
		return
	}
	d.audit.Write(line)
}

// peerKey is the context key of the process that opened an administrator's connection.
type peerKey struct{}

// withPeer keeps in ctx the process at the other end of c, as the kernel knows it.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if limited, ok := c.(*limitConn); ok {
		c = limited.Conn
	}
	if unix, ok := c.(*net.UnixConn); ok {
		if cred, err := shm.PeerCred(unix); err == nil {
			return context.WithValue(ctx, peerKey{}, cred)
		}
	}
	return ctx
}

// audited has the requests that h serves and that may change something written
// to the audit log when they have ended.
func (a *admin) audited(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			h.ServeHTTP(w, r)
			return
		}
		rec := &recorder{ResponseWriter: w}
		rec.event = audit.Event{Event: audit.Command, Command: r.Method + " " + r.URL.Path, Result: "ok"}
		if cred, ok := r.Context().Value(peerKey{}).(shm.Cred); ok {
			rec.event.UID, rec.event.PID = &cred.UID, cred.PID
		}
		h.ServeHTTP(rec, r)
		a.audit.Write(rec.event)
	})
}

// A recorder is the answer to an administrator's request, and the line about it.
type recorder struct {
	http.ResponseWriter
	event audit.Event
}

// Unwrap lets net/http reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader keeps that a request failed, unless refuse has said why.
func (r *recorder) WriteHeader(code int) {
	if code >= http.StatusBadRequest && r.event.Result == "ok" {
		r.event.Result = http.StatusText(code)
	}
	r.ResponseWriter.WriteHeader(code)
}

// about adds the subject of the request that w answers to the request's line.
func about(w http.ResponseWriter, fill func(*audit.Event)) {
	if rec, ok := w.(*recorder); ok {
		fill(&rec.event)
	}
}
