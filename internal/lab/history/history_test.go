package history_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// one returns a record of every kind, every field set.
func one() []history.Record {
	incarnation, peer := addr.Incarnation{Node: 2, Generation: 3}, addr.Incarnation{Node: 1, Generation: 1}
	uuid := addr.UUID{1, 2, 3}
	end := history.ConnEnd{Conn: 77, Side: history.Client}
	pos, op := int64(0), uint64(9)
	call := history.Call{ID: 5, Name: "send", Began: 9, Deadline: 99, Conn: 77, Side: history.Server, Peer: peer, Idle: true}
	rng := history.Range{From: 3, To: 9}
	app := history.App(2, 1)
	bodies := []history.Body{
		&history.Begin{Version: history.Version, Scenario: "s", Seed: 1<<64 - 1, Lab: "sim", Detection: "fast", Nodes: 5, Duration: 1e9, Build: "b", Started: "t", Command: "c"},
		&history.Timeline{},
		&history.Fault{ID: 1, Step: 2, Round: 3, What: "node kill", Since: 1, Until: 5, Nodes: []int{2}, Ways: []history.Way{{From: []int{1}, To: []int{2, 3}}}, Apps: []int{3}, Harm: history.HarmRemove, Cut: true},
		&history.FaultEnd{ID: 1, Fired: 4, Proof: "p", Err: "e"},
		&history.Process{Target: history.Daemon(2, 1), Did: history.DidExit, Code: -9, Detail: "d"},
		&history.Event{What: history.EventRemoved, Observer: incarnation, Subject: peer, UUID: uuid, Reason: "crashed"},
		&history.View{Observer: incarnation, Live: []history.Member{{Incarnation: incarnation, UUID: uuid}}},
		&call,
		&history.Return{Call: call, Status: "ECONNRESET", Bytes: 4},
		&history.Opened{ConnEnd: end, Local: incarnation, Remote: peer, LocalPort: 1, RemotePort: 2},
		&history.Closed{ConnEnd: end, How: history.HowClose},
		&history.Offered{ConnEnd: end, Range: rng},
		&history.Sent{ConnEnd: end, Range: rng},
		&history.Received{ConnEnd: end, Range: rng, Bad: &pos},
		&history.RMA{ConnEnd: end, Op: 1, Name: "writeto", Window: 4, Offset: 8, Len: 16, Sync: true},
		&history.RMADone{ConnEnd: end, Op: 1, Status: "ENXIO", Bad: &pos},
		&history.Fenced{ConnEnd: end, Upto: 9, Status: "ECONNRESET"},
		&history.Checked{ConnEnd: end, Upto: 9, Missing: &op},
		&history.Signal{ConnEnd: end, Value: 9},
		&history.SignalSeen{ConnEnd: end, Value: 9, Missing: &op},
		&history.Window{ConnEnd: end, ID: 4, Owner: incarnation, Offset: 4096, Len: 4096},
		&history.WindowGone{ID: 4},
		&history.Scan{ID: 4, Words: 512, Writers: []history.WindowWriter{{Conn: 77, Incarnation: peer, First: 1, Last: 9, Words: 40}}, Unknown: 1, Guard: 2, Misplaced: 4, Sum: 3},
		&history.Resources{Target: history.Daemon(2, 1), Phase: history.PhaseEnd, Count: map[string]int64{"fds": 12, "rss": 1 << 24}},
		&history.Paths{Target: history.Daemon(2, 1), Conns: 3, Paths: 2, New: 1},
		&history.Logged{Target: history.Daemon(2, 1), Line: "panic: x"},
		&history.Stall{For: 7e8},
		&history.Note{Text: "done"},
		&history.End{Complete: true, Why: "w"},
	}
	records := make([]history.Record, len(bodies))
	for i, b := range bodies {
		records[i] = history.Record{At: int64(i), Source: app, Seq: uint64(i) + 1, Body: b}
	}
	return records
}

func TestEveryKindComesBack(t *testing.T) {
	seen := map[history.Kind]bool{}
	for _, r := range one() {
		text, err := history.Append(nil, r)
		if err != nil {
			t.Fatalf("%s: %v", r.Kind(), err)
		}
		if !bytes.Contains(text, []byte(`"`+string(r.Kind())+`":{`)) {
			t.Errorf("the body of %s has another key: %s", r.Kind(), text)
		}
		back, err := history.Decode(text)
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%s came back as %+v, %v", text, back, err)
		}
		again, err := history.Append(nil, back)
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("%s encodes as %s the second time, %v", text, again, err)
		}
		seen[r.Kind()] = true
	}
	if len(seen) != 29 {
		t.Errorf("the test has %d kinds of 29", len(seen))
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{`{"at":1,"src":"lab","seq":1,"note":{"text":"x"}} {}`, "more than one value"},
		{`{"at":1,"src":"lab","seq":1,"note":{"text":"x","more":1}}`, `unknown field "more"`},
		{`{"at":1,"src":"lab","seq":1}`, "body: missing"},
		{`{"at":1,"src":"lab","seq":1,"note":{"text":"x"},"end":{"complete":true}}`, "more than one"},
		{`{"at":-1,"src":"lab","seq":1,"note":{"text":"x"}}`, "at: -1"},
		{`{"at":1,"src":"lab","seq":0,"note":{"text":"x"}}`, "seq: 0"},
		{`{"at":1,"src":"app:1","seq":1,"note":{"text":"x"}}`, "want lab, daemon:NODE:RUN or app:NODE:RUN"},
		{`{"at":1,"src":"app:01:1","seq":1,"note":{"text":"x"}}`, "want lab"},
		{`{"at":1,"src":"app:4096:1","seq":1,"note":{"text":"x"}}`, "want lab"},
		{`{"at":1,"seq":1,"note":{"text":"x"}}`, "want lab"},
		{`{"at":1,"src":"lab","seq":1,"event":{"what":"gone","observer":"1.1","subject":"1.1"}}`, "event.what"},
		{`{"at":1,"src":"lab","seq":1,"event":{"what":"removed","observer":"1.1","subject":"1.0"}}`, "event.subject"},
		{`{"at":1,"src":"lab","seq":1,"event":{"what":"removed","observer":"1.1","subject":"1"}}`, "want node.generation"},
		{`{"at":1,"src":"lab","seq":1,"sent":{"conn":0,"side":"client","from":0,"to":1}}`, "sent.conn"},
		{`{"at":1,"src":"lab","seq":1,"sent":{"conn":1,"side":"left","from":0,"to":1}}`, "sent.side"},
		{`{"at":1,"src":"lab","seq":1,"sent":{"conn":1,"side":"client","from":2,"to":1}}`, "sent.from"},
		{`{"at":1,"src":"lab","seq":1,"fault":{"id":1,"step":0,"what":"x","harm":"death"}}`, "fault.harm"},
		{`{"at":1,"src":"lab","seq":1,"fault":{"id":1,"step":0,"what":"x","harm":"none","nodes":[5000]}}`, "fault.nodes"},
		{`{"at":1,"src":"lab","seq":1,"resources":{"target":"lab","phase":"end","count":{"gold":1}}}`, "resources.count"},
		{`{"at":1,"src":"lab","seq":1,"note":{"text":"` + strings.Repeat("x", history.MaxText+1) + `"}}`, "note.text"},
		{``, "EOF"},
		{`null`, "body: missing"},
		{`[]`, "cannot unmarshal"},
	} {
		if _, err := history.Decode([]byte(tt.in)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Decode(%.80s) = %v, want an error with %q", tt.in, err, tt.want)
		}
	}
}

func TestSourceText(t *testing.T) {
	for _, s := range []history.Source{history.Lab, history.Daemon(0, 1), history.App(4095, 12)} {
		if back, err := history.ParseSource(s.String()); back != s || err != nil {
			t.Errorf("%s came back as %v, %v", s, back, err)
		}
	}
	for _, bad := range []string{"", "lab:0:1", "daemon", "daemon:1", "daemon:1:0", "app:-1:1", "app:1:1:1", "app:+1:1", "root:1:1"} {
		if s, err := history.ParseSource(bad); err == nil {
			t.Errorf("ParseSource(%q) = %v, want an error", bad, s)
		}
	}
}

func TestWriterWritesLineByLine(t *testing.T) {
	var file lines
	now := int64(5)
	w := history.NewWriter(&file, history.App(1, 1), 0, func() int64 { return now })
	for _, at := range []int64{5, 7, 6} { // the clock of the writer never goes back, whatever now says
		now = at
		if err := w.Write(&history.Note{Text: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(file) != 3 {
		t.Fatalf("three records were %d writes", len(file))
	}
	records, err := history.Read(strings.NewReader(strings.Join(file, "")), "log")
	if err != nil || len(records) != 3 || records[2].At != 7 || records[2].Seq != 3 {
		t.Errorf("read back %+v, %v", records, err)
	}
}

// lines collects writes.
type lines []string

func (l *lines) Write(p []byte) (int, error) { *l = append(*l, string(p)); return len(p), nil }

func TestWriterEndsAtItsBoundAndAfterAnError(t *testing.T) {
	var file lines
	w := history.NewWriter(&file, history.Lab, 150, func() int64 { return 0 })
	var err error
	for range 10 {
		err = w.Write(&history.Note{Text: "0123456789"})
	}
	if !errors.Is(err, history.ErrFull) || !errors.Is(w.Err(), history.ErrFull) {
		t.Errorf("ten records within 150 bytes: %v", err)
	}
	if records, err := history.Read(strings.NewReader(strings.Join(file, "")), "log"); err != nil || len(records) == 0 {
		t.Errorf("what was written before is %d records, %v", len(records), err)
	}
	w = history.NewWriter(&lines{}, history.Lab, 0, func() int64 { return 0 })
	if err := w.Write(&history.Signal{}); err == nil {
		t.Error("a record that cannot be read was written")
	}
	if err := w.Write(&history.Note{}); err == nil {
		t.Error("the log goes on after a gap")
	}
}

func TestReadDropsATornEndAndRefusesTheRest(t *testing.T) {
	var all bytes.Buffer
	if err := history.WriteAll(&all, one()); err != nil {
		t.Fatal(err)
	}
	text := all.String()
	for cut := range len(text) {
		records, err := history.Read(strings.NewReader(text[:cut]), "log")
		whole := strings.Count(text[:cut], "\n")
		if err != nil || len(records) < whole || len(records) > whole+1 {
			t.Fatalf("cut after %d bytes: %d records of %d whole lines, %v", cut, len(records), whole, err)
		}
	}
	rows := strings.SplitAfter(text, "\n")
	for _, tt := range []struct {
		rows []string
		want string
	}{
		{slices.Delete(slices.Clone(rows), 3, 4), "log:4: seq: 5"},
		{append(rows[:2:2], rows[1]), "log:3: seq: 2"},
		{[]string{rows[0], "{}\n", rows[1]}, "log:2: body"},
		{[]string{strings.Replace(rows[0], `"at":0`, `"at":9`, 1), rows[1]}, "time goes back"},
		{[]string{strings.Repeat("x", history.MaxLine+10)}, "log:1: line longer"},
	} {
		if _, err := history.Read(strings.NewReader(strings.Join(tt.rows, "")), "log"); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want an error with %q", err, tt.want)
		}
	}
}

func TestReadTakesLongLines(t *testing.T) {
	r := history.Record{At: 1, Source: history.Lab, Seq: 1, Body: &history.View{Live: make([]history.Member, 6000)}}
	text, err := history.Append(nil, r)
	if err != nil || len(text) < 70<<10 {
		t.Fatalf("a line of %d bytes, %v", len(text), err)
	}
	records, err := history.Read(bytes.NewReader(text), "log")
	if err != nil || len(records) != 1 || len(records[0].Body.(*history.View).Live) != 6000 {
		t.Errorf("read %d records, %v", len(records), err)
	}
}

func TestMergeIsTheSortedUnion(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var logs [][]history.Record
	var all []history.Record
	for node := range 7 {
		var log []history.Record
		at := int64(0)
		for i := range rng.IntN(200) {
			at += int64(rng.IntN(3))
			log = append(log, history.Record{At: at, Source: history.App(node, 1), Seq: uint64(i) + 1, Body: &history.Note{}})
		}
		logs, all = append(logs, log), append(all, log...)
	}
	slices.SortFunc(all, history.Compare)
	merged := history.Merge(logs...)
	if !slices.EqualFunc(merged, all, func(a, b history.Record) bool { return history.Compare(a, b) == 0 }) {
		t.Error("merged is not sorted")
	}
	var text bytes.Buffer
	if err := history.WriteAll(&text, merged); err != nil {
		t.Fatal(err)
	}
	if back, err := history.Read(&text, "merged"); err != nil || len(back) != len(all) {
		t.Errorf("a merged history came back as %d of %d records, %v", len(back), len(all), err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range one() {
		text, err := history.Append(nil, r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := history.Decode(text)
		if err != nil {
			return
		}
		again, err := history.Append(nil, r)
		if err != nil {
			t.Fatalf("decoded %q, but cannot encode it: %v", text, err)
		}
		back, err := history.Decode(again)
		if err != nil {
			t.Fatalf("encoded %q, but cannot decode it: %v", again, err)
		}
		third, err := history.Append(nil, back)
		if err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%q and %q are the same record, %v", again, third, err)
		}
	})
}

func FuzzRead(f *testing.F) {
	var all bytes.Buffer
	if err := history.WriteAll(&all, one()); err != nil {
		f.Fatal(err)
	}
	f.Add(all.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		records, err := history.Read(bytes.NewReader(text), "log")
		if err == nil && len(records) > 0 {
			if err := history.WriteAll(io.Discard, records); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	r := history.Record{At: 1, Source: history.App(1, 1), Seq: 1, Body: &history.Sent{ConnEnd: history.ConnEnd{Conn: 1 << 60, Side: history.Client}, Range: history.Range{From: 1000, To: 2000}}}
	var buf []byte
	for b.Loop() {
		buf, _ = history.Append(buf[:0], r)
	}
}

func BenchmarkDecode(b *testing.B) {
	r := history.Record{At: 1, Source: history.App(1, 1), Seq: 1, Body: &history.Sent{ConnEnd: history.ConnEnd{Conn: 1 << 60, Side: history.Client}, Range: history.Range{From: 1000, To: 2000}}}
	buf, _ := history.Append(nil, r)
	for b.Loop() {
		if _, err := history.Decode(buf); err != nil {
			b.Fatal(err)
		}
	}
}
