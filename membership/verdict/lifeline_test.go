package verdict

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// paced returns the pace of the seat's member, which has ticked, and a lifeline to life.
func paced(s *seat, life addr.Life) (*Pace, *Lifeline) {
	p := NewPace(nil, s.m, Fast(), s.now, s.now)
	p.Tick(s.now)
	l := &Lifeline{}
	l.Raise(life)
	return &p, l
}

func TestASignOfLifeIsEvidenceOnce(t *testing.T) {
	s := newSeat(t)
	p, l := paced(s, peerLife)
	alive, t0 := s.now, s.now
	for _, step := range []struct {
		after time.Duration
		heard bool
		want  Evidence
	}{
		{after: 0, want: LinkAlive},
		{after: 200 * time.Millisecond},
		{after: 400 * time.Millisecond, heard: true, want: LinkAlive},
		{after: 2100 * time.Millisecond}, // a host is there to notice first
		{after: 2200 * time.Millisecond, want: LinkSilent},
		{after: 2400 * time.Millisecond},
		{after: 3500 * time.Millisecond, want: LinkSilent}, // again after the silence bound
		{after: 3600 * time.Millisecond, heard: true, want: LinkAlive},
	} {
		now := t0.Add(step.after)
		if step.heard {
			alive = now
		}
		if e, doubt := p.Heard(l, peerLife, alive, now); e != step.want || doubt {
			t.Errorf("after %v: evidence %d, doubt %v, want %d and none", step.after, e, doubt, step.want)
		}
		if want := step.want == LinkSilent || step.after == 2400*time.Millisecond; l.Silent() != want {
			t.Errorf("after %v: silent %v, want %v", step.after, l.Silent(), want)
		}
	}
}

func TestALifelineSpeaksForTheLifeThatItShows(t *testing.T) {
	s := newSeat(t)
	for _, c := range []struct {
		shown addr.Life
		want  Evidence
	}{
		{peerLife, LinkAlive},
		{addr.Life{Node: 6, Generation: 2}, 0},
		{addr.Life{Node: 6, Generation: 4}, LinkFenced},
		{addr.Life{Node: 7, Generation: 4}, 0},
	} {
		p, l := paced(s, c.shown)
		if e, _ := p.Heard(l, peerLife, s.now, s.now); e != c.want {
			t.Errorf("one that shows %v is evidence %d about %v, want %d", c.shown, e, peerLife, c.want)
		}
	}
}

// TestADoubtIsToldOnceASecond: only without a host, and only of a life that is watched.
func TestADoubtIsToldOnceASecond(t *testing.T) {
	s := newSeat(t)
	p, l := paced(s, peerLife)
	if e, doubt := p.Met(l, peerLife, SawNobody, s.now); e != LinkRefused || doubt {
		t.Errorf("with a host, a life that is not met is evidence %d, doubt %v, want %d and none", e, doubt, LinkRefused)
	}
	s, lives := newLonelySeat(t)
	for _, life := range lives {
		p, l = paced(s, life)
		quiet := Fast().Silence / 2
		if _, doubt := p.Heard(l, life, s.now, s.now.Add(quiet-1)); doubt {
			t.Errorf("%v is doubted before half the silence bound", life)
		}
		if _, doubt := p.Heard(l, life, s.now, s.now.Add(quiet)); doubt != s.m.Watches(life) {
			t.Errorf("%v is doubted: %v, watched: %v", life, doubt, s.m.Watches(life))
		}
		if _, doubt := p.Met(l, life, SawNobody, s.now.Add(quiet+doubtEvery-1)); doubt {
			t.Errorf("%v is doubted twice in a second", life)
		}
		if _, doubt := p.Met(l, life, SawNobody, s.now.Add(quiet+doubtEvery)); doubt != s.m.Watches(life) {
			t.Errorf("%v is doubted again: %v, watched: %v", life, doubt, s.m.Watches(life))
		}
	}
}

// TestALifeThatIsNotShownMayStillCome: a node that was granted a life shows it a little
// later, unless it has shown it before.
func TestALifeThatIsNotShownMayStillCome(t *testing.T) {
	s := newSeat(t)
	p, l := paced(s, addr.Life{})
	met := func(after time.Duration, met Sight) Evidence {
		e, _ := p.Met(l, peerLife, met, s.now.Add(after))
		return e
	}
	silence := Fast().Silence
	if e := met(0, SawNoSuchLife); e != 0 {
		t.Errorf("the first look is evidence %d", e)
	}
	if e := met(silence-1, SawNoSuchLife); e != 0 {
		t.Errorf("a look within the silence bound is evidence %d", e)
	}
	if e := met(silence, SawNoSuchLife); e != LinkFenced {
		t.Errorf("a look after it is evidence %d, want %d", e, LinkFenced)
	}
	if e := met(silence, SawAlive); e != LinkAlive {
		t.Errorf("the life itself is evidence %d, want %d", e, LinkAlive)
	}
	if e := met(silence+1, SawNoSuchLife); e != 0 {
		t.Errorf("the first look after that is evidence %d", e)
	}
	l.Raise(peerLife)
	if e := met(silence+1, SawNoSuchLife); e != LinkFenced {
		t.Errorf("a life that was shown and is not any more is evidence %d, want %d", e, LinkFenced)
	}
	for _, c := range []struct {
		met  Sight
		want Evidence
	}{{SawNothing, 0}, {SawFence, LinkFenced}, {SawNewer, LinkReset}} {
		if e := met(0, c.met); e != c.want {
			t.Errorf("sight %d is evidence %d, want %d", c.met, e, c.want)
		}
	}
}

func TestSightsOfALife(t *testing.T) {
	c := Contact{Life: peerLife, Epoch: 3}
	other := addr.Life{Node: peerLife.Node, Generation: peerLife.Generation + 1}
	for _, x := range []struct {
		got, want any
	}{
		{c.Sees(3, peerLife), SawAlive}, {c.Sees(3, other), SawNoSuchLife}, {c.Sees(4, peerLife), SawNewer},
		{SawAlive.Outcome(), RedialAlive}, {SawNoSuchLife.Outcome(), RedialAlive}, {SawNewer.Outcome(), RedialNewer},
		{SawFence.Outcome(), RedialFailed}, {SawNobody.Outcome(), RedialFailed}, {SawNothing.Outcome(), RedialUntried},
	} {
		if x.got != x.want {
			t.Errorf("got %v, want %v", x.got, x.want)
		}
	}
}

// TestTicksComeAtBeatsAndAtOnceInDoubt: nothing makes the next tick come before its beat
// but a deadline.
func TestTicksComeAtBeatsAndAtOnceInDoubt(t *testing.T) {
	s := newSeat(t)
	p, l := paced(s, peerLife)
	tick := func() time.Duration {
		at, _ := p.Next(s.now)
		return at.Sub(s.now)
	}
	p.BeginLines()
	if !p.Beat(s.now) || p.Beat(s.now) {
		t.Error("signs of life are not due at once, or twice")
	}
	p.Heard(l, peerLife, s.now, s.now)
	if d := tick(); d != Fast().Tick {
		t.Errorf("the next tick comes after %v, want %v", d, Fast().Tick)
	}
	if _, changed := p.Next(s.now); changed {
		t.Error("the next tick changes although nothing happened")
	}
	p.StepMember(s.now, Link{Life: peerLife, Evidence: LinkSilent})
	if d := tick(); d != soonest {
		t.Errorf("in doubt, the next tick comes after %v, want %v", d, soonest)
	}
	s.now = s.now.Add(soonest)
	if p.Tick(s.now) {
		t.Error("a tick in time is a standstill")
	}
	if s.now = s.now.Add(Fast().Check + Fast().Silence + 1); !p.Tick(s.now) {
		t.Error("a late tick is no standstill")
	}
	if p.doubtful() {
		t.Error("the doubt does not end")
	}
}
