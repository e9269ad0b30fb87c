package faults

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = Duration(time.Millisecond)

func TestDecodeReadsWhatPeopleWrite(t *testing.T) {
	tests := []struct {
		text string
		want []Rule
	}{
		{`{"plane":"link","from":1,"to":2,"drop":"20%"}`, []Rule{{On: Link, From: Nodes{1}, To: Nodes{2}, Drop: .2}}},
		{`[{"plane":"gossip","from":"any","to":"1,2","drop":0.5,"delay":"20ms","jitter":"10ms","for":"10s","name":"x"}]`,
			[]Rule{{On: Gossip, To: Nodes{1, 2}, Drop: .5, Delay: 20 * ms, Jitter: 10 * ms, For: 10000 * ms, Name: "x"}}},
		{`{"rules":[{"plane":"all","cut":true,"from":[0,1],"to":[2]},{"plane":"rma","rate":"8Mbit/s","buffer":"64KiB"}]}`,
			[]Rule{{On: All, Cut: true, From: Nodes{0, 1}, To: Nodes{2}}, {On: RMA, Rate: 1e6, Buffer: 64 << 10}}},
		{`{"plane":"control","half_open":true,"up":"200ms","down":"1s","at":"from","seed":7}`,
			[]Rule{{On: Control, HalfOpen: true, Up: 200 * ms, Down: 1000 * ms, At: AtFrom, Seed: 7}}},
	}
	for _, tt := range tests {
		got, err := Decode([]byte(tt.text))
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", tt.text, got, err, tt.want)
		}
	}
}

// TestEveryRefusalNamesTheFault holds every refusal to one line that names the field and the
// allowed values.
func TestEveryRefusalNamesTheFault(t *testing.T) {
	tests := []struct{ text, want string }{
		{``, "nothing: want a JSON object"},
		{`[]`, "0 of them: want 1 to 256"},
		{`{`, "not JSON"},
		{`{"plane":"link","cut":true} x`, "nothing after"},
		{`{"plane":"link","cut":true,"drap":1}`, "drap"},
		{`{"plane":"link","cut":"yes"}`, "cut"},
		{`{"plane":"link","drop":"120%"}`, "drop"},
		{`{"plane":"link","drop":"many"}`, "drop"},
		{`{"plane":"link","drop":-0.1}`, "0% to 100%"},
		{`{"plane":"link","drop":"NaN"}`, "want a probability"},
		{`{"plane":"link","delay":20}`, "in quotes"},
		{`{"plane":"link","delay":"-2s"}`, "want a duration"},
		{`{"plane":"link","delay":"2h"}`, "up to 1m0s"},
		{`{"plane":"link","cut":true,"for":"48h"}`, "up to 24h"},
		{`{"plane":"data","cut":true}`, "want gossip, control, messages, rma, link"},
		{`{"cut":true}`, "plane"},
		{`{"plane":"link"}`, "does nothing"},
		{`{"plane":"link","from":70000,"cut":true}`, "from"},
		{`{"plane":"link","from":[65535],"cut":true}`, "0 to 65519"},
		{`{"plane":"link","from":[1,1],"cut":true}`, "twice"},
		{`{"plane":"link","from":1,"to":1,"cut":true}`, "no link with itself"},
		{`{"plane":"messages","drop":"5%"}`, "reliable and in order"},
		{`{"plane":"rma","corrupt":"5%"}`, "use the plane link"},
		{`{"plane":"rma","mtu":500}`, "use the plane link"},
		{`{"plane":"control","duplicate":"5%"}`, "TCP"},
		{`{"plane":"link","hold":true}`, "must be let go"},
		{`{"plane":"link","cut":true,"up":"1s"}`, "both or none"},
		{`{"plane":"link","cut":true,"up":"1us","down":"1s"}`, "at least 1ms"},
		{`{"plane":"link","shape":"normal","cut":true}`, "without jitter"},
		{`{"plane":"link","buffer":5,"cut":true}`, "without rate"},
		{`{"plane":"link","rate":5}`, "1000 to"},
		{`{"plane":"link","mtu":5}`, "64 to 65535"},
		{`{"plane":"link","cut":true,"at":"middle"}`, "from, to"},
		{`{"plane":"link","cut":true,"id":3}`, "chosen by the node"},
		{`{"plane":"link","cut":true,"name":"a\nb"}`, "printable"},
		{`[{"plane":"link","cut":true},{"plane":"link"}]`, "rule 2"},
	}
	for _, tt := range tests {
		got, err := Decode([]byte(tt.text))
		if err == nil {
			t.Errorf("%s: accepted as %+v", tt.text, got)
			continue
		}
		if s := err.Error(); !strings.Contains(s, tt.want) || strings.Contains(s, "\n") || len(s) > 400 {
			t.Errorf("%s:\n got %q\nwant one line with %q", tt.text, s, tt.want)
		}
	}
	if _, err := Decode(make([]byte, MaxEncoded+1)); err == nil {
		t.Error("an encoding beyond the limit is accepted")
	}
	if err := (&Rule{On: Messages, Cut: true, From: make(Nodes, MaxNodes+1)}).Check(); err == nil {
		t.Error("too many nodes are accepted")
	}
}

func TestPartitionsExpand(t *testing.T) {
	groups := []Nodes{{0, 1}, {2}, {3}}
	type way struct{ from, to addr.NodeID }
	all := []addr.NodeID{0, 1, 2, 3}
	tests := []struct {
		d   Direction
		cut []way
	}{
		{Symmetric, []way{{0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 0}, {2, 1}, {2, 3}, {3, 0}, {3, 1}, {3, 2}}},
		{Asymmetric, []way{{0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}},
		{Partial, []way{{0, 2}, {1, 2}, {2, 0}, {2, 1}, {2, 3}, {3, 2}}},
	}
	for _, tt := range tests {
		rules, err := Partition(groups, tt.d, Rule{Name: "split", For: 1000 * ms})
		if err != nil {
			t.Fatal(err)
		}
		var got []way
		for _, from := range all {
			for _, to := range all {
				w := Way{From: from, To: to, On: Gossip}
				if from != to && slices.ContainsFunc(rules, func(r Rule) bool { return r.Cut && r.Name == "split" && r.For == 1000*ms && r.Covers(w) }) {
					got = append(got, way{from, to})
				}
			}
		}
		if !slices.Equal(got, tt.cut) {
			t.Errorf("%s: cuts %v, want %v", tt.d, got, tt.cut)
		}
	}
	lossy, err := Partition([]Nodes{{0}, {1}}, Symmetric, Rule{On: Link, Drop: .3})
	if err != nil || lossy[0].Cut || lossy[0].Drop != .3 || lossy[0].On != Link {
		t.Errorf("a partition with an effect of its own: %+v, %v", lossy, err)
	}
	for _, bad := range []string{"", "0", "0/", "0,1/1", "0/x", "/", "0//1", "any/1"} {
		if g, err := ParseGroups(bad); err == nil {
			t.Errorf("groups %q: accepted as %v", bad, g)
		}
	}
	if _, err := Partition(groups, "sideways", Rule{}); err == nil {
		t.Error("an unknown direction is accepted")
	}
	if _, err := Partition(groups, Symmetric, Rule{On: RMA, Drop: .1}); err == nil {
		t.Error("a rule that a plane cannot have is accepted")
	}
}

// TestActsAgreesWithItsNextChange steps from change to change: between two of
// them the answer is always the same, and it differs after each.
func TestActsAgreesWithItsNextChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := func(name string, least int64) Duration {
			return Duration(rapid.Int64Range(least, int64(10*time.Second)).Draw(t, name))
		}
		r := Rule{On: Link, Cut: true, After: d("after", 0), For: d("for", 0)}
		if rapid.Bool().Draw(t, "flap") {
			r.Up, r.Down = d("up", int64(MinFlap)), d("down", int64(MinFlap))
		}
		at := time.Duration(0)
		for range 20 {
			acts, next := r.Acts(at)
			if next == 0 {
				if later, _ := r.Acts(at + time.Hour); later != acts {
					t.Fatalf("at %v acts=%v for ever, but not an hour later", at, acts)
				}
				if r.Over(at) == (r.For == 0) {
					t.Fatalf("Over(%v) is %v with for=%v", at, r.Over(at), r.For)
				}
				return
			}
			if next <= at {
				t.Fatalf("at %v the next change is at %v", at, next)
			}
			between := at + time.Duration(rapid.Int64Range(0, int64(next-at)-1).Draw(t, "between"))
			if again, _ := r.Acts(between); again != acts {
				t.Fatalf("acts=%v at %v and %v at %v, before the change at %v", acts, at, again, between, next)
			}
			at = next
		}
	})
}

// genRule draws a rule that Check accepts.
func genRule(t *rapid.T) Rule {
	prob := rapid.Custom(func(t *rapid.T) Probability { return Probability(rapid.IntRange(0, 100).Draw(t, "p")) / 100 })
	nodes := rapid.SliceOfNDistinct(rapid.Uint16Range(0, 9), 0, 3, rapid.ID[uint16])
	ids := func(label string) (n Nodes) {
		for _, id := range nodes.Draw(t, label) {
			n = append(n, addr.NodeID(id))
		}
		return n
	}
	dur := func(label string) Duration {
		return Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, label))
	}
	r := Rule{
		On: rapid.SampledFrom(Planes).Draw(t, "on"), From: ids("from"), To: ids("to"),
		At:    rapid.SampledFrom([]End{AtBoth, AtFrom, AtTo}).Draw(t, "at"),
		Delay: dur("delay"), Jitter: dur("jitter"), For: dur("for"), After: dur("after"),
		Cut: rapid.Bool().Draw(t, "cut"), Reset: rapid.Bool().Draw(t, "reset"),
		Drop: prob.Draw(t, "drop"), Duplicate: prob.Draw(t, "duplicate"), Reorder: prob.Draw(t, "reorder"), Corrupt: prob.Draw(t, "corrupt"),
		Rate: Bytes(rapid.SampledFrom([]int64{0, MinRate, 1e6, 3 << 20}).Draw(t, "rate")),
		MTU:  rapid.SampledFrom([]int{0, MinMTU, 1200}).Draw(t, "mtu"),
		Seed: rapid.Uint64().Draw(t, "seed"), Name: rapid.StringMatching(`[a-z ]{0,9}`).Draw(t, "name"),
	}
	if r.Jitter > 0 {
		r.Shape = rapid.SampledFrom([]Shape{"", Uniform, Normal, Exponential}).Draw(t, "shape")
	}
	if r.Check() != nil { // not allowed on this plane
		r.Drop, r.Duplicate, r.Reorder, r.Corrupt, r.MTU = 0, 0, 0, 0, 0
	}
	if r.Check() != nil {
		r.Cut, r.From = true, nil
	}
	if err := r.Check(); err != nil {
		t.Fatalf("generated %+v: %v", r, err)
	}
	return r
}

func TestJSONKeepsEveryRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := genRule(t)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(text)
		if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], r) {
			t.Fatalf("%s:\n got %+v, %v\nwant %+v", text, got, err, r)
		}
		if s := r.String(); s == "" || strings.Contains(s, "\n") {
			t.Fatalf("described as %q", s)
		}
	})
}

// FuzzDecode wants no panic, no rule that Check refuses, and the same rules from the encoded
// result.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"plane":"link","from":1,"to":[2,3],"drop":"20%","delay":"20ms","jitter":"10ms","shape":"normal","for":"10s"}`))
	f.Add([]byte(`{"rules":[{"plane":"all","cut":true,"up":"1s","down":"2s"},{"plane":"rma","rate":"8Mbit","buffer":"1MiB","seed":3}]}`))
	f.Add([]byte(`[{"plane":"gossip","udp_blocked":true,"mtu":1200,"corrupt":0.01,"reorder":1e-3,"at":"to"}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		rules, err := Decode(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 2000 {
				t.Fatalf("not one short line: %q", err)
			}
			return
		}
		for _, r := range rules {
			if err := r.Check(); err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		again, err := json.Marshal(rules)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > MaxEncoded {
			return
		}
		if got, err := Decode(again); err != nil || !reflect.DeepEqual(normal(got), normal(rules)) {
			t.Fatalf("%s\n got %+v, %v\nwant %+v", again, got, err, rules)
		}
	})
}

// normal makes an empty list of nodes a nil one: both are any node.
func normal(rules []Rule) []Rule {
	for i := range rules {
		if len(rules[i].From) == 0 {
			rules[i].From = nil
		}
		if len(rules[i].To) == 0 {
			rules[i].To = nil
		}
	}
	return rules
}

func TestFieldErrorIsFound(t *testing.T) {
	_, err := Decode([]byte(`{"plane":"rma","drop":1}`))
	if e, ok := errors.AsType[*FieldError](err); !ok || e.Field != "drop" {
		t.Errorf("got %v", err)
	}
}
