package portmap_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/portmap"
)

// model counts holders and searches for a free port one by one.
type model map[addr.Port]int

func (m model) bind(port addr.Port, admin bool) (addr.Port, error) {
	if port > 0 && port < 1024 && !admin {
		return 0, status.Access
	}
	if port == 0 {
		for _, p := range chosenInOrder {
			if m[p] == 0 {
				m[p] = 1
				return p, nil
			}
		}
		return 0, status.NoSpace
	}
	if m[port] > 0 {
		return 0, status.Invalid
	}
	m[port] = 1
	return port, nil
}

// chosenInOrder are the ports that Bind chooses, the preferred first.
var chosenInOrder = func() (all []addr.Port) {
	for p := 32768; p <= 65535; p++ {
		all = append(all, addr.Port(p))
	}
	for p := 1088; p < 32768; p++ {
		all = append(all, addr.Port(p))
	}
	return all
}()

// anyPort prefers the edges of the port ranges and of the table's words.
func anyPort(t *rapid.T) addr.Port {
	return addr.Port(rapid.OneOf(
		rapid.SampledFrom([]uint16{0, 1, 1023, 1024, 1087, 1088, 1089, 1151, 1152, 4095, 4096, 32767, 32768, 32769, 36863, 36864, 65534, 65535}),
		rapid.Uint16Range(1080, 1300),
		rapid.Uint16Range(32700, 33000),
		rapid.Uint16(),
	).Draw(t, "port"))
}

func TestTableAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb, m := portmap.New(), model{}
		t.Repeat(map[string]func(*rapid.T){
			"bind": func(t *rapid.T) {
				port, admin := anyPort(t), rapid.Bool().Draw(t, "admin")
				want, wantErr := m.bind(port, admin)
				if got, err := tb.Bind(port, admin); got != want || err != wantErr {
					t.Fatalf("Bind(%d, %v) = %d, %v; want %d, %v", port, admin, got, err, want, wantErr)
				}
			},
			"fill": func(t *rapid.T) { // so that whole words are taken
				for range rapid.IntRange(1, 150).Draw(t, "n") {
					want, _ := m.bind(0, false)
					if got, err := tb.Bind(0, false); got != want || err != nil {
						t.Fatalf("Bind(0) = %d, %v; want %d", got, err, want)
					}
				}
			},
			"retain": func(t *rapid.T) {
				p := drawBound(t, m)
				tb.Retain(p)
				m[p]++
			},
			"release": func(t *rapid.T) {
				p := drawBound(t, m)
				m[p]--
				if got, want := tb.Release(p), m[p] == 0; got != want {
					t.Fatalf("Release(%d) = %v, want %v", p, got, want)
				}
				if m[p] == 0 {
					delete(m, p)
				}
			},
			"": func(t *rapid.T) { compareTable(t, tb, m) },
		})
	})
}

func sortedPorts(m model) []addr.Port {
	out := make([]addr.Port, 0, len(m))
	for p := range m {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

func drawBound(t *rapid.T, m model) addr.Port {
	if len(m) == 0 {
		t.Skip("nothing is bound")
	}
	return rapid.SampledFrom(sortedPorts(m)).Draw(t, "bound")
}

func compareTable(t *rapid.T, tb *portmap.Table, m model) {
	if tb.Len() != len(m) {
		t.Fatalf("Len = %d, want %d", tb.Len(), len(m))
	}
	bound := slices.Collect(tb.Bound())
	if !slices.Equal(bound, sortedPorts(m)) {
		t.Fatalf("Bound = %v, want %v", bound, sortedPorts(m))
	}
	for _, p := range bound {
		if tb.Holders(p) != m[p] {
			t.Fatalf("Holders(%d) = %d, want %d", p, tb.Holders(p), m[p])
		}
	}
}

func TestBindChecksPrivilegeBeforeUse(t *testing.T) {
	var tb portmap.Table
	if _, err := tb.Bind(7, true); err != nil {
		t.Fatal(err)
	}
	if _, err := tb.Bind(7, false); !errors.Is(err, status.Access) {
		t.Errorf("Bind of a taken privileged port without privilege: %v, want status.Access", err)
	}
	if _, err := tb.Bind(7, true); !errors.Is(err, status.Invalid) {
		t.Errorf("Bind of a taken port: %v, want status.Invalid", err)
	}
}

func TestPortSpaceRunsOutAndComesBack(t *testing.T) {
	var tb portmap.Table
	for _, want := range chosenInOrder {
		if got, err := tb.Bind(0, false); got != want || err != nil {
			t.Fatalf("Bind(0) = %d, %v; want %d", got, err, want)
		}
	}
	if p, err := tb.Bind(0, true); p != 0 || !errors.Is(err, status.NoSpace) {
		t.Errorf("Bind(0) without a free port = %d, %v; want status.NoSpace", p, err)
	}
	if _, err := tb.Bind(1087, false); err != nil {
		t.Errorf("a reserved port is bindable by number: %v", err)
	}
	for _, p := range []addr.Port{65535, 1088, 30000, 40000} {
		if !tb.Release(p) {
			t.Errorf("Release(%d) kept the port", p)
		}
	}
	for _, want := range []addr.Port{40000, 65535, 1088, 30000} {
		if got, err := tb.Bind(0, false); got != want || err != nil {
			t.Errorf("Bind(0) = %d, %v; want the lowest free port, a low one only when no other is, %d", got, err, want)
		}
	}
}

func TestPortIsHeldByAcceptedEndpoints(t *testing.T) {
	var tb portmap.Table
	tb.Bind(2050, false) // the listener
	tb.Retain(2050)      // an endpoint accepted from it
	if tb.Release(2050) {
		t.Error("the port is free though an accepted endpoint holds it")
	}
	if _, err := tb.Bind(2050, false); !errors.Is(err, status.Invalid) {
		t.Errorf("Bind = %v, want status.Invalid", err)
	}
	if !tb.Release(2050) {
		t.Error("the port is not free after its last holder")
	}
	if _, err := tb.Bind(2050, false); err != nil {
		t.Errorf("Bind of a freed port: %v", err)
	}
}

func TestHoldingAFreePortIsABug(t *testing.T) {
	for name, f := range map[string]func(*portmap.Table){
		"Retain":  func(tb *portmap.Table) { tb.Retain(5) },
		"Release": func(tb *portmap.Table) { tb.Release(5) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a free port did not panic", name)
				}
			}()
			f(portmap.New())
		}()
	}
}

func TestBacklogAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(-1, 6).Draw(t, "limit")
		b := portmap.NewBacklog[int](limit)
		room := max(limit, 1)
		var m []int
		anyValue := rapid.IntRange(0, 5)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				v := anyValue.Draw(t, "v")
				want := len(m) < room
				if got := b.Push(v); got != want {
					t.Fatalf("Push beside %d of %d = %v", len(m), room, got)
				}
				if want {
					m = append(m, v)
				}
			},
			"pop": func(t *rapid.T) {
				v, ok := b.Pop()
				if ok != (len(m) > 0) || ok && v != m[0] {
					t.Fatalf("Pop = %d, %v; want the first of %v", v, ok, m)
				}
				if ok {
					m = m[1:]
				}
			},
			"remove": func(t *rapid.T) {
				v := anyValue.Draw(t, "v")
				i := slices.Index(m, v)
				if got := b.Remove(v); got != (i >= 0) {
					t.Fatalf("Remove(%d) of %v = %v", v, m, got)
				}
				if i >= 0 {
					m = slices.Delete(slices.Clone(m), i, i+1)
				}
			},
			"drain": func(t *rapid.T) {
				if got := b.Drain(); !slices.Equal(got, m) {
					t.Fatalf("Drain = %v, want %v", got, m)
				}
				m = nil
			},
			"": func(t *rapid.T) {
				if b.Len() != len(m) || b.Limit() != room {
					t.Fatalf("%d of %d, want %d of %d", b.Len(), b.Limit(), len(m), room)
				}
			},
		})
	})
}

func TestBacklogIsClamped(t *testing.T) {
	for limit, want := range map[int]int{-1 << 40: 1, 0: 1, 1: 1, 5: 5, 1024: 1024, 1025: 1024, 1 << 40: 1024} {
		if got := portmap.NewBacklog[int](limit).Limit(); got != want {
			t.Errorf("NewBacklog(%d) has room for %d, want %d", limit, got, want)
		}
	}
	var zero portmap.Backlog[int]
	if !zero.Push(1) || zero.Push(2) {
		t.Error("the zero Backlog does not have room for exactly one")
	}
}

func BenchmarkBindLowestFreeOfAFullTable(b *testing.B) {
	tb := portmap.New()
	for range chosenInOrder {
		tb.Bind(0, false)
	}
	b.ReportAllocs()
	for b.Loop() {
		tb.Release(65535)
		if p, _ := tb.Bind(0, false); p != 65535 {
			b.Fatal(p)
		}
	}
}

func TestChosenPortsAreAllowed(t *testing.T) {
	tb := portmap.New()
	odd := func(p addr.Port) bool { return p%2 == 1 }
	for _, want := range []addr.Port{addr.FirstEphemeral + 1, addr.FirstEphemeral + 3} {
		if got, err := tb.BindAllowed(0, false, odd); got != want || err != nil {
			t.Errorf("chose %d, %v, want %d", got, err, want)
		}
	}
	if got, err := tb.BindAllowed(0, false, func(addr.Port) bool { return false }); err != status.NoSpace {
		t.Errorf("nothing is allowed: chose %d, %v", got, err)
	}
	if got, err := tb.Bind(0, false); got != addr.FirstEphemeral || err != nil {
		t.Errorf("everything is allowed: chose %d, %v", got, err)
	}
}
