package daemon

import (
	"testing"
)

// TestAHostKeepsTheNameThatInitGaveIt starts a host with and without a name.
func TestAHostKeepsTheNameThatInitGaveIt(t *testing.T) {
	c := testConfig(t, RoleHost, "rack-1")
	if _, err := Init(c, c.StateDir+".token"); err != nil {
		t.Fatal(err)
	}
	load := func(more map[string]string) Config {
		t.Helper()
		flags := map[string]string{"role": "host", "state-dir": c.StateDir}
		for k, v := range more {
			flags[k] = v
		}
		got, err := Load("", nil, flags)
		if err != nil {
			t.Fatal(err)
		}
		got.Network, got.Local, got.Detection = c.Network, c.Local, c.Detection
		return got
	}
	for _, tt := range []struct{ given, want string }{
		{"", "rack-1"},
		{"rack-2", "rack-2"},
		{machineName(), machineName()}, // it was said, whatever it is
		{"", "rack-1"},
	} {
		more := map[string]string{}
		if tt.given != "" {
			more["name"] = tt.given
		}
		d := startTest(t, load(more))
		self := d.Nodes().Nodes[0]
		if got := d.Status().Name; got != tt.want || self.Name != tt.want {
			t.Errorf("run with the name %q: it is %q, in the table %q, want %q", tt.given, got, self.Name, tt.want)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
