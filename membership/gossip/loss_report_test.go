package gossip

import (
	"bytes"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestLossReportsOfStrangersAreDropped gives a member reports that are not for it, and those
// that no version of it has a meaning for.
func TestLossReportsOfStrangersAreDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		g, other := b.start(1, 1), b.start(2, 1)
		b.within(5*time.Second, "both meet", func() bool { return complete([]*Gossip{g, other}) })
		good := LossReport{From: key(2, 1), To: key(1, 1)}.append(nil)
		newer, more := bytes.Clone(good), append(bytes.Clone(good), 0)
		newer[0]++
		what := bytes.Clone(good)
		what[1]++
		for name, p := range map[string][]byte{
			"of no member":             nil,
			"of another one":           LossReport{From: key(3, 1), To: key(1, 1)}.append(nil),
			"of another incarnation":   LossReport{From: key(2, 2), To: key(1, 1)}.append(nil),
			"about another":            LossReport{From: key(2, 1), To: key(3, 1)}.append(nil),
			"about an incarnation ago": LossReport{From: key(2, 1), To: key(1, 0)}.append(nil),
			"newer":                    newer,
			"of another kind":          what,
			"cut off":                  good[:len(good)-1],
			"too long":                 more,
		} {
			delegate{g}.NotifyMsg(p)
			if got := g.TakeLossReports(); len(got) > 0 {
				t.Errorf("%s: taken for %+v", name, got)
			}
		}
		for i := range uint64(maxLossReports + 1) {
			w := LossReport{From: key(2, 1), To: key(1, 1), Number: i}.append(nil)
			delegate{g}.NotifyMsg(w)
			delegate{g}.NotifyMsg(w) // a copy
		}
		if got := g.TakeLossReports(); len(got) != maxLossReports || got[0].From != key(2, 1) {
			t.Errorf("taken %d, want %d of %v", len(got), maxLossReports, key(2, 1))
		}
		if err := g.SendLossReport(key(7, 1), testSecret, 1); err == nil {
			t.Error("a report to a member that is not known is sent")
		}
	})
}

// TestALossReportIsProvedBytewise changes every byte of a report: it proves nothing any more.
func TestALossReportIsProvedBytewise(t *testing.T) {
	w := LossReport{From: key(1, 1), To: key(2, 1), Number: 3}
	w.proof = w.prove(testSecret)
	good := w.append(nil)
	if w, err := parseLossReport(good); err != nil || !w.Proves(testSecret) || w.Proves(testSecret[1:]) {
		t.Fatalf("%+v, %v: want it proved by its secret, and by no other", w, err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if w, err := parseLossReport(bad); err == nil && w.Proves(testSecret) {
			t.Errorf("proved with byte %d changed: %+v", i, w)
		}
	}
}

func FuzzParseLossReport(f *testing.F) {
	f.Add(LossReport{From: key(1, 1), To: key(2, 9), Number: 1 << 40}.append(nil))
	f.Add([]byte{noticeVersion, noticeLoss})
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := parseLossReport(b)
		if err == nil && !bytes.Equal(w.append(nil), b) {
			t.Errorf("%x is parsed as %+v, which is %x", b, w, w.append(nil))
		}
	})
}
