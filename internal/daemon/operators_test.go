package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/trust"
)

// What operators ask of a fakeSubject.

func (f *fakeSubject) ask(format string, args ...any) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

func (f *fakeSubject) CreateToken(lifetime time.Duration, uses int, labels ...string) (Token, error) {
	if uses == 99 {
		return Token{}, errors.New("only the host makes tokens")
	}
	f.ask("token %v %d %v", lifetime, uses, labels)
	return Token{Token: "secret", ID: "00000000000000aa", Uses: uses}, nil
}

func (f *fakeSubject) Tokens() (Tokens, error) {
	return Tokens{Tokens: []TokenInfo{{ID: "00000000000000aa", Usable: true}}}, nil
}

func (f *fakeSubject) RevokeToken(id string) (bool, error) {
	f.ask("revoke %s", id)
	return id == "00000000000000aa", nil
}

func (f *fakeSubject) Enrolled() (Enrolment, error) {
	return Enrolment{Nodes: []Enrolled{{Name: "web-1", State: stateBanned}}}, nil
}

func (f *fakeSubject) act(format string, args ...any) (NodeAction, error) {
	f.ask(format, args...)
	if args[0] == "nobody" {
		return NodeAction{}, errors.New(`no node "nobody"`)
	}
	if args[0] == "slow" {
		return NodeAction{}, context.DeadlineExceeded
	}
	return NodeAction{Node: Enrolled{UUID: "u-1", Name: "web-1"}, Changed: true, TookMS: 12}, nil
}

func (f *fakeSubject) Act(_ context.Context, action string, r NodeRequest) (NodeAction, error) {
	switch action {
	case "ban":
		return f.act("ban %s %q", r.Node, r.Reason)
	case "allow":
		return f.act("allow %s %v", r.Node, r.NewKey)
	}
	return f.act("remove %s", r.Node)
}
func (f *fakeSubject) Authorities() (Authorities, error) {
	return Authorities{Trust: "host", Roots: []Root{{Subject: "ca"}}}, nil
}
func (f *fakeSubject) RotateCA(context.Context) (Authorities, error) {
	f.ask("ca")
	return f.Authorities()
}

// A token lives a day and for a hundred nodes, unless more is asked for in words.
func TestTokenRequests(t *testing.T) {
	f := newFakeSubject()
	c, _ := serveAdmin(t, f)
	for _, tt := range []struct {
		req  TokenRequest
		want string
	}{
		{TokenRequest{}, "token 24h0m0s 100 []"},
		{TokenRequest{Lifetime: "10m", Uses: 1}, "token 10m0s 1 []"},
		{TokenRequest{Lifetime: "7d", Labels: []string{"db", "rack-1"}}, "token 168h0m0s 100 [db rack-1]"},
		{TokenRequest{Lifetime: Never, Unlimited: true}, "token 0s 0 []"},
	} {
		f.asked = nil
		token, err := c.CreateToken(t.Context(), tt.req)
		if err != nil || token.Token != "secret" || !slices.Equal(f.asked, []string{tt.want}) {
			t.Errorf("%+v: got %+v, %v; asked %q, want %q", tt.req, token, err, f.asked, tt.want)
		}
	}
	f.asked = nil
	if _, err := c.CreateToken(t.Context(), TokenRequest{Uses: 99}); err == nil || err.Error() != "only the host makes tokens" {
		t.Errorf("refusal: %v", err)
	}
	for _, bad := range []TokenRequest{{Lifetime: "x"}, {Lifetime: "-1s"}, {Lifetime: "0s"}, {Lifetime: "366d"}, {Uses: -1}, {Uses: 1, Unlimited: true},
		{Labels: []string{"two words"}}, {Labels: []string{"\x1b"}}, {Labels: slices.Repeat([]string{"a"}, 9)}} {
		if _, err := c.CreateToken(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%+v: got %v, want what is allowed", bad, err)
		}
	}
	for _, body := range []string{"{", `{"user":1}`, `{"uses":"many"}`, "{}{}", strings.Repeat(" ", adminRequest+1) + "{}"} {
		if _, err := c.do(t.Context(), http.MethodPost, "tokens", []byte(body)); err == nil {
			t.Errorf("body %.20q was accepted", body)
		}
	}
	if len(f.asked) != 0 {
		t.Errorf("bad requests made tokens: %q", f.asked)
	}
	if all, err := c.Tokens(t.Context()); err != nil || len(all.Tokens) != 1 {
		t.Errorf("tokens: %+v, %v", all, err)
	}
	if err := c.RevokeToken(t.Context(), "00000000000000aa"); err != nil {
		t.Error(err)
	}
	if err := c.RevokeToken(t.Context(), "00000000000000ab"); err == nil || !strings.Contains(err.Error(), "no token 00000000000000ab") {
		t.Errorf("an unknown token: %v", err)
	}
	if err := c.RevokeToken(t.Context(), "all"); err == nil || !strings.Contains(err.Error(), "want 16 hexadecimal digits") {
		t.Errorf("no ID: %v", err)
	}
}

func TestNodeRequests(t *testing.T) {
	f := newFakeSubject()
	c, _ := serveAdmin(t, f)
	ctx := t.Context()
	if all, err := c.Enrolled(ctx); err != nil || len(all.Nodes) != 1 || all.Nodes[0].State != stateBanned {
		t.Errorf("enrolled: %+v, %v", all, err)
	}
	for want, ask := range map[string]func() (NodeAction, error){
		`remove web-1`:      func() (NodeAction, error) { return c.RemoveNode(ctx, "web-1", time.Second) },
		`ban 3 "was taken"`: func() (NodeAction, error) { return c.BanNode(ctx, "3", "was taken", time.Second) },
		`allow web-1 true`:  func() (NodeAction, error) { return c.AllowNode(ctx, "web-1", true, time.Second) },
	} {
		f.asked = nil
		done, err := ask()
		if err != nil || !done.Changed || done.Node.Name != "web-1" || !slices.Equal(f.asked, []string{want}) {
			t.Errorf("%s: %+v, %v, asked %q", want, done, err, f.asked)
		}
	}
	if _, err := c.BanNode(ctx, "nobody", "", time.Second); err == nil || err.Error() != `no node "nobody"` {
		t.Errorf("refusal: %v", err)
	}
	if _, err := c.BanNode(ctx, "slow", "", time.Second); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("a ban that takes too long: %v", err)
	}
	f.asked = nil
	for path, body := range map[string]string{
		"nodes/ban": `{}`, "nodes/ban?timeout=1s": `{"node":"` + strings.Repeat("x", 65) + `"}`, "nodes/ban?timeout=0s": `{"node":"a"}`,
		"nodes/ban?timeout=2s": `{"node":"a","new_key":true}`, "nodes/remove": `{"node":"a","reason":"b"}`, "nodes/allow": `{"node":"a","extra":1}`,
		"nodes/ban?timeout=3s": `{"node":"a","reason":"` + strings.Repeat("x", 257) + `"}`, "ca/rotate": `{"x":1}`, "nodes/forget": `{"node":"a"}`,
	} {
		if _, err := c.do(ctx, http.MethodPost, path, []byte(body)); err == nil {
			t.Errorf("%s %.40s was accepted", path, body)
		}
	}
	if len(f.asked) != 0 {
		t.Errorf("bad requests did something: %q", f.asked)
	}
	if all, err := c.Authorities(ctx); err != nil || all.Trust != "host" || len(all.Roots) != 1 {
		t.Errorf("authorities: %+v, %v", all, err)
	}
	if _, err := c.RotateCA(ctx, time.Second); err != nil || !slices.Equal(f.asked, []string{"ca"}) {
		t.Errorf("rotate: %v, asked %q", err, f.asked)
	}
}

// closer is a buffer that an audit log may close.
type closer struct{ bytes.Buffer }

func (*closer) Close() error { return nil }

// auditLines returns the events of an audit log.
func auditLines(t *testing.T, text string) (all []audit.Event) {
	t.Helper()
	for line := range strings.Lines(text) {
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// Every request that may change something is a line with who asked, also one
// that was refused; reading is none, and no line has a secret.
func TestAdministratorsCommandsAreAudited(t *testing.T) {
	out := &closer{}
	log := audit.New(audit.Config{At: "three", Out: out, Log: zerolog.Nop()})
	c, _ := serveAudited(t, newFakeSubject(), log)
	ctx := t.Context()
	_, err := c.Status(ctx)
	for _, more := range []func() error{
		func() error { _, err := c.CreateToken(ctx, TokenRequest{}); return err },
		func() error { _, err := c.BanNode(ctx, "3", "was taken", time.Second); return err },
	} {
		err = errors.Join(err, more())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.RemoveNode(ctx, "nobody", time.Second); err == nil {
		t.Error("nobody was removed")
	}
	if _, err := c.do(ctx, http.MethodPost, "no/such/path", nil); err == nil {
		t.Error("an unknown path was served")
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	uid := uint32(os.Getuid())
	var got []audit.Event
	for _, e := range auditLines(t, out.String()) {
		if e.UID == nil || *e.UID != uid || e.PID != int32(os.Getpid()) || e.At != "three" || e.Event != audit.Command {
			t.Errorf("line %+v, want a command of user %d and process %d", e, uid, os.Getpid())
		}
		got = append(got, audit.Event{Command: e.Command, Result: e.Result, Name: e.Name, Node: e.Node, Token: e.Token, Text: e.Text})
	}
	want := []audit.Event{
		{Command: "POST /v1/tokens", Result: "ok", Token: "00000000000000aa"},
		{Command: "POST /v1/nodes/ban", Result: "ok", Name: "web-1", Node: "u-1", Text: "was taken"},
		{Command: "POST /v1/nodes/remove", Result: `no node "nobody"`, Name: "nobody"},
		{Command: "POST /v1/no/such/path", Result: "Not Found"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("wrote\n%+v, want\n%+v", got, want)
	}
	if strings.Contains(out.String(), "secret") {
		t.Errorf("the audit log has a token:\n%s", out.String())
	}
}

func TestWhatMembershipReportsIsAudited(t *testing.T) {
	got := auditEvent(membership.Audit{Event: audit.Join, Node: addr.UUID{1}, Name: "web-1", Token: trust.TokenID{2}, Text: "x"})
	want := audit.Event{Event: "join", Node: addr.UUID{1}.String(), Name: "web-1", Token: "0200000000000000", Text: "x"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := auditEvent(membership.Audit{Event: audit.CARotated}); !reflect.DeepEqual(got, audit.Event{Event: "ca-rotated"}) {
		t.Errorf("an event about no node is %+v", got)
	}
}

// A host's tokens end by default, are listed without their secrets, and no longer
// let a member in when they were revoked.
func TestTokensEndAndAreRevoked(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	host, node := testHostWith(t, c)
	client := NewClient(c.Local.AdminSocket)
	defer client.Close()
	made, err := client.CreateToken(t.Context(), TokenRequest{Uses: 3})
	if err != nil {
		t.Fatal(err)
	}
	all, err := client.Tokens(t.Context())
	if err != nil || len(all.Tokens) != 2 {
		t.Fatalf("tokens: %+v, %v, want init's and one more", all, err)
	}
	for _, k := range all.Tokens { // made in one second: their order is their IDs'
		left := DefaultTokenUses
		if k.ID == made.ID {
			left = 3
		}
		if k.Expires == nil || k.Left == nil || *k.Left != left || !k.Usable {
			t.Fatalf("token %+v: want an end, and %d uses left", k, left)
		}
		if incarnation := k.Expires.Sub(k.Created); incarnation < 23*time.Hour || incarnation > 25*time.Hour {
			t.Errorf("token %+v lives %v, want a day", k, incarnation)
		}
	}
	if text, err := json.Marshal(all); err != nil || strings.Contains(string(text), made.Token[len(made.Token)-40:]) {
		t.Errorf("the list has a secret: %v", err)
	}
	if err := client.RevokeToken(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	late := node("late")
	late.TokenFile = write(t, "revoked", made.Token)
	startFails(t, late, "revoked")

	text, err := os.ReadFile(filepath.Join(c.StateDir, auditFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), made.Token) {
		t.Error("the audit log has a token")
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(filepath.Join(c.StateDir, auditFile)); err != nil {
		t.Fatal(err)
	}
	kinds := []string{}
	lines := auditLines(t, string(text))
	if first := lines[0]; first.Event != audit.TokenCreated || first.Command != "fabricd init" || first.UID == nil || !strings.HasPrefix(first.Text, "100 nodes until ") {
		t.Errorf("the log begins with %+v, want init's token", first)
	}
	for _, e := range lines {
		kinds = append(kinds, e.Event)
	}
	for _, want := range []string{audit.Started, audit.Incarnation, audit.TokenCreated, audit.TokenRevoked, audit.Command, audit.Stopped} {
		if !slices.Contains(kinds, want) {
			t.Errorf("no line of kind %s in %q", want, kinds)
		}
	}
}

// The host writes whose incarnations begin and end, and a node its own.
func TestIncarnationsAreAudited(t *testing.T) {
	events := []membership.Event{
		{Kind: membership.EventSelf, Node: testNode(1, 1, "self")},
		{Kind: membership.EventAdded, Node: testNode(7, 2, "seven")},
		{Kind: membership.EventUpdated, Node: testNode(7, 2, "seven")},
		{Kind: membership.EventRemoved, Node: testNode(7, 2, "seven"), Reason: membership.ReasonCrashed},
		{Kind: membership.EventReset, Node: testNode(1, 1, "self"), Detail: "removed by an operator"},
	}
	for role, want := range map[Role]string{
		RoleHost: "incarnation 1.1 , incarnation 7.2 , incarnation-ended 7.2 crashed, incarnation-ended 1.1 removed by an operator, ",
		RoleNode: "incarnation 1.1 , incarnation-ended 1.1 removed by an operator, ",
	} {
		out := &closer{}
		d := &Daemon{cfg: Config{Role: role}, audit: audit.New(audit.Config{Out: out, Log: zerolog.Nop()})}
		for _, ev := range events {
			d.auditIncarnation(ev)
		}
		if err := d.audit.Close(); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, e := range auditLines(t, out.String()) {
			got += e.Event + " " + e.Incarnation + " " + e.Text + ", "
		}
		if got != want {
			t.Errorf("%s wrote %q, want %q", role, got, want)
		}
	}
}

func TestANodeThatIsNotTheHostRefusesOperators(t *testing.T) {
	_, node := testHost(t)
	c := node("one")
	startTest(t, c)
	client := NewClient(c.Local.AdminSocket)
	defer client.Close()
	ctx := t.Context()
	for what, ask := range map[string]func() error{
		"token list":   func() error { _, err := client.Tokens(ctx); return err },
		"token revoke": func() error { return client.RevokeToken(ctx, "00000000000000aa") },
		"enrolled":     func() error { _, err := client.Enrolled(ctx); return err },
		"ban":          func() error { _, err := client.BanNode(ctx, "0", "", time.Second); return err },
		"ca rotate":    func() error { _, err := client.RotateCA(ctx, time.Second); return err },
	} {
		if err := ask(); err == nil || !strings.Contains(err.Error(), "not the host") {
			t.Errorf("%s at a node: %v", what, err)
		}
	}
	if all, err := client.Authorities(ctx); err != nil || len(all.Roots) != 1 || all.Trust != "host" {
		t.Errorf("authorities: %+v, %v", all, err)
	}
}

func TestTokensAreUsableUntilTheyEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		for _, tt := range []struct {
			record trust.TokenRecord
			usable bool
			left   int // -1: any number
		}{
			{trust.TokenRecord{}, true, -1},
			{trust.TokenRecord{MaxUses: 2, Uses: 1}, true, 1},
			{trust.TokenRecord{MaxUses: 2, Uses: 2}, false, 0},
			{trust.TokenRecord{MaxUses: 2, Uses: 3}, false, 0},
			{trust.TokenRecord{Expires: now}, false, -1},
			{trust.TokenRecord{Expires: now.Add(1), MaxUses: 1, Void: true}, false, 1},
			{trust.TokenRecord{Expires: now.Add(1), MaxUses: 1}, true, 1},
		} {
			got := tokenInfo(tt.record, now)
			left := -1
			if got.Left != nil {
				left = *got.Left
			}
			if got.Usable != tt.usable || got.Void != tt.record.Void || left != tt.left {
				t.Errorf("%+v: usable %v, left %d", tt.record, got.Usable, left)
			}
		}
	})
}

func TestAuditLogsThatCannotBeOpened(t *testing.T) {
	c := testConfig(t, RoleHost, "host")
	if _, err := Init(c, ""); err != nil {
		t.Fatal(err)
	}
	c.Log.Audit = filepath.Join(c.StateDir, "none", "audit")
	startFails(t, c, "audit-log: ")
	c.Log.Audit = AuditOff
	if err := os.Remove(filepath.Join(c.StateDir, auditFile)); err != nil { // init's
		t.Fatal(err)
	}
	host := startTest(t, c)
	if host.audit != nil {
		t.Error("an audit log that is off is written")
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, auditFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file: %v", err)
	}
	if out, err := auditOutput(Config{Log: LogConfig{Audit: AuditStderr}}); err != nil || out != (standardError{}) {
		t.Errorf("stderr is %v, %v", out, err)
	}
}
