package main

import (
	"testing"
	"time"
)

func TestRecoveryIsMeasuredAtEverySurvivor(t *testing.T) {
	temporaries(t)
	d := document(t, "run", recoverTest, "--fabricd", buildFabricd(t), "--nodes", "3", "--kills", "3", "--providers", "tcp")
	carriedAll(t, d, "tcp")
	if len(d.Losses) != 3 || !d.Complete || len(d.Results) != 1 {
		t.Fatalf("%d losses, complete %v, %d rows; want 3, true, 1", len(d.Losses), d.Complete, len(d.Results))
	}
	for i, l := range d.Losses {
		if l.Node != uint16(1+i%2) || l.Life != uint16(1+i/2) || len(l.Recovered) != 2 || len(l.Removed) != 2 || l.Back <= 0 {
			t.Fatalf("loss %d is %+v", i, l)
		}
		for k := range l.Recovered {
			if l.Recovered[k] <= l.Removed[k] || l.Removed[k] <= 0 {
				t.Errorf("loss %d: recovered after %v µs, removed after %v µs", i, l.Recovered[k], l.Removed[k])
			}
		}
	}
	if r := d.Results[0]; r.Test != recoverTest || r.Iters != 6 || r.Reps != 3 || !r.LatMax.measured() {
		t.Errorf("the row is %+v", r.Row)
	}
}

func TestBystandersAreMeasuredBeforeAndWithALoss(t *testing.T) {
	temporaries(t)
	d := document(t, "run", blastTest, "--fabricd", buildFabricd(t), "--nodes", "3", "--kills", "2", "--rate", "200", "--duration", "400ms", "--providers", "auto")
	carriedAll(t, d, "tcp") // what is cheapest here, and not the setting
	if len(d.Losses) != 2 || len(d.Results) != 2 {
		t.Fatalf("%d losses, %d rows; want 2 and 2", len(d.Losses), len(d.Results))
	}
	for i, r := range d.Results {
		if r.Test != blastTest || r.Errors != 0 || r.Iters != 2*2*80 || r.Pairs != 2 || !r.LatP99.measured() || r.P99Ratio.measured() != (i == 1) {
			t.Errorf("row %d is %+v", i, r.Row)
		}
	}
	for _, l := range d.Losses {
		if len(l.Removed) != 2 || len(l.Returned) != 2 || l.Back <= 0 {
			t.Errorf("the loss is %+v", l)
		}
	}
}

func TestRatioOfP99IsTheMedian(t *testing.T) {
	at := func(ms ...time.Duration) (all []sample) {
		for _, d := range ms {
			all = append(all, latencySample(d*time.Millisecond))
		}
		return all
	}
	if got := p99Ratio(at(1, 2, 1), at(3, 2, 9)); !near(got, 3) {
		t.Errorf("ratios 3, 1 and 9 have the median %v", got)
	}
	if got := p99Ratio(nil, nil); got.measured() {
		t.Errorf("of nothing: %v", got)
	}
}

// Memberlist alone is measured beside ours, in the rows and in the design's table.
func TestMemberlistAloneIsMeasuredBeside(t *testing.T) {
	temporaries(t)
	d := document(t, "run", "fail_detect", "--fabricd", buildFabricd(t), "--nodes", "3", "--kills", "1", "--stops", "0", "--stock", "1")
	if len(d.Results) != 3 || len(d.Losses) != 1 {
		t.Fatalf("%d rows, %d losses; want 3 and 1", len(d.Results), len(d.Losses))
	}
	if r := d.Results[2]; r.Provider != rawMemberlist || r.Test != eventTest || r.Iters != 2 || r.LatMin < 1e6 {
		t.Errorf("memberlist alone: %+v; its settings need more than a second", r.Row)
	}
}
