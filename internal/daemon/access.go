package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/membership"
)

// AccessConfig is the access control of the node's ports, for connects and binds; see
// docs/access.md.
type AccessConfig struct {
	Rules  []access.Rule
	Closed bool // without a rule only the same user of this node may connect

	wrong error // of the text that was to be rules
}

// policy returns the rules as one value.
func (c AccessConfig) policy() (*access.Policy, error) {
	if c.wrong != nil {
		return nil, c.wrong
	}
	return access.NewPolicy(c.Rules, c.Closed)
}

// Words of the setting default-access.
const (
	accessOpen   = "open"
	accessClosed = "closed"
)

func accessSettings() []Setting {
	return []Setting{
		{"access", "which nodes may connect to which ports, which users may bind them, and at the host which nodes may serve which names; the first rule that covers a port or a name decides",
			"rules like '2050-2059 from web-1 label:db host bind 1000 group:27' or 'service:db by label:db', separated by commas, or nothing", setAccess,
			func(c *Config) string {
				var texts []string
				for _, r := range c.Access.Rules {
					texts = append(texts, r.String())
				}
				return strings.Join(texts, ",")
			}},
		setting("default-access", "which applications may connect to ports without a rule: open is every application of the cluster, closed those of the same user on this node",
			"open or closed", func(c *Config) *bool { return &c.Access.Closed },
			form[bool]{func(s string) (bool, bool) { return s == accessClosed, s == accessOpen || s == accessClosed }, func(closed bool) string {
				if closed {
					return accessClosed
				}
				return accessOpen
			}}),
	}
}

// setAccess keeps the error of wrong rules for checkAccess, which reports the rule and the reason.
func setAccess(c *Config, s string) bool {
	c.Access.Rules, c.Access.wrong = nil, nil
	items := split(s)
	if len(items) > access.MaxRules {
		c.Access.wrong = fmt.Errorf("%d rules, want at most %d", len(items), access.MaxRules)
		return true
	}
	for _, item := range items {
		r, err := access.ParseRule(item)
		if err != nil {
			c.Access.wrong = err
			return true
		}
		c.Access.Rules = append(c.Access.Rules, r)
	}
	return true
}

// checkAccess reports an error in the access rules.
func (c *Config) checkAccess(values map[string]value, report func(key, text, allowed string)) {
	p, err := c.Access.policy()
	if err != nil {
		report("access", values["access"].text, err.Error())
	} else if r := p.OfServices(); r != nil && c.Role != RoleHost {
		report("access", values["access"].text, fmt.Sprintf("rule %q is for the host, which decides which node serves which name", r))
	}
}

// accessChange describes in one line how now differs from before.
func accessChange(before, now *access.Policy) string {
	parts := []string{now.Default()}
	for _, r := range missing(before, now) {
		parts = append(parts, "removed: "+r)
	}
	for _, r := range missing(now, before) {
		parts = append(parts, "added: "+r)
	}
	return strings.Join(parts, "; ")
}

// missing returns the rules of p that q does not have.
func missing(p, q *access.Policy) []string {
	known := make(map[string]bool)
	for _, r := range q.Rules() {
		known[r.String()] = true
	}
	var texts []string
	for _, r := range p.Rules() {
		if !known[r.String()] {
			texts = append(texts, r.String())
		}
	}
	return texts
}

// ReloadSettings reads the settings again, as Options.Settings does, and takes
// over the access rules and the gateways. Settings that cannot be used change nothing. Other
// settings that have changed wait for the next start, and are named in the log.
func (d *Daemon) ReloadSettings() error {
	if d.opts.Settings == nil {
		return errors.New("this node's settings come from nowhere that could be read again")
	}
	d.reloading.Lock()
	defer d.reloading.Unlock()
	c, err := d.opts.Settings()
	var policy *access.Policy
	if err == nil {
		policy, err = c.Access.policy()
	}
	if err != nil {
		d.log.Error().Str("op", "settings").Err(errors.New(oneLine(err.Error()))).Msg("the settings cannot be used; access rules and gateways stay as they are")
		return err
	}
	if waiting := d.waitingSettings(c); len(waiting) > 0 {
		d.log.Warn().Str("op", "settings").Strs("settings", waiting).Msg("settings have changed that only a restart takes over")
	}
	d.takeAccess(policy)
	d.takeGateways(c)
	return nil
}

// reloaded are the keys of the settings that a running node takes over.
var reloaded = []string{"access", "default-access", string(spec.Expose), string(spec.Forward), string(spec.SOCKS), string(spec.HTTPProxy)}

// waitingSettings returns the keys of c that are not those the node runs with
// and cannot be taken over.
func (d *Daemon) waitingSettings(c Config) []string {
	var keys []string
	for _, s := range settings {
		if !slices.Contains(reloaded, s.Key) && s.Value(c) != s.Value(d.loaded) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// takeAccess makes p the node's access rules.
func (d *Daemon) takeAccess(p *access.Policy) {
	var before *access.Policy
	d.live.set(func(l *parts) {
		before, l.access = l.access, p
		if l.engine != nil {
			l.engine.SetAccess(p)
		}
	})
	if before.Equal(p) {
		return
	}
	change := accessChange(before, p)
	d.log.Info().Str("op", "access").Int("rules", len(p.Rules())).Str("change", change).Msg("access rules have changed")
	d.audit.Write(audit.Event{Event: audit.RulesChanged, Text: change})
	if _, agent := d.live.engineAndAgent(); agent != nil {
		agent.RulesChanged()
	}
}

// barsService returns the rule that keeps a node from serving a name, "" if there is none.
func (d *Daemon) barsService(n membership.Node, name string) string {
	decision := d.live.get().access.Serve(name, access.Caller{Incarnation: n.Incarnation, Name: n.Name(), Labels: n.Labels})
	if decision.Allowed {
		return ""
	}
	return decision.By
}

// auditRefusal writes that an access rule refused something. It does not block.
func (d *Daemon) auditRefusal(r engine.Refusal) {
	event, kind := audit.ConnectRefused, observe.ConnectRefused
	if r.Bind {
		event, kind = audit.BindRefused, observe.BindRefused
	}
	d.record.Note(flight.Failed, kind, r.Caller.Incarnation, r.Caller.Name, fmt.Sprintf("port %d, rule %q", r.Port, r.By))
	d.audit.Refused(audit.Refusal{Event: event, Node: r.Node.String(), Name: r.Caller.Name, Incarnation: r.Caller.Incarnation.String(),
		UID: r.Caller.UID, Port: uint16(r.Port), Rule: r.By})
}

// A fileState is how a file looked when it was last read.
type fileState struct {
	size    int64
	changed time.Time
}

// stateOf returns the state of a file, the zero one if it cannot be looked at.
func stateOf(name string) fileState {
	info, err := os.Stat(name)
	if err != nil {
		return fileState{}
	}
	return fileState{info.Size(), info.ModTime()}
}

// followSettings begins to watch the settings file, if there is one.
func (d *Daemon) followSettings(context.Context) error {
	if d.opts.Settings != nil && d.opts.SettingsFile != "" {
		d.tasks.wg.Go(d.watchSettings)
	}
	return nil
}

// settled is the age from which on a file is believed to be written whole: an
// empty one in the middle of a write has no rules, which opens every port.
const settled = 2 * time.Second

// watchSettings reads the settings again whenever their file has changed, until
// the node ends. The file may have changed since it was read for the start: the
// first look reads it in any case.
func (d *Daemon) watchSettings() {
	var read, seen fileState
	for wait.For(d.tasks.ctx.Done(), reloadEvery) {
		now := stateOf(d.opts.SettingsFile)
		whole := now == seen || time.Since(now.changed) >= settled
		if seen = now; now != read && whole {
			read = now
			_ = d.ReloadSettings() // which has logged it
		}
	}
}

// An AccessRule is a rule, or the default, and the connects and binds, or at the host
// the names of services, that it has refused since it came into force.
type AccessRule struct {
	Rule    string `json:"rule"`
	Refused uint64 `json:"refused"`
}

// accessRules returns the rules in their order, then the default; none while
// the node joins.
func (d *Daemon) accessRules() []AccessRule {
	rules := []AccessRule{}
	if engine, _ := d.live.engineAndAgent(); engine != nil {
		for _, r := range engine.AccessRules() {
			rules = append(rules, AccessRule(r))
		}
	}
	return rules
}
