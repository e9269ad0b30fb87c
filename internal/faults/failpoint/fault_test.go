package failpoint

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

const second = Duration(time.Second)

var good = []Fault{
	{Kind: Crash},
	{Kind: Crash, Step: "host.grant_persisted", Nth: 2, Within: second},
	{Kind: Freeze, For: second},
	{Kind: Freeze, For: second, Step: "rma.write_copied", Times: -1},
	{Kind: Delay, Step: "rma.write_copied", For: second, Probability: 0.5, Seed: 7, Times: 10},
	{Kind: Error, Step: "conn.connect_sent"},
	{Kind: Clock, Offset: -86400 * second, For: second},
	{Kind: Disk, Disk: DiskFull, For: second},
	{Kind: Disk, Disk: DiskSlow, Delay: second, For: second},
	{Kind: Descriptors, For: second},
	{Kind: Descriptors, Free: 4, For: second},
	{Kind: SlowReceiver, Delay: second, For: second, Port: 2050},
}

func TestGoodFaultsPassAndSurviveJSON(t *testing.T) {
	for _, f := range good {
		if err := f.Check(); err != nil {
			t.Errorf("%v: %v", f, err)
		}
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(b); err != nil || got != f {
			t.Errorf("%s comes back as %v: %v", b, got, err)
		}
	}
}

func TestBadFaultsAreRefusedInOneLine(t *testing.T) {
	for _, c := range []struct {
		f     Fault
		field string
		says  string
	}{
		{Fault{}, "kind", "crash, freeze, delay, error, clock, disk, descriptors or slow-receiver"},
		{Fault{Kind: "explode"}, "kind", "want crash"},
		{Fault{Kind: Crash, Step: "no.such"}, "step", "fabricd faults steps"},
		{Fault{Kind: Crash, For: second}, "for", "does not take it"},
		{Fault{Kind: Crash, Nth: 2}, "nth", "without a step"},
		{Fault{Kind: Crash, Step: "conn.close_sent", Times: 2}, "times", "crashes once"},
		{Fault{Kind: Freeze}, "for", "needs it"},
		{Fault{Kind: Freeze, For: Duration(time.Hour)}, "for", "from 1ms to 10m0s"},
		{Fault{Kind: Delay, For: second}, "step", "needs a step"},
		{Fault{Kind: Delay, Step: "conn.close_sent", For: -1}, "for", "from 1ms"},
		{Fault{Kind: Error, Step: "conn.close_sent"}, "step", "cannot fail"},
		{Fault{Kind: Error, Step: "conn.connect_sent", Probability: 1.5}, "probability", "up to 1"},
		{Fault{Kind: Error, Step: "conn.connect_sent", Nth: -1}, "nth", "from 1"},
		{Fault{Kind: Error, Step: "conn.connect_sent", Times: -2}, "times", "-1 for always"},
		{Fault{Kind: Clock, For: second}, "offset", "needs it"},
		{Fault{Kind: Clock, For: second, Offset: Duration(MaxOffset + 1)}, "offset", "not 0"},
		{Fault{Kind: Disk, For: second, Disk: "wet"}, "disk", "full, read-only, sync or slow"},
		{Fault{Kind: Disk, For: second, Disk: DiskSlow}, "delay", "needs it"},
		{Fault{Kind: Disk, For: second, Disk: DiskFull, Delay: second}, "delay", "only a slow disk"},
		{Fault{Kind: Disk, Step: "conn.close_sent", For: second, Disk: DiskFull}, "step", "does not take it"},
		{Fault{Kind: Descriptors, For: second, Free: -1}, "free", "from 0"},
		{Fault{Kind: SlowReceiver, For: second, Delay: Duration(time.Hour)}, "delay", "to 1m0s"},
		{Fault{Kind: SlowReceiver, For: Duration(25 * time.Hour), Delay: second}, "for", "to 24h"},
	} {
		err := c.f.Check()
		var field *FieldError
		if !errors.As(err, &field) || field.Field != c.field || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want one line about %s with %q", c.f, err, c.field, c.says)
		}
	}
}

func TestParseIsStrict(t *testing.T) {
	for text, says := range map[string]string{
		``:                                     "EOF",
		`{"kind":"crash","force":true}`:        "unknown field",
		`{"kind":"crash"} {}`:                  "something follows",
		`{"kind":"freeze","for":5}`:            "cannot unmarshal",
		`{"kind":"freeze","for":"soon"}`:       "want a duration such as",
		`{"kind":"crash","kind":"","nth":1e9}`: "cannot unmarshal",
		`[]`:                                   "cannot unmarshal",
		`{"kind":"crash","step":"` + strings.Repeat("x", MaxFault) + `"}`: "at most 4096",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60s: %v, want %q", text, err, says)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, x := range good {
		b, err := json.Marshal(x)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"kind":"clock","offset":"9999999h","for":"1s"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := Parse(b)
		if err != nil {
			if x != (Fault{}) && !errors.As(err, new(*FieldError)) {
				t.Errorf("an error and %v", x)
			}
			return
		}
		again, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		if y, err := Parse(again); err != nil || y != x {
			t.Errorf("%s comes back as %v: %v", again, y, err)
		}
		n := New(nil)
		defer n.Close()
		if id, err := n.Add(x); err == nil && x.Kind != Crash && x.Kind != Freeze {
			if _, err := n.Clear(id); err != nil {
				t.Error(err)
			}
		}
	})
}
