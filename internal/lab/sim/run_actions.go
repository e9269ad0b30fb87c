package sim

import (
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
	switch {
	case x.Link != nil:
		r.link(a, x.Link)
	case x.Partition != nil:
		r.partition(a)
	case x.Network != nil:
		r.network(a, x.Network)
	case x.Node != nil:
		r.node(a, x.Node)
	case x.App != nil:
		r.app(a, x.App)
	case x.Fault != nil:
		r.fault(a, x.Fault)
	}
	switch {
	case x.Until != 0:
		w.after((x.Until - x.At).Time(), func() { r.end(a) })
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

func (r *runner) link(a *action, l *scenario.Link) {
	rule := l.Rule()
	if rule.On == "" {
		rule.On = faults.All
	}
	r.add(a, rule, l.From.IDs(), l.To.IDs())
	if l.Both {
		r.add(a, rule, l.To.IDs(), l.From.IDs())
	}
}

func (r *runner) partition(a *action) {
	for _, w := range a.Touches().Ways {
		r.add(a, faults.Rule{On: faults.All, Cut: true}, w.From, w.To)
	}
}

func (r *runner) network(a *action, n *scenario.Network) {
	if n.Do != scenario.Disconnect {
		a.fired, a.proof = 1, "what the kernel is told by ICMP changes nothing of a session"
		a.undo = []func(){func() {}}
		return
	}
	var all []int
	for _, m := range r.w.machines {
		all = append(all, m.index)
	}
	r.add(a, faults.Rule{On: faults.All, Cut: true}, n.Node.IDs(), all)
	r.add(a, faults.Rule{On: faults.All, Cut: true}, all, n.Node.IDs())
}

func (r *runner) node(a *action, n *scenario.Node) {
	w := r.w
	for _, id := range n.ID.IDs() {
		m := w.machines[id]
		switch n.Do {
		case scenario.Kill:
			r.did(a, m.proc != nil)
			w.kill(m, history.DidKill, "")
		case scenario.Terminate:
			r.did(a, m.proc != nil)
			r.terminate(m)
		case scenario.Stop:
			r.did(a, w.freeze(m))
		case scenario.Start:
			r.did(a, m.proc == nil)
			r.start(m)
		case scenario.Replace:
			r.did(a, true)
			w.kill(m, history.DidKill, "")
			w.wipe(m)
		}
	}
	switch n.Do {
	case scenario.Kill, scenario.Terminate:
		if a.Until != 0 {
			a.atEnd(r, n.ID, r.start)
		}
	case scenario.Stop:
		a.atEnd(r, n.ID, w.thaw)
	case scenario.Replace:
		a.atEnd(r, n.ID, r.start)
		if a.Until == 0 {
			w.after(50*time.Millisecond, func() { r.end(a) })
		}
	}
}

func (r *runner) did(a *action, yes bool) {
	if yes {
		a.fired++
	}
}

// atEnd does something to machines when the action is taken back.
func (a *action) atEnd(r *runner, set scenario.NodeSet, f func(*machine)) {
	for _, id := range set.IDs() {
		a.undo = append(a.undo, func() { f(r.w.machines[id]) })
	}
}

// fast has the application of a machine receive as fast as it can.
func (m *machine) fast() {
	if m.app != nil {
		m.app.slow = 0
	}
}

// start starts a fabricd, and an application where none runs yet.
func (r *runner) start(m *machine) {
	r.w.boot(m)
	if m.app == nil {
		r.w.startApp(m)
	}
}

// terminate asks a fabricd to leave and end.
func (r *runner) terminate(m *machine) {
	p := m.proc
	if p == nil {
		return
	}
	r.w.did(p.source(), history.DidTerminate, "")
	p.soon(func() { p.leave() })
}

func (r *runner) app(a *action, x *scenario.App) {
	w := r.w
	for _, id := range x.Node.IDs() {
		m := w.machines[id]
		if m.app == nil {
			continue
		}
		running := !m.app.p.dead
		switch x.Do {
		case scenario.AppKill:
			r.did(a, running)
			w.did(m.app.src, history.DidKill, "")
			m.app.kill()
		case scenario.AppStop:
			r.did(a, running)
			w.did(m.app.src, history.DidStop, "")
			m.app.p.stop()
		case scenario.AppSlow:
			r.did(a, running)
			m.app.slow = x.Rate
		case scenario.AppClose:
			r.did(a, running)
			m.app.anew()
		}
	}
	switch x.Do {
	case scenario.AppKill:
		if a.Until != 0 {
			a.atEnd(r, x.Node, r.startApp)
		}
	case scenario.AppStop:
		a.atEnd(r, x.Node, func(m *machine) {
			if m.app != nil && m.app.p.paused {
				w.did(m.app.src, history.DidContinue, "")
				m.app.p.proceed()
			}
		})
	case scenario.AppSlow:
		a.atEnd(r, x.Node, (*machine).fast)
	}
}

func (r *runner) startApp(m *machine) {
	if m.app == nil || m.app.p.dead {
		r.w.startApp(m)
	}
}

// fault puts a fault inside the fabricd of slots.
func (r *runner) fault(a *action, f *scenario.Fault) {
	w := r.w
	for _, id := range f.Node.IDs() {
		m := w.machines[id]
		switch {
		case f.Kind == scenario.FaultDisk:
			r.disk(a, m, f)
		case f.Kind == scenario.FaultSlow:
			r.slow(a, m, f)
		case f.Step != "":
			r.arm(a, m, f)
		default: // a crash
			r.did(a, m.proc != nil)
			w.kill(m, history.DidCrash, "")
			r.restart(m, f)
		}
	}
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

func (r *runner) disk(a *action, m *machine, f *scenario.Fault) {
	d := &m.disk
	before := d.refused
	switch f.Disk {
	case "full", "read-only":
		d.full = true
	case "sync":
		d.failing = true
	default:
		d.slow = f.Delay.Time()
		a.fired++
	}
	a.undo = append(a.undo, func() {
		d.full, d.failing, d.slow = false, false, 0
		a.fired += d.refused - before
	})
}

// slow makes the application of a slot receive slowly: each receive takes so
// much longer.
func (r *runner) slow(a *action, m *machine, f *scenario.Fault) {
	if m.app == nil {
		return
	}
	r.did(a, true)
	m.app.slow = max(int(time.Second/max(f.Delay.Time(), time.Millisecond)), 1)
	a.undo = append(a.undo, m.fast)
}
