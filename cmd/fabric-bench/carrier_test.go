package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// Rows say what links had; without one the setting, and without that what fabricd
// prefers.
func TestACarrierIsWhatLinksWereSeenToHave(t *testing.T) {
	links := func(providers ...string) (all []linkInfo) {
		for i, p := range providers {
			all = append(all, linkInfo{Node: fabric.NodeID(i), Provider: p})
		}
		return all
	}
	for _, tt := range []struct {
		name, setting string
		looks         [][]linkInfo
		want          string
	}{
		{"nothing seen or set", "", nil, "quic"},
		{"set, and no link", "tcp,quic", [][]linkInfo{nil}, "tcp,quic"},
		{"set, and seen otherwise", "tcp,quic", [][]linkInfo{links("", "quic")}, "quic"},
		{"several looks", "auto", [][]linkInfo{links("", "tcp"), links("", "quic", "tcp")}, "quic+tcp"},
		{"its own link", "", [][]linkInfo{links("mem", "tcp")}, "tcp"},
	} {
		c := carrier{setting: tt.setting}
		for _, seen := range tt.looks {
			c.see(seen, 0)
		}
		var r Row
		if r.carriedBy(c); r.Provider != tt.want || r.Security != "tls1.3" {
			t.Errorf("%s: %s with %s, want %s", tt.name, r.Provider, r.Security, tt.want)
		}
	}
}

func TestDaemonsGetTheirProviders(t *testing.T) {
	o := clusterOptions{detection: "fast"}
	if got := o.daemonFlags(); !slices.Equal(got, []string{"--detection", "fast"}) {
		t.Errorf("as fabricd has it: %q", got)
	}
	o.providers = "tcp,quic"
	if got := o.daemonFlags(); !slices.Equal(got, []string{"--detection", "fast", "--providers", "tcp,quic"}) {
		t.Errorf("with --providers: %q", got)
	}
	temporaries(t)
	code, _, errs := runBench(t, "run", "idle", "--fabricd", buildFabricd(t), "--providers", "udp")
	if code != exitFail || !strings.Contains(errs, `providers: "udp"`) {
		t.Errorf("a provider that fabricd does not know: exit code %d, %s", code, errs)
	}
}

// carriedAll fails unless all rows say the same carrier.
func carriedAll(t *testing.T, d *Document, want string) {
	t.Helper()
	for _, r := range d.Results {
		if !isAnchorName(r.Provider) && (r.Provider != want || r.Security != "tls1.3") {
			t.Errorf("%s is over %s with %s, want %s", r.Test, r.Provider, r.Security, want)
		}
	}
}
