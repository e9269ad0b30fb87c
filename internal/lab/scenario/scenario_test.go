package scenario_test

import (
	"bytes"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

const full = `version: 1
name: all-of-it
about: "every key: once"
rows: [F1, B12, S3, I5, P21]
on: [netns, compose]
cluster: {nodes: 6, detection: fast, late: [5], certificates: 90s}
select:
  victim: {any: 1, not: [0]}
  pair: {any: 2, of: [1, 2, 3]}
  each: {any: 1, of: nodes, fresh: true}
workload:
  pairs: [[1, 2], [3, 4]]
  messages: {size: 64..4096, rate: 200}
  rma: {size: 8..64KiB, rate: 100, window: 1MiB, reads: 25%, fence: 10, signal: 20}
  connects: 5
  windows: 3
  waiters: true
duration: 1m30s
timeline:
  - {at: 3s..4s, node: {id: $victim, do: kill, for: 1s..2s}}
  - at: 5s
    node:
      id: [4, $victim]
      do: stop
      for: 200ms
  - {at: 5s, link: {from: 1, to: 2, both: true, plane: link, drop: 20%, duplicate: 1%, reorder: 0.5%, corrupt: 2%, delay: 20ms, jitter: 10ms, shape: normal, rate: 8Mbit/s, buffer: 64KiB, mtu: 1280, for: 5s}}
  - {at: 5s, link: {from: $each, to: others, cut: true, up: 200ms, down: 300ms, for: 5s}}
  - {at: 5s, link: {from: host, to: nodes, half_open: true, reset: true, plane: all, for: 5s}}
  - {at: 5s, link: {from: 1, to: 2, hold: true, for: 5s}}
  - {at: 5s, link: {from: 1, to: 2, udp_blocked: true, for: 5s}}
  - {at: 10s, partition: {groups: [[0, 1, 2], others], way: asymmetric, for: 10s}}
  - {at: 10s, app: {node: 2, do: slow, rate: 1, for: 3s}}
  - {every: 1s..2s, from: 20s, until: 29s, app: {node: 3, do: kill, for: 100ms}}
  - {at: 30s, fault: {node: $each, kind: crash, step: rma.write_copied, nth: 3, times: 1, probability: 50%, within: 10s, restart: 1s}}
  - {at: 30s, fault: {node: 2, kind: clock, offset: -1h, for: 3s}}
  - {at: 30s, fault: {node: 2, kind: disk, disk: slow, delay: 20ms, for: 3s}}
  - {at: 30s, fault: {node: 2, kind: descriptors, free: 3, for: 3s}}
  - {at: 30s, fault: {node: 2, kind: slow-receiver, delay: 1s, for: 3s}}
  - {at: 40s, cpu: {node: all, share: 20%, hogs: 4, for: 3s}}
  - {at: 50s, rotate: {what: keys}}
  - {at: 60s, node: {id: 5, do: start}}
expect:
  - removed: {node: $victim, at: [0], times: 1, within: 1s, reason: crashed}
  - added: {node: $victim, at: others, times: 1, within: 5s, after: start}
  - errors: {to: $victim, from: 0, within: 1s, status: [ECONNRESET, ENODEV]}
  - unharmed: {nodes: others}
  - removals: {min: 1, max: 5}
  - mesh: {nodes: all, within: 5s, after: last}
  - connects: {among: all, within: 5s, after: begin}
  - traffic: {among: others, stall: 250ms, least: 50%}
  - latency: {among: others, p99: 250ms, times: 5}
  - exits: {node: 2, within: 2s, code: 3}
figures: [time_to_error, time_to_removed, throughput]
`

func mustDecode(t testing.TB, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Decode("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDecodeAndEncodeAgree(t *testing.T) {
	s := mustDecode(t, full)
	text := scenario.Encode(s)
	again, err := scenario.Decode("g.yaml", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if !reflect.DeepEqual(again, s) {
		t.Errorf("came back different:\n%s\n%s", text, scenario.Encode(again))
	}
	if s.Workload.RMA.Size != (scenario.SizeRange{From: 8, To: 64 << 10}) || s.Timeline[1].Node.ID.String() != "[4, $victim]" ||
		s.Timeline[0].At.From.Time().Seconds() != 3 || s.Timeline[2].Link.Rate != 1e6 || len(s.Expect) != 10 {
		t.Errorf("decoded something else: %s", text)
	}
}

// TestANameGoesWhereverAnIndexGoes writes the same scenario with numbers and with names,
// which the file gives behind their uses.
func TestANameGoesWhereverAnIndexGoes(t *testing.T) {
	const text = `
version: 1
name: x
on: [sim]
select: {v: {any: 1, of: [1, 2], not: 1}}
workload: {pairs: [[0, 1], [2, 3]]}
duration: 10s
timeline:
  - {at: 1s, link: {from: 1, to: [0, 2], cut: true, for: 1s}}
  - {at: 2s, partition: {groups: [[1, 3], others], for: 1s}}
  - {at: 3s, node: {id: 2, do: kill}}
  - {at: 4s, app: {node: [1, 3], do: close}}
expect:
  - removed: {node: 2, at: [0, 3]}
cluster: {nodes: 4, names: [front, db, web-1], late: 3}
`
	named := regexp.MustCompile(`[\[ ][0-3][],}]`).ReplaceAllStringFunc(text, func(s string) string {
		return s[:1] + [...]string{"front", "db", "web-1", "n3"}[s[1]-'0'] + s[2:]
	})
	named = strings.Replace(strings.Replace(named, "any: db", "any: 1", 1), "late: 3", "late: n3", 1)
	s, want := mustDecode(t, named), mustDecode(t, text)
	if !slices.Equal(s.Late(), []int{3}) || !reflect.DeepEqual(s.Workload, want.Workload) {
		t.Errorf("late %v, workload %+v, want %v, %+v", s.Late(), s.Workload, want.Late(), want.Workload)
	}
	got, numbered := s.Resolve(1), want.Resolve(1)
	if !reflect.DeepEqual(got.Actions, numbered.Actions) || !reflect.DeepEqual(got.Drawn, numbered.Drawn) {
		t.Errorf("got %+v, want %+v", got.Actions, numbered.Actions)
	}
	if at := got.NodesIn(s.Expect[0].Removed.At); !slices.Equal(at, []int{0, 3}) {
		t.Errorf("observers %v, want 0 and 3", at)
	}
	if line := scenario.Line(&s.Expect[0]); line != "{removed: {node: web-1, at: [front, n3]}}" {
		t.Errorf("reports have the expectation as %s, want the names of the file", line)
	}
	if again := mustDecode(t, string(scenario.Encode(s))); !reflect.DeepEqual(again, s) {
		t.Errorf("came back different:\n%s", scenario.Encode(again))
	}
	if b := got.Begin(scenario.Sim); b.NodeLabel(1) != "1 (db)" || b.NodeLabel(3) != "3" {
		t.Errorf("nodes are %s and %s for people, want 1 (db) and 3", b.NodeLabel(1), b.NodeLabel(3))
	}
}

// small is a scenario of one step and one expectation.
func small(step, expect string) string {
	s := "version: 1\nname: x\non: [sim]\ncluster: {nodes: 3}\nselect: {v: {any: 1}, n: {any: 1, fresh: true}}\n" +
		"workload: {pairs: mesh}\nduration: 10s\n"
	if step != "" {
		s += "timeline:\n  - " + step + "\n"
	}
	if expect != "" {
		s += "expect:\n  - " + expect + "\n"
	}
	return s
}

func TestEveryRefusalNamesPlaceFieldAndWhatIsAllowed(t *testing.T) {
	head := "version: 1\nname: x\non: [sim]\ncluster: {nodes: 3}\nduration: 10s\n"
	for _, tt := range []struct{ text, want string }{
		// The file.
		{"", `f: scenario: "": want a mapping`},
		{"[]", `f:1:1: scenario: "[]": want a mapping of version, name`},
		{"a: b: c", `f:1:`},
		{"version: 1\n\tname: x", "not YAML"},
		{head + "---\nversion: 1\n", "want one YAML document"},
		{strings.Repeat("[", 100), "nested deeper"},
		{strings.Repeat("x", scenario.MaxFile+1), "want at most"},
		{head + "colour: red\n", `f:6:1: colour: "colour": unknown key: want version, name`},
		{head + "figure: [stalls]\n", "did you mean figures?"},
		{head + "name: y\n", "not YAML"},
		{"name: x\non: [sim]\ncluster: {nodes: 3}\nduration: 10s\n", `version: "": is missing`},
		{strings.Replace(head, "version: 1", "version: 2", 1), `f:1:10: version: "2": want 1`},
		{strings.Replace(head, "name: x", "name: 9 lives", 1), `f:2:7: name: "9 lives": want a letter`},
		{strings.Replace(head, "[sim]", "[]", 1), `f:3:5: on: "": want at least one of sim`},
		{strings.Replace(head, "[sim]", "[moon]", 1), `f:3:6: on[0]: "moon": want one of sim, local, netns, compose`},
		{strings.Replace(head, "[sim]", "[sim, sim]", 1), `on[1]: "sim": is there twice`},
		{strings.Replace(head, "nodes: 3", "nodes: 0", 1), `f:4:18: cluster.nodes: "0": want a whole number from 1 to 1024`},
		{strings.Replace(head, "nodes: 3", "nodes: 3.5", 1), `cluster.nodes: "3.5": want a whole number`},
		{strings.Replace(head, "nodes: 3", "nodes: 0x3", 1), `cluster.nodes: "0x3": want a whole number`},
		{strings.Replace(head, "nodes: 3", "nodes: &a 3", 1), "anchors, aliases and tags"},
		{strings.Replace(head, "nodes: 3", "nodes: !!int 3", 1), "anchors, aliases and tags"},
		{strings.Replace(head, "nodes: 3", "nodes: ", 1), "has no value"},
		{strings.Replace(head, "nodes: 3", "nodes: 3, late: [0]", 1), `cluster.late: "0": the host runs`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, names: [host]", 1), `f:4:29: cluster.names[0]: "host": means other nodes`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, names: [a, a]", 1), `cluster.names[1]: "a": is the name of two nodes`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, names: [n2]", 1), `cluster.names[0]: "n2": is the name of two nodes`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, names: [a, b, c, d]", 1), `cluster.names: "4": want at most 3`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, names: [3]", 1), `cluster.names[0]: "3": want a letter`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, names: a", 1), `cluster.names: "a": want a list`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, late: [hots], names: [a, b]", 1), `f:4:28: cluster.late: "hots": want the index or the name of a node, host, nodes, all, others, $name, or a list of them; nodes are named a, b`},
		{head + "workload: {pairs: [[0, db]]}\n", `workload.pairs: "db": want none`},
		{strings.Replace(head, "nodes: 3", "nodes: 3, names: [a, b]", 1) + "workload: {pairs: [[b, 1]]}\n", `workload.pairs: "[1 1]": want two nodes`},
		{small(`{at: 1s, node: {id: n3, do: kill}}`, ""), `timeline[0].node.id: "n3": no such node`},
		{strings.Replace(small(`{at: 1s, node: {id: [b, 1], do: kill}}`, ""), "nodes: 3", "nodes: 3, names: [a, b]", 1), `timeline[0].node.id: "1": is there twice`},
		{strings.Replace(small(`{at: 1s, node: {id: a, do: replace}}`, ""), "nodes: 3", "nodes: 3, names: [a, b]", 1), `timeline[0].node.id: "a": another host`},
		{strings.Replace(head, "10s", "0s", 1), `duration: "0s": want at least 1ms`},
		{strings.Replace(head, "10s", "-1s", 1), `f:5:11: duration: "-1s": want a duration from 0s to 24h`},
		{strings.Replace(head, "10s", "25h", 1), `duration: "25h": want a duration`},
		{strings.Replace(head, "10s", "99999999999h", 1), `duration: "99999999999h": want a duration`},
		{strings.Replace(head, "10s", "10", 1), `duration: "10": want a duration`},
		{head + "about: \"a\\nb\"\n", "want one line of text"},
		{head + "select: {v: {any: 4}}\n", `select.v.any: "4": only 3 nodes`},
		{head + "select: {v: {any: 1, not: all}}\n", "only 0 nodes"},
		{head + "select: {1v: {any: 1}}\n", `select.1v: "1v": want a letter`},
		{head + "select: {v: {any: 1, of: $v}}\n", "want nodes here, no selection"},
		{head + "select: {v: 3}\n", `select.v: "3": want a mapping of any, of, not, fresh`},
		{head + "workload: {pairs: cube}\n", `workload.pairs: "cube": want none, mesh, ring, star`},
		{head + "workload: {pairs: [[0, 3]]}\n", "no such node: the cluster has 0 to 2"},
		{head + "workload: {pairs: [[1, 1]]}\n", "want two nodes"},
		{head + "workload: {messages: {size: 0, rate: 1}}\n", `size: "0": want a size from 1 to 64MiB`},
		{head + "workload: {messages: {size: 9..4, rate: 1}}\n", `size: "9..4": want a size`},
		{head + "workload: {messages: {size: 9, rate: 0}}\n", `rate: "0": want a whole number from 1`},
		{head + "workload: {rma: {size: 9KiB, rate: 1, window: 8KiB}}\n", "is larger than the window of 8KiB"},
		{head + "workload: {rma: {size: 4, rate: 1, window: 8KiB}}\n", "want at least 8"},
		{head + "workload: {rma: {size: 64, rate: 1, window: 5000}}\n", "want a multiple of 4096"},
		{head + "workload: {rma: {size: 64, rate: 1, window: 4}}\n", `window: "4": want a number of bytes up to 1024GiB, as 64, 64KiB or 1MB, from 4096`},
		{head + "figures: [speed]\n", `figures[0]: "speed": want one of time_to_error`},
		{head + "timeline: 3\n", `timeline: "3": want a list`},
		// Steps.
		{small(`{at: 11s, node: {id: 1, do: kill}}`, ""), `f:9:10: timeline[0].at: "11s": is after the end: duration is 10s`},
		{small(`{at: 4s..3s, node: {id: 1, do: kill}}`, ""), `timeline[0].at: "4s..3s": want a duration`},
		{small(`{at: -4s, node: {id: 1, do: kill}}`, ""), `timeline[0].at: "-4s": want a duration`},
		{small(`{node: {id: 1, do: kill}}`, ""), "want at, or every"},
		{small(`{at: 1s, every: 1s, until: 2s, node: {id: 1, do: kill}}`, ""), "want at, or every"},
		{small(`{every: 1s, node: {id: 1, do: kill}}`, ""), "every needs until"},
		{small(`{every: 1s, from: 3s, until: 2s, node: {id: 1, do: kill}}`, ""), `timeline[0].until: "2s": is not after from, 3s`},
		{small(`{every: 1s, until: 11s, node: {id: 1, do: kill}}`, ""), "is after the end"},
		{small(`{every: 1us, until: 9s, node: {id: 1, do: kill}}`, ""), "want at least 1ms"},
		{small(`{at: 1s, from: 1s, node: {id: 1, do: kill}}`, ""), "belong to every"},
		{small(`{at: 1s}`, ""), "want exactly one action of link, partition"},
		{small(`{at: 1s, node: {id: 1, do: kill}, app: {node: 1, do: kill}}`, ""), `"[app node]": want exactly one action`},
		{small(`{at: 1s, node: {id: 3, do: kill}}`, ""), `f:9:25: timeline[0].node.id: "3": no such node: the cluster has 0 to 2`},
		{small(`{at: 1s, node: {id: [1, 1], do: kill}}`, ""), "is there twice"},
		{small(`{at: 1s, node: {id: [], do: kill}}`, ""), "want at least one node"},
		{small(`{at: 1s, node: {id: $w, do: kill}}`, ""), `"$w": no such selection`},
		{small(`{at: 1s, node: {id: others, do: kill}}`, ""), "says nothing here"},
		{small(`{at: 1s, node: {id: 1, do: eat}}`, ""), `do: "eat": want one of kill, terminate, stop`},
		{small(`{at: 1s, node: {id: 1, do: start, for: 1s}}`, ""), "start is not undone"},
		{small(`{at: 1s, node: {id: 1, do: stop, for: 0s}}`, ""), "want more than 0s"},
		{small(`{at: 1s, node: {id: host, do: usurp}}`, ""), "node 0 is the host itself"},
		{small(`{at: 1s, node: {id: all, do: replace}}`, ""), "another host is another cluster"},
		{small(`{at: 1s, node: {id: 1, do: kill, when: now}}`, ""), `timeline[0].node.when: "when": unknown key`},
		{small(`{at: 1s, link: {from: 1, to: 2}}`, ""), "does nothing"},
		{small(`{at: 1s, link: {from: 1, to: 1, cut: true}}`, ""), "is or may be the same node as from"},
		{small(`{at: 1s, link: {from: 1, to: $v, cut: true}}`, ""), "is or may be the same node as from"},
		{small(`{at: 1s, link: {from: others, to: others, cut: true}}`, ""), "says nothing"},
		{small(`{at: 1s, link: {from: 1, to: 2, drop: 101%}}`, ""), `f:9:43: timeline[0].link.drop: "101%": want a percentage`},
		{small(`{at: 1s, link: {from: 1, to: 2, drop: 0.2}}`, ""), `drop: "0.2": want a percentage`},
		{small(`{at: 1s, link: {from: 1, to: 2, drop: -1%}}`, ""), "want a percentage"},
		{small(`{at: 1s, link: {from: 1, to: 2, drop: NaN%}}`, ""), "want a percentage"},
		{small(`{at: 1s, link: {from: 1, to: 2, rate: 8}}`, ""), `rate: "8": want a rate`},
		{small(`{at: 1s, link: {from: 1, to: 2, cut: yes}}`, ""), `cut: "yes": want true or false`},
		{small(`{at: 1s, link: {from: 1, to: 2, delay: 2h}}`, ""), "up to 1m0s"},
		{small(`{at: 1s, link: {from: 1, to: 2, plane: rma, drop: 1%}}`, ""), "reliable and in order"},
		{small(`{at: 1s, link: {from: 1, to: 2, hold: true}}`, ""), "must be let go"},
		{small(`{at: 1s, link: {from: 1, to: 2, shape: normal, cut: true}}`, ""), "means nothing without jitter"},
		{small(`{at: 1s, partition: {groups: [[0, 1]]}}`, ""), "want at least two groups"},
		{small(`{at: 1s, partition: {groups: [[0, 1], [1, 2]]}}`, ""), `f:9:43: timeline[0].partition.groups[1]: "[1, 2]": node 1 is or may be in group 0 too`},
		{small(`{at: 1s, partition: {groups: [[0, 1], $v]}}`, ""), "is or may be in group 0 too"},
		{small(`{at: 1s, partition: {groups: [[0, 1, 2], others]}}`, ""), "leave no slot"},
		{small(`{at: 1s, partition: {groups: [others, others]}}`, ""), "is there twice"},
		{small(`{at: 1s, partition: {groups: [[0, others], [1]]}}`, ""), "says nothing here"},
		{small(`{at: 1s, app: {node: 1, do: slow}}`, ""), "slow needs it"},
		{small(`{at: 1s, app: {node: 1, do: kill, rate: 3}}`, ""), "only slow takes it"},
		{small(`{at: 1s, fault: {node: 1, kind: crash, step: rma.lost}}`, ""), `step: "rma.lost": want a step of the protocol`},
		{small(`{at: 1s, fault: {node: 1, kind: clock, for: 1s}}`, ""), "timeline[0].fault.offset"},
		{small(`{at: 1s, fault: {node: 1, kind: disk, disk: full}}`, ""), "timeline[0].fault.for"},
		{small(`{at: 1s, fault: {node: 1, kind: crash, nth: 3}}`, ""), "without a step"},
		{small(`{at: 1s, fault: {node: 1, kind: delay, for: 1s, restart: 1s}}`, ""), "only a crash"},
		{small(`{at: 1s, fault: {node: 1, kind: clock, offset: 99999h, for: 1s}}`, ""), "want a duration of either sign"},
		{small(`{at: 1s, cpu: {node: 1}}`, ""), "want share, hogs or both"},
		{small(`{at: 1s, cpu: {node: 1, hogs: 1}}`, ""), "cannot be done on sim"},
		{small(`{at: 1s, memory: {node: 1, limit: 64MiB}}`, ""), "cannot be done on sim"},
		{small(`{at: 1s, memory: {node: 1, limit: 64}}`, ""), "from 1048576"},
		{small(`{at: 1s, network: {node: 1, do: reject}}`, ""), "only on netns"},
		{small(`{at: 1s, rotate: {what: keys}}`, ""), "cannot be done on sim"},
		{small(`{every: 1ms, until: 9s, node: {id: 1, do: start}}`, "") + "  - {every: 1ms, until: 10s, node: {id: 1, do: start}}\n  - {every: 1ms, until: 10s, node: {id: 1, do: start}}\n", "more than 20000 actions"},
		// Expectations.
		{small("", `{}`), "want exactly one expectation of removed, added"},
		{small("", `{removed: {node: 1}, added: {node: 1}}`), "want exactly one expectation"},
		{small("", `{removed: {node: 7}}`), `f:9:22: expect[0].removed.node: "7": no such node`},
		{small("", `{removed: {node: $n}}`), "is drawn anew for every step"},
		{small("", `{removed: {node: others}}`), "says nothing here"},
		{small("", `{removed: {node: 1, reason: sad}}`), "want one of left, crashed"},
		{small("", `{added: {node: 1, after: begin}}`), "want one of start, last"},
		{small("", `{mesh: {within: 1s, after: start}}`), "want one of last, begin"},
		{small("", `{mesh: {}}`), "expect[0].mesh.within"},
		{small("", `{removals: {min: 3, max: 2}}`), "is above max, 2"},
		{small("", `{connects: {within: 1s}}`), "the workload has no connects"},
		{small("", `{traffic: {among: all, stall: 1s}}`), "the workload has no messages"},
		{small("", `{latency: {among: all, p99: 1s}}`), "the workload has no connects, no messages and no fences"},
		{small("", `{latency: {among: all}}`), "want p99, times or both"},
		{small("", `{latency: {among: all, times: 1001}}`), "from 0 to 1000"},
		{small("", `{latency: {p99: 1s}}`), "expect[0].latency.among"},
		{small("", `{errors: {to: 1, status: [EFOO]}}`), "want one of ECONNRESET"},
		{small("", `{exits: {node: 1, within: 1s, code: 256}}`), "from 0 to 255"},
	} {
		s, err := scenario.Decode("f", []byte(tt.text))
		if err == nil {
			t.Errorf("accepted:\n%.300s\nas\n%s", tt.text, scenario.Encode(s))
			continue
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.300s\n got %v\nwant %s", tt.text, err, tt.want)
		}
		e, ok := errors.AsType[*scenario.Error](err)
		if !ok || len(e.Problems) == 0 || len(e.Problems) > scenario.MaxProblems {
			t.Errorf("%.200s: the error has no list of problems: %T", tt.text, err)
			continue
		}
		for _, p := range e.Problems {
			if line := p.String(); strings.ContainsAny(line, "\n\r") || len(line) > 2500 || !strings.HasPrefix(line, "f:") && p.Line > 0 {
				t.Errorf("%.200s: not one line: %q", tt.text, line)
			}
		}
	}
}

func TestResolveIsPureAndDeterministic(t *testing.T) {
	s := mustDecode(t, full)
	before := scenario.Encode(s)
	different := map[string]bool{}
	for seed := range uint64(200) {
		a, b := s.Resolve(seed), mustDecode(t, full).Resolve(seed)
		if !reflect.DeepEqual(a.Actions, b.Actions) || !reflect.DeepEqual(a.Drawn, b.Drawn) {
			t.Fatalf("seed %d: two schedules", seed)
		}
		checkSchedule(t, a)
		different[string(scenario.Encode(a.Fixed(nil)))] = true
	}
	if len(different) < 190 {
		t.Errorf("200 seeds have %d schedules", len(different))
	}
	if !bytes.Equal(scenario.Encode(s), before) {
		t.Error("Resolve changed its scenario")
	}
}

// checkSchedule checks the properties of a schedule that labs rely on.
func checkSchedule(t *testing.T, s *scenario.Schedule) {
	t.Helper()
	last := scenario.Duration(0)
	for i, a := range s.Actions {
		if a.ID != i+1 || a.At < last || a.At > s.Scenario.Duration || a.Until != 0 && a.Until <= a.At {
			t.Fatalf("seed %d: action %d: ID %d, at %s after %s, until %s", s.Seed, i, a.ID, a.At, last, a.Until)
		}
		last = a.At
		touch := a.Touches()
		if a.Rotate == nil && len(touch.Nodes)+len(touch.Ways)+len(touch.Apps) == 0 {
			t.Fatalf("seed %d: %s touches nothing", s.Seed, a)
		}
		for _, w := range touch.Ways {
			if len(w.From) == 0 || len(w.To) == 0 {
				t.Fatalf("seed %d: %s has a way without nodes", s.Seed, a)
			}
		}
		if _, err := history.Append(nil, history.Record{Source: history.Lab, Seq: 1, Body: a.Begun(s.Scenario.Cluster, 0)}); err != nil {
			t.Fatalf("seed %d: %s cannot be recorded: %v", s.Seed, a, err)
		}
		if a.What() == "" || a.What() == "nothing" {
			t.Fatalf("seed %d: action %d has no name", s.Seed, i)
		}
	}
}

// TestFixedHasTheSameScheduleForEverySeed: the minimizer relies on it.
func TestFixedHasTheSameScheduleForEverySeed(t *testing.T) {
	s := mustDecode(t, full)
	drawn := s.Resolve(42)
	fixed := drawn.Fixed(nil)
	text := scenario.Encode(fixed)
	again, err := scenario.Decode("fixed.yaml", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for seed := range uint64(20) {
		got := again.Resolve(seed)
		if len(got.Actions) != len(drawn.Actions) {
			t.Fatalf("seed %d: %d actions, want %d", seed, len(got.Actions), len(drawn.Actions))
		}
		for i, a := range got.Actions {
			want := drawn.Actions[i]
			if a.At != want.At || a.Until != want.Until || !reflect.DeepEqual(a.Do, want.Do) {
				t.Errorf("seed %d: action %d is %s %+v, want %s %+v", seed, i, a, a.Do, want, want.Do)
			}
		}
		if !reflect.DeepEqual(got.Drawn["victim"], drawn.Drawn["victim"]) {
			t.Errorf("seed %d: victim is %v, want %v", seed, got.Drawn["victim"], drawn.Drawn["victim"])
		}
	}
	half := drawn.Fixed(func(a scenario.Action) bool { return a.ID%2 == 0 })
	if err := half.Check(); err != nil || len(half.Timeline) != len(drawn.Actions)/2 {
		t.Errorf("half of it has %d steps, %v", len(half.Timeline), err)
	}
}

func TestRemovingAStepLeavesTheOthersDraws(t *testing.T) {
	s := mustDecode(t, small(`{at: 1s..2s, node: {id: $n, do: kill}}`, "")+"  - {at: 3s..4s, node: {id: $n, do: start}}\n")
	a := s.Resolve(7)
	s.Timeline[0].At = scenario.At(5e8)
	b := s.Resolve(7)
	if !reflect.DeepEqual(a.Actions[1].Do, b.Actions[1].Do) || a.Actions[1].At != b.Actions[1].At {
		t.Error("the time of one step changed another one")
	}
}

// TestSeedsMeanTheSameForEver pins the draw of a seed: a seed in a report is of use
// only as long as its draw stays.
func TestSeedsMeanTheSameForEver(t *testing.T) {
	s := mustDecode(t, small(`{at: 1s..2s, node: {id: $n, do: kill, for: 1s..3s}}`, "")).Resolve(2024)
	a := s.Actions[0]
	if got := a.At.String() + " " + a.Until.String() + " " + a.Node.ID.String() + " " + scenario.NodesOf(s.Drawn["v"]...).String(); got != pinned {
		t.Errorf("seed 2024 draws %q, and did draw %q", got, pinned)
	}
}

const pinned = "1.167942s 2.845261s 2 1"

func TestHarm(t *testing.T) {
	for _, tt := range []struct {
		step string
		want history.Harm
	}{
		{`{at: 1s, node: {id: 1, do: kill}}`, history.HarmRemove},
		{`{at: 1s, node: {id: 1, do: stop, for: 1500ms}}`, history.HarmNone},
		{`{at: 1s, node: {id: 1, do: stop, for: 1600ms}}`, history.HarmRemove},
		{`{at: 1s, node: {id: 1, do: stop}}`, history.HarmRemove},
		{`{at: 1s, node: {id: 1, do: start}}`, history.HarmNone},
		{`{at: 1s, link: {from: 1, to: 2, drop: 20%}}`, history.HarmNone},
		{`{at: 1s, link: {from: 1, to: 2, drop: 60%}}`, history.HarmReset},
		{`{at: 1s, link: {from: 1, to: 2, cut: true, for: 1s}}`, history.HarmNone},
		{`{at: 1s, link: {from: 1, to: 2, cut: true, for: 2s}}`, history.HarmReset},
		{`{at: 1s, link: {from: 0, to: 2, cut: true, for: 2s}}`, history.HarmRemove},
		{`{at: 1s, link: {from: 0, to: 2, cut: true, up: 200ms, down: 200ms, for: 5s}}`, history.HarmNone},
		{`{at: 1s, link: {from: 1, to: 2, delay: 50ms, jitter: 25ms, for: 5s}}`, history.HarmNone},
		{`{at: 1s, link: {from: 1, to: 2, rate: 8Mbit/s, for: 5s}}`, history.HarmNone},
		{`{at: 1s, link: {from: 1, to: 2, mtu: 1280, for: 5s}}`, history.HarmReset},
		{`{at: 1s, link: {from: 1, to: 2, reset: true, for: 5s}}`, history.HarmReset},
		{`{at: 1s, partition: {groups: [[0], [1, 2]], for: 1s}}`, history.HarmNone},
		{`{at: 1s, partition: {groups: [[0], [1, 2]], for: 3s}}`, history.HarmRemove},
		{`{at: 1s, network: {node: 1, do: disconnect, for: 5s}}`, history.HarmRemove},
		{`{at: 1s, app: {node: 1, do: kill}}`, history.HarmReset},
		{`{at: 1s, app: {node: 1, do: stop, for: 5s}}`, history.HarmNone},
		{`{at: 1s, fault: {node: 1, kind: crash}}`, history.HarmRemove},
		{`{at: 1s, fault: {node: 1, kind: disk, disk: full, for: 1s}}`, history.HarmNone},
		{`{at: 1s, fault: {node: 1, kind: delay, step: rma.write_copied, for: 5s}}`, history.HarmRemove},
	} {
		text := strings.Replace(small(tt.step, ""), "[sim]", "[sim, netns]", 1)
		a := mustDecode(t, text).Resolve(1).Actions[0]
		if got := a.Harm(scenario.Cluster{Detection: scenario.Normal}); got != tt.want {
			t.Errorf("%s: harm %s, want %s", tt.step, got, tt.want)
		}
	}
}

func TestSelectionsDrawWithinTheirBounds(t *testing.T) {
	s := mustDecode(t, "version: 1\nname: x\non: [sim]\ncluster: {nodes: 9}\nselect: {v: {any: 2, of: [1, 2, 3, 4], not: [2]}}\nduration: 1s\n")
	count := map[int]int{}
	for seed := range uint64(3000) {
		for _, id := range s.Resolve(seed).Drawn["v"] {
			count[id]++
		}
	}
	for _, id := range []int{1, 3, 4} {
		if count[id] < 1800 || count[id] > 2200 {
			t.Errorf("node %d was drawn %d times of 2000", id, count[id])
		}
	}
	if len(count) != 3 {
		t.Errorf("drawn: %v", count)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(small(`{at: 1s, partition: {groups: [$v, others]}}`, `{mesh: {within: 1s}}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := scenario.Decode("f", text)
		if err != nil {
			if e, ok := errors.AsType[*scenario.Error](err); !ok || len(e.Problems) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		encoded := scenario.Encode(s)
		again, err := scenario.Decode("g", encoded)
		if err != nil {
			t.Fatalf("%v\n%s", err, encoded)
		}
		if !bytes.Equal(scenario.Encode(again), encoded) {
			t.Fatalf("encodes differently the second time:\n%s\n%s", encoded, scenario.Encode(again))
		}
		schedule := s.Resolve(1)
		for _, a := range schedule.Actions {
			_ = a.Harm(s.Cluster)
			_ = a.Begun(s.Cluster, 0)
		}
		if _, err := scenario.Decode("h", scenario.Encode(schedule.Fixed(nil))); err != nil && len(schedule.Actions) <= scenario.MaxSteps {
			t.Fatalf("the fixed scenario is refused: %v", err)
		}
	})
}
