package verdict

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// paced returns the pace of the seat's member, which has ticked, and a lifeline to incarnation.
func paced(s *seat, incarnation addr.Incarnation) (*Pace, *Lifeline) {
	p := NewPace(nil, s.m, Fast(), s.now, s.now)
	p.Tick(s.now)
	l := &Lifeline{}
	l.Raise(incarnation)
	return &p, l
}

func TestASignOfIncarnationIsEvidenceOnce(t *testing.T) {
	s := newSeat(t)
	p, l := paced(s, peerIncarnation)
	alive, t0 := s.now, s.now
	for _, step := range []struct {
		after time.Duration
		alive bool
		want  Evidence
	}{
		{after: 0, want: LinkAlive},
		{after: 200 * time.Millisecond},
		{after: 400 * time.Millisecond, alive: true, want: LinkAlive},
		{after: 2100 * time.Millisecond}, // a host is there to notice first
		{after: 2200 * time.Millisecond, want: LinkSilent},
		{after: 2400 * time.Millisecond},
		{after: 3500 * time.Millisecond, want: LinkSilent}, // again after the silence bound
		{after: 3600 * time.Millisecond, alive: true, want: LinkAlive},
	} {
		now := t0.Add(step.after)
		if step.alive {
			alive = now
		}
		if e, doubt := p.LineEvidence(l, peerIncarnation, alive, now); e != step.want || doubt {
			t.Errorf("after %v: evidence %d, doubt %v, want %d and none", step.after, e, doubt, step.want)
		}
		if want := step.want == LinkSilent || step.after == 2400*time.Millisecond; l.Silent() != want {
			t.Errorf("after %v: silent %v, want %v", step.after, l.Silent(), want)
		}
	}
}

func TestALifelineSpeaksForTheIncarnationThatItShows(t *testing.T) {
	s := newSeat(t)
	for _, c := range []struct {
		shown addr.Incarnation
		want  Evidence
	}{
		{peerIncarnation, LinkAlive},
		{addr.Incarnation{Node: 6, Generation: 2}, 0},
		{addr.Incarnation{Node: 6, Generation: 4}, LinkFenced},
		{addr.Incarnation{Node: 7, Generation: 4}, 0},
	} {
		p, l := paced(s, c.shown)
		if e, _ := p.LineEvidence(l, peerIncarnation, s.now, s.now); e != c.want {
			t.Errorf("one that shows %v is evidence %d about %v, want %d", c.shown, e, peerIncarnation, c.want)
		}
	}
}

// TestADoubtIsSentOnceASecond: only without a host, and only of an incarnation that is watched.
func TestADoubtIsSentOnceASecond(t *testing.T) {
	s := newSeat(t)
	p, l := paced(s, peerIncarnation)
	if e, doubt := p.Met(l, peerIncarnation, DialUnanswered, s.now); e != LinkRefused || doubt {
		t.Errorf("with a host, an incarnation that is not met is evidence %d, doubt %v, want %d and none", e, doubt, LinkRefused)
	}
	s, incarnations := newLonelySeat(t)
	for _, incarnation := range incarnations {
		p, l = paced(s, incarnation)
		quiet := Fast().Silence / 2
		if _, doubt := p.LineEvidence(l, incarnation, s.now, s.now.Add(quiet-1)); doubt {
			t.Errorf("%v is doubted before half the silence bound", incarnation)
		}
		if _, doubt := p.LineEvidence(l, incarnation, s.now, s.now.Add(quiet)); doubt != s.m.Watches(incarnation) {
			t.Errorf("%v is doubted: %v, watched: %v", incarnation, doubt, s.m.Watches(incarnation))
		}
		if _, doubt := p.Met(l, incarnation, DialUnanswered, s.now.Add(quiet+doubtEvery-1)); doubt {
			t.Errorf("%v is doubted twice in a second", incarnation)
		}
		if _, doubt := p.Met(l, incarnation, DialUnanswered, s.now.Add(quiet+doubtEvery)); doubt != s.m.Watches(incarnation) {
			t.Errorf("%v is doubted again: %v, watched: %v", incarnation, doubt, s.m.Watches(incarnation))
		}
	}
}

// TestAnIncarnationThatIsNotShownMayStillCome: a node that was granted an incarnation shows it a little
// later, unless it has shown it before.
func TestAnIncarnationThatIsNotShownMayStillCome(t *testing.T) {
	s := newSeat(t)
	p, l := paced(s, addr.Incarnation{})
	met := func(after time.Duration, met DialResult) Evidence {
		e, _ := p.Met(l, peerIncarnation, met, s.now.Add(after))
		return e
	}
	silence := Fast().Silence
	if e := met(0, DialNotThere); e != 0 {
		t.Errorf("the first look is evidence %d", e)
	}
	if e := met(silence-1, DialNotThere); e != 0 {
		t.Errorf("a look within the silence bound is evidence %d", e)
	}
	if e := met(silence, DialNotThere); e != LinkFenced {
		t.Errorf("a look after it is evidence %d, want %d", e, LinkFenced)
	}
	if e := met(silence, DialAlive); e != LinkAlive {
		t.Errorf("the incarnation itself is evidence %d, want %d", e, LinkAlive)
	}
	if e := met(silence+1, DialNotThere); e != 0 {
		t.Errorf("the first look after that is evidence %d", e)
	}
	l.Raise(peerIncarnation)
	if e := met(silence+1, DialNotThere); e != LinkFenced {
		t.Errorf("an incarnation that was shown and is not any more is evidence %d, want %d", e, LinkFenced)
	}
	for _, c := range []struct {
		met  DialResult
		want Evidence
	}{{DialUntried, 0}, {DialFenced, LinkFenced}, {DialNewer, LinkReset}} {
		if e := met(0, c.met); e != c.want {
			t.Errorf("result %d is evidence %d, want %d", c.met, e, c.want)
		}
	}
}

func TestDialResultsOfAnIncarnation(t *testing.T) {
	c := Contact{Incarnation: peerIncarnation, Epoch: 3}
	other := addr.Incarnation{Node: peerIncarnation.Node, Generation: peerIncarnation.Generation + 1}
	for _, x := range []struct {
		got, want any
	}{
		{c.Answer(3, peerIncarnation), DialAlive}, {c.Answer(3, other), DialNotThere}, {c.Answer(4, peerIncarnation), DialNewer},
		{DialAlive.Outcome(), RedialAlive}, {DialNotThere.Outcome(), RedialAlive}, {DialNewer.Outcome(), RedialNewer},
		{DialFenced.Outcome(), RedialFailed}, {DialUnanswered.Outcome(), RedialFailed}, {DialUntried.Outcome(), RedialUntried},
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
	p, l := paced(s, peerIncarnation)
	tick := func() time.Duration {
		at, _ := p.Next(s.now)
		return at.Sub(s.now)
	}
	p.BeginLines()
	if !p.Beat(s.now) || p.Beat(s.now) {
		t.Error("signs of life are not due at once, or twice")
	}
	p.LineEvidence(l, peerIncarnation, s.now, s.now)
	if d := tick(); d != Fast().Tick {
		t.Errorf("the next tick comes after %v, want %v", d, Fast().Tick)
	}
	if _, changed := p.Next(s.now); changed {
		t.Error("the next tick changes although nothing happened")
	}
	p.StepMember(s.now, Link{Incarnation: peerIncarnation, Evidence: LinkSilent})
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
