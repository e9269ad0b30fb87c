package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/membership/trust"
)

// Bounds of join tokens, unless an administrator asks for others.
const (
	DefaultTokenLifetime = 24 * time.Hour
	DefaultTokenUses     = 100

	minTokenLifetime = time.Second
	maxTokenLifetime = 365 * 24 * time.Hour
	maxTokenUses     = 1 << 20
)

// Never is the lifetime of a token that does not expire, in a TokenRequest and on
// the command line.
const Never = "never"

// TokenLimits are how long and how often a join token may be used.
type TokenLimits struct {
	Lifetime time.Duration // 0: DefaultTokenLifetime; negative: it does not expire
	Uses     int           // 0: DefaultTokenUses; negative: any number
}

// ParseLifetime reads a token's lifetime: a duration from a second to 365 days,
// which may be in days, or never.
func ParseLifetime(s string) (time.Duration, error) {
	if s == Never {
		return -1, nil
	}
	d, err := parseDays(s)
	if err != nil || d < minTokenLifetime || d > maxTokenLifetime {
		return 0, fmt.Errorf("%q: want a duration from 1s to 365d, or never", s)
	}
	return d, nil
}

// options returns these limits as trust's options, where zero is no limit.
func (l TokenLimits) options(labels []string) trust.TokenOptions {
	o := trust.TokenOptions{TTL: DefaultTokenLifetime, MaxUses: DefaultTokenUses, Labels: labels}
	if l.Lifetime != 0 {
		o.TTL = max(l.Lifetime, 0)
	}
	if l.Uses != 0 {
		o.MaxUses = uint32(max(l.Uses, 0))
	}
	return o
}

// A TokenRequest asks for a join token.
type TokenRequest struct {
	// Lifetime is a duration, or Never; empty: a day.
	Lifetime string `json:"lifetime,omitempty"`
	// Uses is how many nodes may join with it; 0: DefaultTokenUses, or any number
	// with Unlimited.
	Uses      int  `json:"uses,omitempty"`
	Unlimited bool `json:"unlimited,omitempty"`
	// Labels are given to every node that joins with it.
	Labels []string `json:"labels,omitempty"`
}

// limits returns the limits that are asked for, or the error in them.
func (r TokenRequest) limits() (l TokenLimits, err error) {
	if r.Lifetime != "" {
		if l.Lifetime, err = ParseLifetime(r.Lifetime); err != nil {
			return l, fmt.Errorf("lifetime: %w", err)
		}
	}
	l.Uses = r.Uses
	switch {
	case r.Unlimited && r.Uses != 0:
		return l, fmt.Errorf("uses: %d, and unlimited; want one of them", r.Uses)
	case r.Unlimited:
		l.Uses = -1
	case r.Uses < 0 || r.Uses > maxTokenUses:
		return l, fmt.Errorf("uses: %d: want 1 to %d", r.Uses, maxTokenUses)
	}
	return l, CheckLabels(r.Labels)
}

// CheckLabels returns the error in labels for nodes.
func CheckLabels(labels []string) error { return trust.CheckLabels(labels) }

// A Token is the answer to a TokenRequest. It is a secret.
type Token struct {
	Token   string     `json:"token"`
	ID      string     `json:"id"`
	Expires *time.Time `json:"expires,omitempty"` // left out: it does not
	Uses    int        `json:"uses,omitempty"`    // left out: any number
}

// A TokenInfo is the public part of a join token: it is not enough to join.
type TokenInfo struct {
	ID      string     `json:"id"`
	Label   string     `json:"label,omitempty"` // the command that made it, unless an administrator did
	Labels  []string   `json:"labels,omitempty"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"`   // left out: it does not
	Uses    int        `json:"uses"`                // nodes that have joined with it
	Left    *int       `json:"uses_left,omitempty"` // left out: any number
	// Void: it was made before the authority was rotated, and no node joins with it any more.
	Void bool `json:"void,omitempty"`
	// Usable is whether a node can join with it now.
	Usable bool `json:"usable"`
}

// Tokens is the output of `fabricd token list --json`.
type Tokens struct {
	Tokens []TokenInfo `json:"tokens"`
}

var errOperatorsTokens = errors.New("the operator's CA issues the certificates: nodes need one from there and the gossip keys, not a token")

// CreateToken makes a join token. A lifetime of 0 does not expire, and 0 uses
// are any number. Only a host whose cluster has an authority of its own can.
func (d *Daemon) CreateToken(lifetime time.Duration, uses int, labels ...string) (Token, error) {
	_, agent := d.live.engineAndAgent()
	if agent == nil {
		return Token{}, errNotYet
	}
	if d.operator != nil {
		return Token{}, errOperatorsTokens
	}
	made, err := agent.CreateToken(trust.TokenOptions{TTL: lifetime, MaxUses: uint32(uses), Labels: labels})
	if err != nil {
		return Token{}, err
	}
	t := Token{Token: made.Text(), ID: made.ID.String(), Uses: uses}
	if lifetime > 0 {
		t.Expires = new(d.clock.Now().Add(lifetime).UTC())
	}
	d.audit.Write(audit.Event{Event: audit.TokenCreated, Token: t.ID, Text: t.bounds(labels)})
	return t, nil
}

// bounds describes the limits of the token for people.
func (t Token) bounds(labels []string) string {
	text := "any number of nodes"
	if t.Uses > 0 {
		text = fmt.Sprintf("%d nodes", t.Uses)
	}
	if t.Expires != nil {
		text += " until " + t.Expires.Format(time.RFC3339)
	}
	if len(labels) > 0 {
		text += ", labels " + strings.Join(labels, " ")
	}
	return text
}

// Tokens returns the cluster's join tokens, oldest first. Only a host has any.
func (d *Daemon) Tokens() (Tokens, error) {
	if err := d.hostOnly(); err != nil {
		return Tokens{}, err
	}
	_, agent := d.live.engineAndAgent()
	now := d.clock.Now()
	all := Tokens{Tokens: []TokenInfo{}}
	for _, r := range agent.Tokens() {
		all.Tokens = append(all.Tokens, tokenInfo(r, now))
	}
	return all, nil
}

func tokenInfo(r trust.TokenRecord, now time.Time) TokenInfo {
	t := TokenInfo{ID: r.ID.String(), Label: r.Label, Labels: r.Labels, Created: r.Created, Uses: int(r.Uses), Void: r.Void, Usable: !r.Void}
	if !r.Expires.IsZero() {
		t.Expires, t.Usable = &r.Expires, t.Usable && now.Before(r.Expires)
	}
	if !r.Unlimited() {
		left := int(r.MaxUses) - int(min(r.Uses, r.MaxUses))
		t.Left, t.Usable = &left, t.Usable && left > 0
	}
	return t
}

// RevokeToken ends a join token. It reports false if there is none with this ID.
func (d *Daemon) RevokeToken(id string) (bool, error) {
	if err := d.hostOnly(); err != nil {
		return false, err
	}
	token, err := trust.ParseTokenID(id)
	if err != nil {
		return false, err
	}
	_, agent := d.live.engineAndAgent()
	was, err := agent.RevokeToken(token)
	if was && err == nil {
		d.audit.Write(audit.Event{Event: audit.TokenRevoked, Token: id})
	}
	return was, err
}

// hostOnly refuses requests that only the host of a cluster that issues its own certificates can
// serve.
func (d *Daemon) hostOnly() error {
	_, agent := d.live.engineAndAgent()
	switch {
	case agent == nil:
		return errNotYet
	case d.cfg.Role != RoleHost:
		return errors.New("this node is not the host; ask the host's fabricd")
	case d.operator != nil:
		return errOperatorsTokens
	}
	return nil
}

func (a *admin) tokenRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/tokens", func(http.ResponseWriter, *http.Request) (any, error) { return a.subject.Tokens() })
	a.on(mux, "POST /v1/tokens", taking(a.createToken))
	a.on(mux, "POST /v1/tokens/revoke", taking(a.revokeToken))
}

func (a *admin) createToken(w http.ResponseWriter, _ *http.Request, req TokenRequest) (any, error) {
	limits, err := req.limits()
	if err != nil {
		return nil, wrong("%w", err)
	}
	o := limits.options(nil)
	token, err := a.subject.CreateToken(o.TTL, int(o.MaxUses), req.Labels...)
	if err != nil {
		return nil, err
	}
	about(w, func(e *audit.Event) { e.Token = token.ID })
	a.log.Info().Str("op", "token").Str("token", token.ID).Dur("lifetime", o.TTL).Uint32("uses", o.MaxUses).Msg("join token created")
	return token, nil
}

// A RevokeRequest names a join token.
type RevokeRequest struct {
	ID string `json:"id"`
}

func (a *admin) revokeToken(w http.ResponseWriter, _ *http.Request, req RevokeRequest) (any, error) {
	if _, err := trust.ParseTokenID(req.ID); err != nil {
		return nil, wrong("id: %w", err)
	}
	about(w, func(e *audit.Event) { e.Token = req.ID })
	was, err := a.subject.RevokeToken(req.ID)
	if err == nil && !was {
		err = coded(http.StatusNotFound, "no token %s: it was revoked before, or is another cluster's", req.ID)
	}
	if err != nil {
		return nil, err
	}
	a.log.Info().Str("op", "token").Str("token", req.ID).Msg("join token revoked")
	return req, nil
}

// CreateToken asks for a join token; only a host can make one.
func (c *Client) CreateToken(ctx context.Context, req TokenRequest) (Token, error) {
	return post[Token](ctx, c, "tokens", req)
}

// Tokens asks the host for its join tokens.
func (c *Client) Tokens(ctx context.Context) (Tokens, error) { return get[Tokens](ctx, c, "tokens") }

// RevokeToken asks the host to end the token with this ID.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	_, err := post[RevokeRequest](ctx, c, "tokens/revoke", RevokeRequest{id})
	return err
}
