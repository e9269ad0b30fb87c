package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/html"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

var update = flag.Bool("update", false, "write the golden files")

const ms = int64(1e6)

// A log is a history under construction.
type log struct {
	records []history.Record
	seq     map[history.Source]uint64
}

func (l *log) put(at int64, s history.Source, b history.Body) {
	if l.seq == nil {
		l.seq = map[history.Source]uint64{}
	}
	l.seq[s]++
	l.records = append(l.records, history.Record{At: at, Source: s, Seq: l.seq[s], Body: b})
}

func incarnation(node, generation int) addr.Incarnation {
	return addr.Incarnation{Node: addr.NodeID(node), Generation: addr.Generation(generation)}
}

// event tells the application of a node.
func (l *log) event(at int64, node int, what history.EventKind, observer, subject addr.Incarnation, reason string) {
	l.put(at, history.App(node, 1), &history.Event{What: what, Observer: observer, Subject: subject, Reason: reason})
}

// sees has the application of a node know everybody's first incarnation.
func (l *log) sees(at int64, node, nodes int) {
	view := &history.View{Observer: incarnation(node, 1)}
	for o := range nodes {
		view.Live = append(view.Live, history.Member{Incarnation: incarnation(o, 1)})
	}
	l.put(at, history.App(node, 1), view)
}

// traffic has node 0 receive messages of node 2, write to it with SYNC, and wait for a fence.
func (l *log) traffic() {
	end := history.ConnEnd{Conn: 7, Side: history.Client}
	app := history.App(0, 1)
	l.put(600*ms, app, &history.Received{ConnEnd: end, Range: history.Range{To: 1000}})
	l.put(610*ms, app, &history.RMA{ConnEnd: end, Op: 1, Name: "writeto", Window: 1, Len: 500, Sync: true})
	l.put(614*ms, app, &history.RMADone{ConnEnd: end, Op: 1})
	for i, took := range []int64{2, 3, 9} {
		l.put(800*ms, app, &history.Return{Call: history.Call{ID: uint64(20 + i), Name: "fence_wait", Began: (800 - took) * ms, Conn: 7, Side: history.Client, Peer: incarnation(2, 1)}})
	}
}

// sample is a small run: node 2 of 3 is killed, a link is lossy, node 1 stands
// still, and one survivor is told twice.
func sample() *Run {
	l := &log{}
	l.put(0, history.Lab, &history.Begin{Version: 1, Scenario: "sample", Seed: 7, Lab: "local", Detection: "normal", Nodes: 3, Duration: 6000 * ms,
		Build: "v0.1", Started: "2026-01-02T03:04:05Z", Command: "fabricd chaos run sample.yaml --on local --seed 7"})
	for node := range 3 {
		l.put(10*ms, history.Lab, &history.Process{Target: history.Daemon(node, 1), Did: history.DidStart})
		l.event(20*ms, node, history.EventSelf, incarnation(node, 1), incarnation(node, 1), "")
		l.sees(21*ms, node, 3)
	}
	l.put(500*ms, history.Lab, &history.Timeline{})
	l.traffic()
	l.put(1000*ms, history.Lab, &history.Fault{ID: 1, What: "link drop 5%", Ways: []history.Way{{From: []int{0}, To: []int{1, 2}}}, Until: 3000 * ms, Harm: history.HarmNone})
	l.put(1500*ms, history.Lab, &history.Fault{ID: 2, Step: 1, What: "node stop", Nodes: []int{1}, Until: 2000 * ms, Harm: history.HarmNone, Cut: true})
	l.put(1500*ms, history.Lab, &history.Process{Target: history.Daemon(1, 1), Did: history.DidStop})
	l.put(2000*ms, history.Lab, &history.Process{Target: history.Daemon(1, 1), Did: history.DidContinue})
	l.put(2000*ms, history.Lab, &history.FaultEnd{ID: 2, Fired: 1, Proof: "state T"})
	l.put(2500*ms, history.Lab, &history.Fault{ID: 3, Step: 2, What: "node kill", Nodes: []int{2}, Until: 4000 * ms, Harm: history.HarmRemove})
	l.put(2501*ms, history.Lab, &history.Process{Target: history.Daemon(2, 1), Did: history.DidKill})
	for node := range 2 {
		l.put(int64(2510+node)*ms, history.App(node, 1), &history.Return{Call: history.Call{ID: 1, Name: "recv", Began: 900 * ms, Peer: incarnation(2, 1), Idle: true}, Status: "ECONNRESET"})
		l.event(int64(2520+node)*ms, node, history.EventRemoved, incarnation(node, 1), incarnation(2, 1), "crashed")
	}
	l.event(2530*ms, 1, history.EventRemoved, incarnation(1, 1), incarnation(2, 1), "crashed")
	l.put(3000*ms, history.Lab, &history.FaultEnd{ID: 1, Fired: 41, Proof: "dropped 41 packets"})
	l.put(4000*ms, history.Lab, &history.Process{Target: history.Daemon(2, 2), Did: history.DidStart})
	l.put(4000*ms, history.Lab, &history.FaultEnd{ID: 3, Fired: 1, Proof: "the process is gone"})
	l.event(4100*ms, 2, history.EventSelf, incarnation(2, 2), incarnation(2, 2), "")
	for node := range 2 {
		l.event(int64(4110+node)*ms, node, history.EventAdded, incarnation(node, 1), incarnation(2, 2), "")
	}
	l.put(6000*ms, history.Lab, &history.End{Complete: true})
	return judged(l, "sample")
}

// judged makes a run of a history.
func judged(l *log, name string) *Run {
	s, err := scenario.Decode("sample", fmt.Appendf(nil, `version: 1
name: %s
about: "a node dies & comes back <soon>"
rows: [F1, B1]
on: [local]
cluster: {nodes: 3}
duration: 6s
timeline:
  - {at: 2500ms, node: {id: 2, do: kill, for: 1500ms}}
expect:
  - removed: {node: 2, within: 1s}
figures: [time_to_error, time_to_removed, time_to_added]
`, name))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &Run{Records: l.records, Scenario: s, Result: check.Run(l.records, s)}
}

func page2(t *testing.T, r *Run) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	r := sample()
	text, err := JSON(r)
	if err != nil {
		t.Fatal(err)
	}
	var suite bytes.Buffer
	if err := SuiteHTML(&suite, sampleSuite()); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"sample.html": page2(t, r), "sample.json": text, "suite.html": suite.Bytes()} {
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what it was (go test ./internal/lab/report -update)", name)
		}
	}
}

func sampleSuite() *Suite {
	figures := []check.Figure{{Name: scenario.TimeToRemoved, Of: "node kill", Count: 90, Min: 2 * ms, P50: 5 * ms, P99: 40 * ms, Max: 80 * ms, Samples: []int64{2 * ms, 5 * ms, 40 * ms, 80 * ms}}}
	return &Suite{Title: "All scenarios", Build: "v0.1", Labs: []LabTime{{Lab: scenario.Sim, Runs: 100, Took: 61.5}}, Rows: []Entry{
		{Scenario: "node-killed", Lab: scenario.Sim, About: "a node is killed", Rows: []scenario.Name{"F1"}, Detection: scenario.Normal, Nodes: 5, Runs: 100, Green: 100, Figures: figures},
		{Scenario: "node-killed", Lab: scenario.Netns, Detection: scenario.Normal, Nodes: 5, Runs: 3, Green: 2, Broken: []uint64{3}, Report: "netns/node-killed-3/report.html"},
		{Scenario: "loss", Lab: scenario.Netns, About: "<lost> packets", Runs: 1, Harness: []uint64{1}},
	}}
}

func TestRunIsReportedInFull(t *testing.T) {
	r := sample()
	text := string(page2(t, r))
	for _, want := range []string{
		"fabricd chaos run sample.yaml --on local --seed 7", "notified twice", "✗ violated", "✓ held", "– not exercised", "incarnation 2.2", "incarnation 2.1",
		"dropped 41 packets", "node stop", "stands still", "time_to_removed", "a node dies &amp; comes back &lt;soon&gt;", "its process ends: kill", "v0.1", "F1, B1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	r.Result.Begin.Names = []string{"front", "db"}
	if text := string(page2(t, r)); !strings.Contains(text, "node 1 (db)<") || !strings.Contains(text, "node 2<") {
		t.Error("nodes are not shown with their names")
	}
	if r.Verdict() != Broken {
		t.Errorf("verdict %s", r.Verdict())
	}
	r.Problem = "docker is not there"
	if r.Verdict() != Harness || !strings.Contains(string(page2(t, r)), "docker is not there") {
		t.Error("the lab's problem is not reported")
	}
}

// TestPagesAreValid parses pages and holds every element to its place.
func TestPagesAreValid(t *testing.T) {
	var suite bytes.Buffer
	if err := SuiteHTML(&suite, sampleSuite()); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"run": page2(t, sample()), "large": page2(t, large()), "suite": suite.Bytes()} {
		checkPage(t, name, text)
	}
}

// void are the elements that have no end.
var void = map[string]bool{"meta": true, "br": true}

func checkPage(t *testing.T, name string, text []byte) {
	t.Helper()
	if _, err := html.Parse(bytes.NewReader(text)); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	for i, picture := range pictures(text) {
		if err := wellFormed(picture); err != nil {
			t.Errorf("%s: picture %d is no XML: %v", name, i, err)
		}
	}
	var open []string
	z := html.NewTokenizer(bytes.NewReader(text))
	for {
		switch z.Next() {
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("%s: %v are never closed", name, open)
			}
			return
		case html.StartTagToken:
			tag, _ := z.TagName()
			if tag := string(tag); !void[tag] {
				open = append(open, tag)
			}
		case html.EndTagToken:
			tag, _ := z.TagName()
			if len(open) == 0 || open[len(open)-1] != string(tag) {
				t.Fatalf("%s: </%s> closes %v", name, tag, open)
			}
			open = open[:len(open)-1]
		}
	}
}

// pictures returns the pictures of a page, each with its begin and its end.
func pictures(page []byte) (all [][]byte) {
	const begin, end = "<svg", "</svg>"
	for {
		from := bytes.Index(page, []byte(begin))
		if from < 0 {
			return all
		}
		to := bytes.Index(page[from:], []byte(end))
		if to < 0 {
			return append(all, page[from:])
		}
		all = append(all, page[from:from+to+len(end)])
		page = page[from+to+len(end):]
	}
}

// wellFormed reports why text is not one XML element.
func wellFormed(text []byte) error {
	d := xml.NewDecoder(bytes.NewReader(text))
	for depth, seen := 0, 0; ; {
		token, err := d.Token()
		if err == io.EOF && seen == 1 {
			return nil
		}
		if err != nil {
			return err
		}
		switch x := token.(type) {
		case xml.StartElement:
			if depth++; depth == 1 {
				seen++
			}
			given := map[xml.Name]bool{}
			for _, a := range x.Attr {
				if given[a.Name] {
					return fmt.Errorf("<%s> has %s twice", x.Name.Local, a.Name.Local)
				}
				given[a.Name] = true
			}
		case xml.EndElement:
			depth--
		}
	}
}

// TestPicturesAreXML takes the pictures of a page out of it, as a reader does to keep one:
// they are XML by themselves, which HTML does not ask for.
func TestPicturesAreXML(t *testing.T) {
	for name, run := range map[string]*Run{"run": sample(), "large": large()} {
		all := pictures(page2(t, run))
		if len(all) < 2 { // the timeline and a histogram
			t.Errorf("%s: %d pictures", name, len(all))
		}
		for i, picture := range all {
			if err := wellFormed(picture); err != nil {
				t.Errorf("%s: picture %d: %v\n%.300s", name, i, err, picture)
			}
		}
	}
	for _, bad := range []string{"<svg><g></svg>", "<svg a=1/>", `<svg a="1" a="2"/>`, "<svg>&nbsp;</svg>", "<svg>", ""} {
		if wellFormed([]byte(bad)) == nil {
			t.Errorf("%q counts as XML", bad)
		}
	}
}

func TestPagesNeedNothingElse(t *testing.T) {
	text := string(page2(t, sample()))
	for _, bad := range []string{"<script", "src=", "@import", "<link", "<iframe", "http://", "https://", "javascript:"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, url := range regexp.MustCompile(`url\(([^)]*)\)`).FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(url[1], "#") {
			t.Errorf("the page wants %q", url[1])
		}
	}
	if !strings.Contains(text, "prefers-color-scheme:dark") {
		t.Error("the page knows no dark scheme")
	}
}

// TestTextIsEscaped puts markup wherever a record or a scenario has text.
func TestTextIsEscaped(t *testing.T) {
	const evil = `<script>alert("x")</script>&amp;`
	l := &log{}
	l.put(0, history.Lab, &history.Begin{Version: 1, Scenario: evil, Seed: 1, Lab: "sim", Detection: "fast", Nodes: 2, Build: evil, Started: evil, Command: evil})
	l.put(1, history.Lab, &history.Process{Target: history.Daemon(0, 1), Did: history.DidStart, Detail: evil})
	l.put(2, history.Lab, &history.Fault{ID: 1, What: evil, Nodes: []int{0}, Ways: []history.Way{{From: []int{0}, To: []int{1}}}, Harm: history.HarmRemove})
	l.put(3, history.Lab, &history.FaultEnd{ID: 1, Proof: evil, Err: evil + "\x00\xff"})
	l.event(4, 0, history.EventRemoved, incarnation(0, 1), incarnation(1, 1), evil)
	l.put(5, history.Lab, &history.Logged{Target: history.Daemon(0, 1), Line: evil})
	r := judged(l, "evil")
	r.Problem = evil
	text := page2(t, r)
	checkPage(t, "evil", text)
	if bytes.Contains(text, []byte("<script")) || bytes.ContainsAny(text, "\x00") {
		t.Error("markup of a record is markup of the page")
	}
	suite := &Suite{Title: evil, Build: evil, Rows: []Entry{{Scenario: evil, Lab: scenario.Sim, About: evil, Report: `x" onclick="y`}}}
	var b bytes.Buffer
	if err := SuiteHTML(&b, suite); err != nil {
		t.Fatal(err)
	}
	checkPage(t, "evil suite", b.Bytes())
	if bytes.Contains(b.Bytes(), []byte("<script")) || bytes.Contains(b.Bytes(), []byte(`" onclick`)) {
		t.Error("markup of a suite is markup of its page")
	}
}

// large is a run of 200 nodes, 3,000 faults and a hundred thousand events, judged once for
// all tests, which only read it.
var large = sync.OnceValue(newLarge)

func newLarge() *Run {
	l := &log{}
	l.put(0, history.Lab, &history.Begin{Version: 1, Scenario: "large", Seed: 1, Lab: "sim", Detection: "fast", Nodes: 200, Duration: 1e12})
	for node := range 200 {
		l.put(1, history.Lab, &history.Process{Target: history.Daemon(node, 1), Did: history.DidStart})
		l.event(2, node, history.EventSelf, incarnation(node, 1), incarnation(node, 1), "")
		l.sees(3, node, 200)
	}
	at := int64(1e9)
	for i := range 3000 {
		at += 50 * ms
		l.put(at, history.Lab, &history.Fault{ID: i + 1, What: "node kill", Nodes: []int{i % 200}, Ways: []history.Way{{From: []int{i % 200}, To: []int{(i + 1) % 200}}}, Harm: history.HarmRemove})
		l.put(at+10*ms, history.Lab, &history.FaultEnd{ID: i + 1, Fired: 1})
		for o := range 33 {
			l.event(at+11*ms, o, history.EventRemoved, incarnation(o, 1), incarnation(i%200, 1+i/200), "crashed")
		}
	}
	l.put(at+1e9, history.Lab, &history.End{Complete: true})
	return judged(l, "large")
}

func TestSizeIsBounded(t *testing.T) {
	r := large()
	text := page2(t, r)
	if len(text) > 2<<20 {
		t.Errorf("the page of %d records has %d bytes", len(r.Records), len(text))
	}
	if !bytes.Contains(text, []byte("48 of 200 nodes are shown")) || !bytes.Contains(text, []byte("of 3000 faults are shown")) {
		t.Error("the page does not say what it leaves out")
	}
	document, err := JSON(r)
	if err != nil || len(document) > 4<<20 {
		t.Errorf("report.json has %d bytes, %v", len(document), err)
	}
}

func TestEmptyRunHasAPage(t *testing.T) {
	r := &Run{Result: check.Run(nil, nil), Problem: "nothing was started"}
	checkPage(t, "empty", page2(t, r))
	none := &Run{Scenario: sample().Scenario}
	text := page2(t, none)
	checkPage(t, "no result", text)
	if none.Verdict() != Harness || !bytes.Contains(text, []byte("there is no history to judge")) {
		t.Error("a run without a history has a verdict")
	}
	if _, err := JSON(none); err != nil {
		t.Error(err)
	}
}

func TestWriteMakesTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	r := sample()
	for range 2 { // the second one replaces the first
		if err := Write(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	var d struct {
		Verdict Verdict
		Records map[string]int
		Faults  []struct{ Proof string }
		Result  struct{ Invariants []check.Judgement }
	}
	text, err := os.ReadFile(filepath.Join(dir, JSONName))
	if err != nil || json.Unmarshal(text, &d) != nil || d.Verdict != Broken || d.Records["fault"] != 3 || len(d.Faults) != 3 || len(d.Result.Invariants) < 15 {
		t.Errorf("report.json: %v, %+v", err, d)
	}
	f, err := os.Open(filepath.Join(dir, HistoryName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if records, err := history.Read(f, HistoryName); err != nil || len(records) != len(r.Records) {
		t.Errorf("%s: %d records, %v", HistoryName, len(records), err)
	}
	text, err = os.ReadFile(filepath.Join(dir, ScenarioName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scenario.Decode(ScenarioName, text); err != nil {
		t.Error(err)
	}
}

// TestSuitesAreJoined writes two suites, reads them and puts them on one page.
func TestSuitesAreJoined(t *testing.T) {
	dir := t.TempDir()
	netns := &Suite{Labs: []LabTime{{Lab: scenario.Netns, Runs: 2, Took: 30, LeftOut: []string{"scenario <x>: why"}}}, Rows: sampleSuite().Rows[1:]}
	for name, s := range map[string]*Suite{"sim": sampleSuite(), "netns": netns} {
		if err := WriteSuite(filepath.Join(dir, name), "suite-"+name, s); err != nil {
			t.Fatal(err)
		}
	}
	all := &Suite{Title: "all", Scale: []byte("<svg viewBox=\"0 0 1 1\"></svg>")}
	for _, name := range []string{"netns", "sim"} {
		s, err := ReadSuite(filepath.Join(dir, name, "suite-"+name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		all.Join(s, name)
	}
	var b bytes.Buffer
	if err := SuiteHTML(&b, all); err != nil {
		t.Fatal(err)
	}
	checkPage(t, "joined", b.Bytes())
	for _, want := range []string{"<li>sim: 100 runs in 62 s, 98 a minute</li>\n<li>netns: 2 runs in 30 s, 4 a minute</li>\n<li>netns: left out: scenario &lt;x&gt;: why</li>", "v0.1",
		`href="netns/netns/node-killed-3/report.html"`, "time_to_removed: 90 samples, p50 5ms", "<h2>Scale<small>"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

func TestWrongSuitesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"scenarios":[{"lab":"sim","report":"../../etc"}]}`: `report "../../etc": want a path below the suite's`,
		`{"scenarios":[{"lab":"moon"}]}`:                     `lab "moon": want one of`,
		`{`:                                                  "unexpected end",
	} {
		file := filepath.Join(t.TempDir(), "suite.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSuite(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
