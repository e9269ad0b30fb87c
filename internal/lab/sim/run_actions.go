package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// An action is one action of the schedule that has begun.
type action struct {
	scenario.Action
	rules []*rule
	traps []*trap
	fired uint64
	undo  []func() // in this order
	over  bool
	proof string
}

// begin puts an action in place.
func (r *runner) begin(x scenario.Action) {
	w := r.w
	a := &action{Action: x}
	fault := x.Begun(r.s.Scenario.Cluster, w.now)
	if fault.Until != 0 {
		fault.Until += int64(r.zero)
	}
	fault.Since = 0
	w.put(history.Lab, fault)
	r.open = append(r.open, a)
	rule, ways := faults.Rule{On: faults.All, Cut: true}, x.Touches().Ways
	switch {
	case x.Link != nil:
		rule = x.Link.Rule()
		rule.On = cmp.Or(rule.On, faults.All)
	case x.Network != nil:
		ways = r.network(a, x.Network)
	case x.Node != nil:
		r.each(a, x.Node.ID, nodeEffects[x.Node.Do])
	case x.App != nil:
		r.each(a, x.App.Node, appEffect(x.App))
	case x.Fault != nil:
		r.each(a, x.Fault.Node, r.faultEffect(a, x.Fault))
	}
	for _, way := range ways {
		r.add(a, rule, way.From, way.To)
	}
	switch {
	case x.Until != 0:
		w.after((x.Until - x.At).Time(), func() { r.end(a) })
	case x.Node != nil && x.Node.Do == scenario.Replace:
		w.after(50*time.Millisecond, func() { r.end(a) })
	case a.undo == nil && len(a.rules) == 0 && len(a.traps) == 0:
		r.end(a) // instant
	}
}

// end takes an action back, and proves that it was there.
func (r *runner) end(a *action) {
	if a.over {
		return
	}
	a.over = true
	r.open = without(r.open, a)
	w := r.w
	for _, x := range a.rules {
		w.net.remove(x)
		a.fired += x.fired
	}
	if len(a.rules) > 0 {
		a.proof = fmt.Sprintf("touched %d packets", a.fired)
		w.gossip.changed()
	}
	for _, t := range a.traps {
		t.stopped = true
		a.fired += t.Fired()
	}
	for _, undo := range a.undo {
		undo()
	}
	w.put(history.Lab, &history.FaultEnd{ID: a.ID, Fired: a.fired, Proof: a.proof})
}

// add puts a rule on the links in force.
func (r *runner) add(a *action, rule faults.Rule, from, to []int) {
	if rule.Seed = a.Seed; a.Until != 0 {
		rule.For = faults.Duration(a.Until - a.At)
	}
	x := r.w.net.add(rule, from, to)
	a.rules = append(a.rules, x)
	if rule.Reset {
		for _, f := range from {
			for _, t := range to {
				x.fired += r.w.reset(f, t)
			}
		}
	}
	r.w.gossip.changed()
	if rule.Up > 0 {
		r.flap(x)
	}
}

// flap has gossip look again whenever a flapping rule changes.
func (r *runner) flap(x *rule) {
	_, next := x.Acts(r.w.now - x.since)
	if next == 0 {
		return
	}
	r.w.after(x.since+next-r.w.now, func() {
		if slices.Contains(r.w.net.rules, x) {
			r.w.gossip.changed()
			r.flap(x)
		}
	})
}

// network returns the directed links that an action on networks cuts.
func (r *runner) network(a *action, n *scenario.Network) []history.Way {
	if n.Do != scenario.Disconnect {
		a.fired, a.proof = 1, "what ICMP reports to the kernel changes nothing of a session"
		a.undo = []func(){func() {}}
		return nil
	}
	var all []int
	for _, m := range r.w.machines {
		all = append(all, m.index)
	}
	return []history.Way{{From: n.Node.IDs(), To: all}, {From: all, To: n.Node.IDs()}}
}

// An effect is what an action does to each of its machines.
type effect struct {
	do   func(*runner, *machine) bool // reports whether there was something to do it to
	undo func(*runner, *machine)      // at the end of the action; nil: nothing
	ends bool                         // it is undone with the run at the latest
}

// each has an effect on machines.
func (r *runner) each(a *action, set scenario.NodeSet, x effect) {
	for _, id := range set.IDs() {
		m := r.w.machines[id]
		if x.do(r, m) {
			a.fired++
		}
		if x.undo != nil && (x.ends || a.Until != 0) {
			a.undo = append(a.undo, func() { x.undo(r, m) })
		}
	}
}

var nodeEffects = map[scenario.NodeDo]effect{
	scenario.Kill:      {do: func(r *runner, m *machine) bool { return r.w.kill(m, history.DidKill, "") }, undo: (*runner).start},
	scenario.Terminate: {do: (*runner).terminate, undo: (*runner).start},
	scenario.Stop: {do: func(r *runner, m *machine) bool { return r.w.freeze(m) },
		undo: func(r *runner, m *machine) { r.w.thaw(m) }, ends: true},
	scenario.Start: {do: func(r *runner, m *machine) bool {
		off := m.proc == nil
		r.start(m)
		return off
	}},
	scenario.Replace: {do: func(r *runner, m *machine) bool {
		r.w.kill(m, history.DidKill, "")
		r.w.wipe(m)
		return true
	}, undo: (*runner).start, ends: true},
}

// start starts a fabricd, and an application where none runs yet.
func (r *runner) start(m *machine) {
	r.w.boot(m)
	if m.app == nil {
		r.w.startApp(m)
	}
}

// terminate asks a fabricd to leave and end.
func (r *runner) terminate(m *machine) bool {
	p := m.proc
	if p == nil {
		return false
	}
	r.w.did(p.source(), history.DidTerminate, "")
	p.soon(p.leave)
	return true
}

// appEffect is the effect of an action on applications.
func appEffect(x *scenario.App) effect {
	running := func(do func(a *app)) func(*runner, *machine) bool {
		return func(_ *runner, m *machine) bool {
			if m.app == nil || m.app.p.dead {
				return false
			}
			do(m.app)
			return true
		}
	}
	switch x.Do {
	case scenario.AppKill:
		return effect{do: running((*app).kill), undo: (*runner).startApp}
	case scenario.AppStop:
		return effect{do: running((*app).stop), undo: (*runner).proceed, ends: true}
	case scenario.AppSlow:
		return effect{do: running(func(a *app) { a.slow = x.Rate }), undo: (*runner).fast, ends: true}
	}
	return effect{do: running((*app).restart)}
}

func (r *runner) startApp(m *machine) {
	if m.app == nil || m.app.p.dead {
		r.w.startApp(m)
	}
}

// proceed has a stopped application go on.
func (r *runner) proceed(m *machine) {
	if m.app != nil && m.app.p.paused {
		r.w.did(m.app.src, history.DidContinue, "")
		m.app.p.proceed()
	}
}

// fast has the application of a machine receive as fast as it can.
func (r *runner) fast(m *machine) {
	if m.app != nil {
		m.app.slow = 0
	}
}

// faultEffect is the effect of a fault inside of a fabricd, or of a slow application.
func (r *runner) faultEffect(a *action, f *scenario.Fault) effect {
	switch {
	case f.Kind == scenario.FaultDisk:
		return r.disk(a, f)
	case f.Kind == scenario.FaultSlow: // each receive takes so much longer
		rate := max(int(time.Second/max(f.Delay.Time(), time.Millisecond)), 1)
		return effect{do: func(_ *runner, m *machine) bool {
			if m.app != nil {
				m.app.slow = rate
			}
			return m.app != nil
		}, undo: (*runner).fast, ends: true}
	case f.Step != "":
		return effect{do: func(r *runner, m *machine) bool {
			r.arm(a, m, f)
			return false // its trap counts
		}}
	}
	return effect{do: func(r *runner, m *machine) bool {
		ran := r.w.kill(m, history.DidCrash, "")
		r.restart(m, f)
		return ran
	}}
}

func (r *runner) restart(m *machine, f *scenario.Fault) {
	if f.Restart > 0 {
		r.w.after(f.Restart.Time(), func() { r.start(m) })
	}
}

// arm sets a trap at a step. A delay stops the whole process for its time, where a real
// one holds up only the goroutine at that step.
func (r *runner) arm(a *action, m *machine, f *scenario.Fault) {
	w := r.w
	info, _ := failpoint.FindStep(string(f.Step))
	point := f.Point(a.Seed + uint64(m.index)) // each machine has its own luck
	t := &trap{step: info.Step, Trigger: point.Arm(info.Step)}
	if f.Within > 0 {
		t.until = w.now + f.Within.Time()
		w.after(f.Within.Time(), func() {
			if !t.stopped {
				r.end(a)
			}
		})
	}
	t.spring = func(p *proc) {
		if f.Kind == scenario.FaultCrash {
			w.kill(m, history.DidCrash, string(f.Step))
			r.restart(m, f)
			return
		}
		if w.freeze(m) {
			w.after(f.For.From.Time(), func() { w.thaw(m) })
		}
	}
	a.traps = append(a.traps, t)
	m.armed = append(slices.DeleteFunc(m.armed, func(o *trap) bool { return o.stopped }), t)
}

// disk is the effect of a fault of a disk.
func (r *runner) disk(a *action, f *scenario.Fault) effect {
	before := make(map[*machine]uint64) // writes that failed
	return effect{do: func(_ *runner, m *machine) bool {
		d := &m.disk
		before[m] = d.refused
		switch f.Disk {
		case "full", "read-only":
			d.full = true
		case "sync":
			d.failing = true
		default:
			d.slow = f.Delay.Time()
		}
		return d.slow != 0
	}, undo: func(_ *runner, m *machine) {
		m.disk.full, m.disk.failing, m.disk.slow = false, false, 0
		a.fired += m.disk.refused - before[m]
	}, ends: true}
}
