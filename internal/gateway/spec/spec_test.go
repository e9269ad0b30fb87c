package spec

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		kind Kind
		line string
		want Gateway
	}{
		{Expose, "db=localhost:5432", Gateway{Kind: Expose, Listen: "db", To: "localhost:5432", Max: DefaultMax}},
		{Expose, "2050=5432", Gateway{Kind: Expose, Listen: "2050", To: "localhost:5432", Max: DefaultMax}},
		{Expose, "db=unix:/run/db.sock idle 10m max 7 proxy-protocol from web-1 label:app", Gateway{Kind: Expose, Listen: "db", To: "/run/db.sock",
			Idle: 10 * time.Minute, Max: 7, ProxyProtocol: true, From: []string{"web-1", "label:app"}}},
		{Expose, "db=[::1]:5432", Gateway{Kind: Expose, Listen: "db", To: "[::1]:5432", Max: DefaultMax}},
		{Forward, "15432=db", Gateway{Kind: Forward, Listen: "127.0.0.1:15432", To: "db", Max: DefaultMax, Wait: DefaultWait}},
		{Forward, ":15432=db@web-1 wait 0s", Gateway{Kind: Forward, Listen: ":15432", To: "db@web-1", Max: DefaultMax}},
		{Forward, "/run/f.sock=3:2050", Gateway{Kind: Forward, Listen: "/run/f.sock", To: "3:2050", Max: DefaultMax, Wait: DefaultWait}},
		{SOCKS, "1080", Gateway{Kind: SOCKS, Listen: "127.0.0.1:1080", Max: DefaultMax, Wait: DefaultWait}},
		{HTTPProxy, "/tmp/x.sock", Gateway{Kind: HTTPProxy, Listen: "/tmp/x.sock", Max: DefaultMax, Wait: DefaultWait}},
		{HTTPProxy, "[::1]:0 idle 1s", Gateway{Kind: HTTPProxy, Listen: "[::1]:0", Max: DefaultMax, Wait: DefaultWait, Idle: time.Second}},
	} {
		got, err := Parse(c.kind, c.line)
		if err != nil || key(got) != key(c.want) || got.Wait != c.want.Wait || got.Max != c.want.Max {
			t.Errorf("%s %q: %+v, %v; want %+v", c.kind, c.line, got, err, c.want)
		}
	}
}

func key(g Gateway) string { return string(g.Kind) + " " + g.String() }

func TestWhatIsWrongWithALineIsSaid(t *testing.T) {
	for _, c := range []struct {
		kind       Kind
		line, want string
	}{
		{Expose, "", "want NAME=TARGET"},
		{Expose, "db", "want NAME=TARGET"},
		{Expose, "käthe=localhost:1", "name: "},
		{Expose, strings.Repeat("x", 64) + "=localhost:1", "up to 63"},
		{Expose, "0=localhost:1", "a port from 1 to 65535"},
		{Expose, "db=localhost", "target: "},
		{Expose, "db=localhost:0", "a port from 1 to 65535"},
		{Expose, "db=localhost:http", "a port from 1 to 65535"},
		{Expose, "db=:5432", "a host name before the port"},
		{Expose, "db=relative/path", "target: "},
		{Expose, "db=/" + strings.Repeat("x", 107), "at most 107 bytes"},
		{Expose, "db=localhost:1 wait 1s", "want idle DURATION"},
		{Expose, "db=localhost:1 idle", "want a value behind it"},
		{Expose, "db=localhost:1 idle 1ms", "want a duration from 1s"},
		{Expose, "db=localhost:1 max 0", "want a number from 1 to 16384"},
		{Expose, "db=localhost:1 from", "want callers behind it"},
		{Expose, "db=localhost:1 from a b c!", "from: "},
		{Forward, "localhost=db", "listen: "},
		{Forward, "localhost:1=d b", "want idle DURATION, max NUMBER or wait DURATION"},
		{Forward, "localhost:1=d@@b", "parse address"},
		{Forward, "localhost:1=", "parse address"},
		{Forward, "localhost:1=db proxy-protocol", "want idle DURATION"},
		{SOCKS, "x", "listen: "},
		{HTTPProxy, "99999", "listen: \"99999\": want a port from 0 to 65535"},
		{Expose, "db=0", "target: \"0\": want a port from 1 to 65535"},
		{SOCKS, strings.Repeat("x", maxTextSize+1), "want at most 4096"},
	} {
		_, err := Parse(c.kind, c.line)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
			t.Errorf("%s %.100q: %v; want %q", c.kind, c.line, err, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		lines string // with the kind first, separated by commas
		want  string
	}{
		{"expose db=localhost:1,expose web=localhost:1,forward 15432=db@web-2", ""},
		{"expose db=localhost:1,expose db=localhost:2", "expose: db is taken on this node: by expose db=localhost:1"},
		{"forward 1=a,socks 1", "socks: 127.0.0.1:1 is taken"},
		{strings.TrimSuffix(strings.Repeat("expose 2050=localhost:1,", MaxGateways+1), ","), "257 gateways, want at most 256"},
		{exposes(attach.MaxServices), ""},
		{exposes(attach.MaxServices + 1), "expose: 65 names, want at most 64"},
		{"forward localhost:0=a,forward localhost:0=b", ""},
		{"expose db=localhost:1,forward 1=db", "db=localhost:1: its connections would come back to it"},
		{"expose db=localhost:1,forward :1=db@web-1", "would come back"},
		{"expose db=[::1]:1,forward 127.0.0.1:1=db@7", "would come back"},
		{"expose db=/s,forward /s=db", "would come back"},
		{"expose db=localhost:1,forward 1=db@web-2", ""},
		{"expose 2050=localhost:1,forward 1=8:2050", ""},
		{"expose 2050=localhost:1,forward 1=7:2050", "would come back"},
		{"expose db=10.0.0.1:1,forward 1=db", ""},
		{"expose db=127.0.0.9:1,forward :1=db", "would come back"},
		{"expose a=localhost:1,forward 1=b,expose b=localhost:2,forward 2=a", "would come back"},
		{"expose a=localhost:1,forward 1=b,expose b=localhost:2,forward 2=b", "would come back"},
		{"expose a=localhost:1,forward 1=b,expose b=localhost:2,forward 2=c", ""},
	} {
		var all []Gateway
		for _, text := range strings.Split(c.lines, ",") {
			kind, line, _ := strings.Cut(text, " ")
			g, err := Parse(Kind(kind), line)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
		}
		kind, err := Check(all, "web-1", "7")
		if err != nil {
			err = fmt.Errorf("%s: %w", kind, err)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.lines, err, c.want)
		}
	}
}

// exposes are so many names, as lines of TestCheck.
func exposes(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("expose s%d=localhost:1", i))
	}
	return strings.Join(all, ",")
}

// FuzzParse holds a line to be one that is written as it is read, in one line of a list.
func FuzzParse(f *testing.F) {
	for i, line := range []string{"db=localhost:5432 idle 10m max 7 proxy-protocol from web-1 label:app", "15432=db@web-1 wait 30s", "1080", "/s", "/s=db", "a=/s"} {
		f.Add(byte(i), line)
	}
	f.Fuzz(func(t *testing.T, kind byte, line string) {
		k := Kinds()[int(kind)%len(Kinds())]
		g, err := Parse(k, line)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: more than one line: %v", line, err)
			}
			return
		}
		again, err := Parse(k, g.String())
		if err != nil || key(again) != key(g) {
			t.Errorf("%q is written %q, and that is read as %+v, %v", line, g, again, err)
		}
		if strings.ContainsAny(g.String(), ",\n") {
			t.Errorf("%q is written %q", line, g)
		}
	})
}
