package history

import (
	"fmt"
	"slices"
)

// MaxText bounds every text of a record, in bytes.
const MaxText = 4096

// MaxList bounds every list of a record.
const MaxList = 1 << 14

func bad(field string, value any, allowed string) error {
	return fmt.Errorf("%s: %v: want %s", field, value, allowed)
}

// texts reports the first text that is too long; names and texts alternate.
func texts(pairs ...string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if len(pairs[i+1]) > MaxText {
			return bad(pairs[i], fmt.Sprintf("%d bytes", len(pairs[i+1])), fmt.Sprintf("at most %d", MaxText))
		}
	}
	return nil
}

func oneOf[T ~string](field string, v T, allowed ...T) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	return bad(field, fmt.Sprintf("%q", string(v)), fmt.Sprintf("one of %v", allowed))
}

func slots(field string, list []int) error {
	if len(list) > MaxList {
		return bad(field, len(list), fmt.Sprintf("at most %d", MaxList))
	}
	for _, s := range list {
		if s < 0 || s > MaxSlot {
			return bad(field, s, fmt.Sprintf("slots 0…%d", MaxSlot))
		}
	}
	return nil
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func unless(ok bool, field string, value any, allowed string) error {
	if ok {
		return nil
	}
	return bad(field, value, allowed)
}

func (b *Begin) check() error {
	for _, name := range b.Names {
		if err := texts("names", name); err != nil {
			return err
		}
	}
	return first(
		unless(b.Version == Version, "version", b.Version, fmt.Sprint(Version)),
		unless(b.Nodes >= 1 && b.Nodes <= MaxSlot+1, "nodes", b.Nodes, fmt.Sprintf("1…%d", MaxSlot+1)),
		unless(len(b.Names) <= b.Nodes, "names", len(b.Names), "at most one for each slot"),
		unless(b.Duration >= 0, "duration", b.Duration, "at least 0"),
		oneOf("detection", b.Detection, "fast", "normal", "calm"),
		oneOf("lost_pair", b.LostPair, "", "reset", "evict"),
		oneOf("paths", b.Paths, "", PathsLazy, PathsOff),
		oneOf("lab", b.Lab, "sim", "local", "netns", "compose"),
		texts("scenario", b.Scenario, "build", b.Build, "started", b.Started, "command", b.Command))
}

func (*Timeline) check() error { return nil }

func (b *End) check() error { return texts("why", b.Why) }

func (b *Fault) check() error {
	if err := first(
		unless(b.ID >= 1, "id", b.ID, "at least 1"),
		unless(b.Step >= 0, "step", b.Step, "at least 0"),
		unless(b.Round >= 0, "round", b.Round, "at least 0"),
		unless(b.Since >= 0, "since", b.Since, "at least 0"),
		unless(b.Until >= 0, "until", b.Until, "at least 0"),
		unless(len(b.Ways) <= MaxList, "ways", len(b.Ways), fmt.Sprintf("at most %d", MaxList)),
		slots("nodes", b.Nodes), slots("apps", b.Apps),
		oneOf("harm", b.Harm, HarmNone, HarmReset, HarmRemove),
		texts("what", b.What)); err != nil {
		return err
	}
	for _, w := range b.Ways {
		if err := first(slots("ways", w.From), slots("ways", w.To)); err != nil {
			return err
		}
	}
	return nil
}

func (b *FaultEnd) check() error {
	return first(unless(b.ID >= 1, "id", b.ID, "at least 1"), texts("proof", b.Proof, "err", b.Err))
}

func (b *Process) check() error {
	if err := b.Target.check(); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return first(
		oneOf("did", b.Did, DidStart, DidKill, DidTerminate, DidStop, DidContinue, DidExit, DidCrash),
		texts("detail", b.Detail))
}

func (b *Event) check() error {
	return first(
		oneOf("what", b.What, EventAdded, EventRemoved, EventSelf, EventReset, EventHost),
		unless(b.What == EventHost || b.Subject.Generation != 0, "subject", b.Subject, "an incarnation, of a generation above 0"),
		texts("reason", b.Reason))
}

func (b *View) check() error {
	return unless(len(b.Live) <= MaxList, "live", len(b.Live), fmt.Sprintf("at most %d", MaxList))
}

func (b *Call) check() error {
	err := first(
		unless(b.ID != 0, "id", b.ID, "at least 1"),
		unless(b.Name != "" && len(b.Name) <= 64, "name", len(b.Name), "1…64 bytes"),
		unless(b.Began >= 0, "began", b.Began, "at least 0"),
		unless(b.Deadline >= 0, "deadline", b.Deadline, "at least 0"))
	if err == nil && b.Side != "" {
		err = oneOf("side", b.Side, Client, Server)
	}
	return err
}

func (b *Return) check() error {
	return first(b.Call.check(),
		unless(b.Bytes >= 0, "bytes", b.Bytes, "at least 0"),
		unless(len(b.Status) <= 64, "status", len(b.Status), "at most 64 bytes"))
}

func (e ConnEnd) check() error {
	return first(unless(e.Conn != 0, "conn", e.Conn, "not 0"), oneOf("side", e.Side, Client, Server))
}

func (r Range) check() error {
	return unless(r.From >= 0 && r.To >= r.From, "from", fmt.Sprintf("[%d, %d)", r.From, r.To), "0 <= from <= to")
}

func notNegative(field string, v *int64) error {
	return unless(v == nil || *v >= 0, field, v, "at least 0")
}

func (b *Opened) check() error { return b.ConnEnd.check() }

func (b *Closed) check() error {
	return first(b.ConnEnd.check(), unless(b.How != "" && len(b.How) <= 64, "how", len(b.How), "1…64 bytes"))
}

func (b *Offered) check() error { return first(b.ConnEnd.check(), b.Range.check()) }
func (b *Sent) check() error    { return first(b.ConnEnd.check(), b.Range.check()) }

func (b *Received) check() error {
	return first(b.ConnEnd.check(), b.Range.check(), notNegative("bad", b.Bad))
}

func (b *RMA) check() error {
	return first(b.ConnEnd.check(),
		unless(b.Op != 0, "op", b.Op, "at least 1"),
		unless(b.Name != "" && len(b.Name) <= 64, "name", len(b.Name), "1…64 bytes"),
		unless(b.Offset >= 0, "offset", b.Offset, "at least 0"),
		unless(b.Len >= 1, "len", b.Len, "at least 1"))
}

func (b *RMADone) check() error {
	return first(b.ConnEnd.check(), unless(b.Op != 0, "op", b.Op, "at least 1"),
		unless(len(b.Status) <= 64, "status", len(b.Status), "at most 64 bytes"), notNegative("bad", b.Bad))
}

func (b *Fenced) check() error {
	return first(b.ConnEnd.check(), unless(len(b.Status) <= 64, "status", len(b.Status), "at most 64 bytes"))
}

func (b *Checked) check() error { return b.ConnEnd.check() }

func (b *Signal) check() error {
	return first(b.ConnEnd.check(), unless(b.Value != 0, "value", b.Value, "at least 1"))
}

func (b *SignalSeen) check() error { return b.ConnEnd.check() }

func (b *Window) check() error {
	return first(b.ConnEnd.check(),
		unless(b.ID != 0, "id", b.ID, "at least 1"),
		unless(b.Offset >= 0, "offset", b.Offset, "at least 0"),
		unless(b.Len >= 1, "len", b.Len, "at least 1"))
}

func (b *WindowGone) check() error { return unless(b.ID != 0, "id", b.ID, "at least 1") }

func (b *Scan) check() error {
	return first(
		unless(b.ID != 0, "id", b.ID, "at least 1"),
		unless(min(b.Words, b.Unknown, b.Guard, b.Misplaced) >= 0, "words", b.Words, "counts of at least 0"),
		unless(len(b.Writers) <= MaxList, "writers", len(b.Writers), fmt.Sprintf("at most %d", MaxList)))
}

func (b *Resources) check() error {
	if err := b.Target.check(); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	for name, n := range b.Count {
		if !slices.Contains(ResourceNames, name) {
			return bad("count", fmt.Sprintf("%q", name), fmt.Sprintf("one of %v", ResourceNames))
		}
		if n < 0 {
			return bad("count."+name, n, "at least 0")
		}
	}
	if min(b.Used, b.UsedAt) < 0 {
		return bad("used", min(b.Used, b.UsedAt), "at least 0")
	}
	return oneOf("phase", b.Phase, PhaseBaseline, PhaseEnd)
}

func (b *Paths) check() error {
	if err := b.Target.check(); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return first(
		unless(b.New >= 0 && b.Paths >= b.New, "paths", b.Paths, "at least as many as are new"),
		unless(b.Conns >= b.Paths, "conns", b.Conns, "at least as many as have a path"))
}

func (b *Logged) check() error {
	if err := b.Target.check(); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return texts("line", b.Line)
}

func (b *Stall) check() error {
	if b.For <= 0 {
		return bad("for", b.For, "more than 0")
	}
	return nil
}

func (b *Note) check() error { return texts("text", b.Text) }
