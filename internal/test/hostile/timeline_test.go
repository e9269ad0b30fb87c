package hostile

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// attackEnv makes this binary run [TestAttack] and print its timeline: "text", or
// "json" for JSON lines. `make attack` sets it.
const attackEnv = "FABRICD_ATTACK"

const (
	attackNodes = 7                 // beside the host
	attackBound = 170 * time.Second // nothing begins later
)

// timelineOut is where the timeline goes.
var timelineOut io.Writer = os.Stdout

// A timeline prints the attempts as they happen.
type timeline struct {
	json  bool
	began time.Time
}

// line prints an object as JSON, or else text.
func (l *timeline) line(v any, format string, args ...any) {
	if !l.json {
		fmt.Fprintf(timelineOut, format+"\n", args...)
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: hostile: " + err.Error())
	}
	fmt.Fprintf(timelineOut, "%s\n", b)
}

// at returns how long the run has lasted.
func (l *timeline) at() time.Duration { return time.Since(l.began).Round(100 * time.Millisecond) }

// tried prints one attack.
func (l *timeline) tried(o outcome) {
	verdict := "HELD"
	if !o.Held {
		verdict = "BROKEN"
	}
	v := struct {
		At float64 `json:"at_s"`
		outcome
	}{l.at().Seconds(), o}
	var text strings.Builder
	fmt.Fprintf(&text, "%7.1fs  %-4s %-6s  %s (%v)", l.at().Seconds(), o.Finding, verdict, o.Tries, o.Took.Round(10*time.Millisecond))
	for _, n := range o.Notes {
		fmt.Fprintf(&text, "\n%23s· %s", "", strings.ReplaceAll(n, "\n", " "))
	}
	if o.Seen.Pause > time.Second {
		fmt.Fprintf(&text, "\n%23s· an honest application waited %v for an answer", "", o.Seen.Pause.Round(time.Millisecond))
	}
	if !o.Held {
		fmt.Fprintf(&text, "\n%23s✗ %s", "", o.Broken)
	}
	l.line(v, "%s", text.String())
}

// A summary is the end of a timeline.
type summary struct {
	Held           int     `json:"held"`
	Broken         int     `json:"broken"`
	Removals       int     `json:"honest_removals"`
	Resets         int     `json:"resets_among_honest"`
	Deaths         int     `json:"daemons_died"`
	Messages       int     `json:"messages_answered"`
	LongestPauseMS int64   `json:"longest_pause_ms"`
	RSSBefore      int64   `json:"rss_before"`
	RSSAfter       int64   `json:"rss_after"`
	FilesBefore    int     `json:"descriptors_before"`
	FilesAfter     int     `json:"descriptors_after"`
	Seconds        float64 `json:"seconds"`
}

func (s *summary) add(o outcome) {
	if s.Broken++; o.Held {
		s.Broken--
		s.Held++
	}
	s.Removals += len(o.Seen.Removals)
	s.Resets += len(o.Seen.Resets)
	s.Deaths += o.Deaths
	s.Messages += o.Seen.Messages
	s.LongestPauseMS = max(s.LongestPauseMS, o.Seen.Pause.Milliseconds())
}

// TestAttack runs all attacks, one after the other, against one cluster whose honest
// applications talk meanwhile, and prints a timeline. `make attack` runs it;
// each attack for itself is a case of TestFinding.
func TestAttack(t *testing.T) {
	mode := os.Getenv(attackEnv)
	if mode == "" {
		return
	}
	l := &timeline{json: mode == "json", began: time.Now()}
	f := newFleet(t, attackNodes)
	a := &arena{f: f, w: f.watch()}
	time.Sleep(time.Second) // applications connect
	var err error
	if a.expiring, err = a.holds("expiring"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.expiring.b.close)
	before := f.most()
	l.line(map[string]any{"at_s": l.at().Seconds(), "nodes": len(f.nodes)}, "%7.1fs  a host and %d nodes at %s; the applications of %d talk",
		l.at().Seconds(), attackNodes, f.ip, len(f.honest()))
	var s summary
	var lost error
	for _, x := range attacks {
		o := outcome{Finding: x.finding, Tries: x.tries}
		switch {
		case lost != nil:
			o.Broken = "not run: " + lost.Error()
		case l.at() > attackBound:
			o.Broken = fmt.Sprintf("not run: %v are over", attackBound)
		default:
			o = a.try(x)
		}
		s.add(o)
		l.tried(o)
		if lost != nil {
			continue
		}
		if err := f.repair(); err != nil {
			lost = fmt.Errorf("after %s the cluster does not come together again: %w", x.finding, err)
		}
	}
	after := f.most()
	s.RSSBefore, s.RSSAfter, s.FilesBefore, s.FilesAfter = before.RSS, after.RSS, before.Descriptors, after.Descriptors
	s.Seconds = l.at().Seconds()
	l.line(s, `%7.1fs  %d held, %d broken
          honest removals %d, connection resets among honest %d, daemons' deaths %d
          %d messages of honest applications answered, the longest wait %d ms
          most of one daemon: RSS %d → %d MiB, descriptors %d → %d`, s.Seconds, s.Held, s.Broken,
		s.Removals, s.Resets, s.Deaths, s.Messages, s.LongestPauseMS, s.RSSBefore>>20, s.RSSAfter>>20, s.FilesBefore, s.FilesAfter)
	if s.Broken > 0 {
		t.Fail()
	}
}
