package access

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

func policy(t testing.TB, closed bool, texts ...string) *Policy {
	t.Helper()
	var rules []Rule
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	p, err := NewPolicy(rules, closed)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var (
	onHost = Caller{Incarnation: addr.Incarnation{Node: 0, Generation: 3}, Name: "head", UID: 1000}
	web    = Caller{Incarnation: addr.Incarnation{Node: 4, Generation: 1}, Name: "web-1", Labels: []string{"web", "eu"}, UID: 1000}
	here   = Caller{Incarnation: addr.Incarnation{Node: 2, Generation: 1}, Name: "db-1", Labels: []string{"db"}, UID: 1000, Local: true}
)

func TestConnectIsDecidedByTheFirstRuleThatCoversThePort(t *testing.T) {
	p := policy(t, false, "2050 from web-1", "2050-2059 from label:db host", "3000 from none", "3001 from local",
		"3002 from all", "3003 bind 7", "3004 from node:all")
	for port, want := range map[addr.Port][3]bool{ // by onHost, web, here
		2050: {false, true, false},
		2051: {true, false, true},
		2059: {true, false, true},
		2060: {true, true, true}, // the default
		3000: {},
		3001: {false, false, true},
		3002: {true, true, true},
		3003: {true, true, true}, // leaves it to the default
		3004: {},
	} {
		for i, c := range []Caller{onHost, web, here} {
			if d := p.Connect(port, c, 1000, nil); d.Allowed != want[i] {
				t.Errorf("port %d from %s: %+v, want %v", port, c.Name, d, want[i])
			}
		}
	}
	if d := p.Connect(2050, here, 1000, nil); d.By != "2050 from web-1" {
		t.Errorf("refused by %q", d.By)
	}
	if d := p.Connect(2060, here, 1000, nil); d.By != "default-access: open" {
		t.Errorf("allowed by %q", d.By)
	}
}

func TestClosedAllowsTheSameUserOnThisNodeOnly(t *testing.T) {
	p := policy(t, true, "2050 from web-1", "2051 bind 7")
	other, unknown := here, here
	other.UID, unknown.UID = 1001, UnknownUID
	for what, d := range map[string]struct {
		got  Decision
		want bool
	}{
		"same user, same node":    {p.Connect(9, here, 1000, nil), true},
		"rule without from":       {p.Connect(2051, here, 1000, nil), true},
		"same user, another node": {p.Connect(9, web, 1000, nil), false},
		"another user":            {p.Connect(9, other, 1000, nil), false},
		"unknown user":            {p.Connect(9, unknown, UnknownUID, nil), false},
		"a rule allows":           {p.Connect(2050, web, 1000, nil), true},
		"a rule decides alone":    {p.Connect(2050, here, 1000, nil), false},
	} {
		if d.got.Allowed != d.want {
			t.Errorf("%s: %+v, want %v", what, d.got, d.want)
		}
	}
}

func TestListenerOnlyTakesAway(t *testing.T) {
	list, err := ParseSubjects([]string{"web-1", "label:db"})
	if err != nil {
		t.Fatal(err)
	}
	p := policy(t, false, "2050 from host db-1")
	for c, want := range map[*Caller]bool{&onHost: false, &web: false, &here: true} {
		if d := p.Connect(2050, *c, 1000, list); d.Allowed != want {
			t.Errorf("%s: %+v, want %v", c.Name, d, want)
		}
	}
	if d := (*Policy)(nil).Connect(2050, onHost, 1000, list); d.Allowed || d.By != "listener allows: web-1 label:db" {
		t.Errorf("by the listener alone: %+v", d)
	}
}

func TestBindIsForTheUsersOfTheRule(t *testing.T) {
	p := policy(t, true, "2050 bind 1000 group:27", "2051 bind none", "2052 bind all", "2053 from all")
	for _, c := range []struct {
		port     addr.Port
		uid, gid uint32
		want     bool
	}{
		{2050, 1000, 5, true}, {2050, 5, 27, true}, {2050, 27, 1000, false}, {2050, 0, 0, false},
		{2051, 0, 0, false}, {2052, 9, 9, true}, {2053, 9, 9, true}, {2054, 9, 9, true},
	} {
		if d := p.Bind(c.port, c.uid, c.gid); d.Allowed != c.want {
			t.Errorf("port %d, user %d, group %d: %+v, want %v", c.port, c.uid, c.gid, d, c.want)
		}
	}
}

func TestWhatIsWrongWithARuleIsSaid(t *testing.T) {
	many := strings.Repeat(" web", 1)
	for i := range MaxSubjects {
		many += fmt.Sprintf(" n%d", i)
	}
	for text, want := range map[string]string{
		"":                               "want a port",
		"0 from all":                     "1 to 65535",
		"65536 from all":                 "1 to 65535",
		"02050 from all":                 "1 to 65535",
		"20-10 from all":                 "above the last",
		"2050":                           `want "from" with callers or "bind" with users`,
		"2050 from":                      "0 callers",
		"2050 from bind 7":               "0 callers",
		"2050 allow web":                 `want "from" or "bind"`,
		"2050 from web from db":          "there twice",
		"2050 from web web":              "there twice",
		"2050 from none web":             "stands alone",
		"2050 from web\x1b[31m":          "a node's name",
		"2050 from label:":               "label",
		"2050 from a,b":                  "a node's name",
		"2050 bind root":                 "a user's number",
		"2050 bind 4294967295":           "a user's number",
		"2050 bind group:x":              "a user's number",
		"2050 bind none 7":               "stands alone",
		"2050 from" + many:               "65 callers, want 1 to 64",
		"2050 from node:":                "a node's name",
		"2050 from 6":                    "not digits alone",
		"2050 from node:6":               "not digits alone",
		"2050 from " + string(rune(233)): "a node's name",
	} {
		_, err := ParseRule(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q: the error is not printable: %q", text, err)
		}
	}
}

func TestPolicyRefusesRulesThatNeverDecide(t *testing.T) {
	a, _ := ParseRule("2050-2059 from web")
	b, _ := ParseRule("2052 bind 7")
	if _, err := NewPolicy([]Rule{a, b}, false); err == nil || !strings.Contains(err.Error(), `"2052 bind 7" never decides`) {
		t.Errorf("a rule behind one that covers it: %v", err)
	}
	if _, err := NewPolicy([]Rule{b, a}, false); err != nil {
		t.Errorf("the exception first: %v", err)
	}
	var many []Rule
	for i := range MaxRules + 1 {
		r, _ := ParseRule(fmt.Sprintf("%d from all", i+1))
		many = append(many, r)
	}
	if _, err := NewPolicy(many, false); err == nil {
		t.Errorf("%d rules are taken", len(many))
	}
	if _, err := NewPolicy(many[1:], false); err != nil {
		t.Error(err)
	}
}

func TestPoliciesAreEqualIfTheyDecideAlike(t *testing.T) {
	p := policy(t, false, "2050 from web")
	for q, want := range map[*Policy]bool{
		policy(t, false, "2050  from  web"): true, policy(t, true, "2050 from web"): false,
		policy(t, false): false, nil: false,
	} {
		if p.Equal(q) != want || q.Equal(p) != want {
			t.Errorf("%v and %v: want %v", p, q, want)
		}
	}
	if !(*Policy)(nil).Equal(policy(t, false)) {
		t.Error("no policy is not equal to an open one without rules")
	}
}

func anySubject(t *rapid.T) string {
	name := rapid.StringMatching(`[A-Za-z0-9._-]{0,7}[A-Za-z._-]`).Draw(t, "name")
	return rapid.SampledFrom([]string{"all", "host", "local", "label:" + name, "node:" + name, "node:none"}).Draw(t, "subject")
}

func anyRule(t *rapid.T) Rule {
	a, b := rapid.Uint16Range(1, 40).Draw(t, "first"), rapid.Uint16Range(0, 5).Draw(t, "more")
	text := fmt.Sprintf("%d-%d", a, a+b)
	if froms := rapid.SliceOfNDistinct(rapid.Custom(anySubject), 0, 4, rapid.ID[string]).Draw(t, "from"); len(froms) > 0 {
		text += " from " + strings.Join(froms, " ")
	} else {
		text += " from none"
	}
	if rapid.Bool().Draw(t, "bind") {
		text += fmt.Sprintf(" bind %d group:%d", rapid.Uint32Range(0, 9).Draw(t, "uid"), rapid.Uint32Range(0, 9).Draw(t, "gid"))
	}
	r, err := ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A rule reads back as itself; a policy decides as its first rule that covers
// the port does alone, and a listener's list never allows more.
func TestEveryPolicyDecidesByOneRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rules []Rule
		for range rapid.IntRange(0, 5).Draw(t, "rules") {
			r := anyRule(t)
			again, err := ParseRule(r.String())
			if err != nil || again.String() != r.String() || !slices.Equal(again.from, r.from) || !slices.Equal(again.bind, r.bind) {
				t.Fatalf("%q reads back as %q, %v", r, again, err)
			}
			rules = append(rules, r)
		}
		closed := rapid.Bool().Draw(t, "closed")
		p, err := NewPolicy(rules, closed)
		if err != nil {
			return
		}
		port := addr.Port(rapid.Uint16Range(1, 50).Draw(t, "port"))
		c := Caller{Incarnation: addr.Incarnation{Node: addr.NodeID(rapid.Uint16Range(0, 2).Draw(t, "node"))},
			Name: rapid.SampledFrom([]string{"none", "a", "b"}).Draw(t, "name"), UID: rapid.Uint32Range(0, 3).Draw(t, "uid"), Local: rapid.Bool().Draw(t, "local")}
		got := p.Connect(port, c, 1, nil)
		want := !closed || c.Local && c.UID == 1
		for _, r := range rules {
			if r.covers(port) {
				want = allows(r.from, c)
				break
			}
		}
		if got.Allowed != want {
			t.Fatalf("%+v, want %v", got, want)
		}
		list, err := ParseSubjects([]string{anySubject(t)})
		if err != nil {
			t.Fatal(err)
		}
		if d := p.Connect(port, c, 1, list); d.Allowed != (want && allows(list, c)) {
			t.Fatalf("with the listener's %q: %+v", list, d)
		}
	})
}

func FuzzParseRule(f *testing.F) {
	for _, seed := range []string{"2050-2059 from web-1 label:db host bind 1000 group:27", "1 from none", "7 bind all", "2050 from node:from", " 9\tfrom\nlocal "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again.String() != r.String() {
			t.Errorf("%q is %q, which reads as %q, %v", text, r, again, err)
		}
		if strings.ContainsFunc(r.String(), func(c rune) bool { return c > '~' || c < ' ' || c == ',' }) {
			t.Errorf("%q has the text %q", text, r)
		}
	})
}

func TestWhoMayServeIsDecidedByTheFirstRuleThatCoversTheName(t *testing.T) {
	p := policy(t, true, "service:db by db-1 host", "service:web-* by label:web", "2050 from none", "service:* by label:trusted label:db")
	for name, want := range map[string][3]bool{ // by onHost, web, here
		"db":    {true, false, true},
		"db2":   {false, false, true},
		"web-a": {false, true, false},
		"web":   {false, false, true},
	} {
		for i, c := range []Caller{onHost, web, here} {
			if d := p.Serve(name, c); d.Allowed != want[i] {
				t.Errorf("%s by %s: %+v, want %v", name, c.Name, d, want[i])
			}
		}
	}
	if d := policy(t, true, "service:db by none").Serve("dc", web); !d.Allowed {
		t.Errorf("a name without a rule: %+v, want it free", d)
	}
	if d := (*Policy)(nil).Serve("db", web); !d.Allowed {
		t.Errorf("without rules: %+v", d)
	}
	if d := p.Connect(0, web, 1000, nil); d.By != "default-access: closed" || p.For(0) != d.By {
		t.Errorf("a rule of services decides about a port: %+v", d)
	}
	if r := p.OfServices(); r == nil || r.String() != "service:db by db-1 host" || policy(t, false, "2050 from none").OfServices() != nil {
		t.Errorf("the first rule of services is %v", r)
	}
}

func TestWhatIsWrongWithARuleOfServicesIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		"service: by db-1":           "want a name",
		"service:7 by db-1":          "want a name",
		"service:a*b by db-1":        "want a name",
		"service:** by db-1":         "want a name",
		"service:db":                 `want "by"`,
		"service:db from db-1":       `want "by"`,
		"service:db by":              "0 callers",
		"service:db by none db-1":    "stands alone",
		"service:db by local":        `"local" is no node`,
		"service:db by db-1 by db-2": "node:NAME",
	} {
		if _, err := ParseRule(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
	for _, pair := range [][2]string{
		{"service:* by db-1", "service:db by db-2"}, {"service:d* by db-1", "service:db* by db-2"}, {"service:db by db-1", "service:db by db-2"},
	} {
		a, _ := ParseRule(pair[0])
		b, _ := ParseRule(pair[1])
		if _, err := NewPolicy([]Rule{a, b}, false); err == nil || !strings.Contains(err.Error(), "never decides") {
			t.Errorf("%q behind %q: %v", b, a, err)
		}
		if _, err := NewPolicy([]Rule{b, a}, false); err != nil && pair[0] != "service:db by db-1" {
			t.Errorf("the exception first: %v", err)
		}
	}
}
