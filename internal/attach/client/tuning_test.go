package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

func TestSettingsOfAnApplication(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want tuning
		says string // of the error; empty: none
	}{
		{nil, tuning{spin: -1}, ""},
		{map[string]string{"FABRIC_LATENCY": "low", "FABRIC_SPIN": "5", "FABRIC_HUGE_PAGES": "try"}, tuning{true, 5, shm.HugeTry}, ""},
		{map[string]string{"FABRIC_SPIN": "0", "FABRIC_HUGE_PAGES": "off"}, tuning{spin: 0}, ""},
		{map[string]string{"FABRIC_SPIN": "16777216", "FABRIC_HUGE_PAGES": "require"}, tuning{false, 1 << 24, shm.HugeRequire}, ""},
		{map[string]string{"FABRIC_SPIN": "16777217"}, tuning{}, `FABRIC_SPIN is "16777217", want a number of polls from 0 to 16777216`},
		{map[string]string{"FABRIC_SPIN": "-1"}, tuning{}, "from 0 to 16777216"},
		{map[string]string{"FABRIC_SPIN": "10us"}, tuning{}, "from 0 to 16777216"},
		{map[string]string{"FABRIC_SPIN": "99999999999999999999"}, tuning{}, "from 0 to 16777216"},
		{map[string]string{"FABRIC_SPIN": "0", "FABRIC_LATENCY": "low"}, tuning{}, "FABRIC_LATENCY is low"},
		{map[string]string{"FABRIC_HUGE_PAGES": "yes"}, tuning{}, `FABRIC_HUGE_PAGES is "yes", want off, try or require`},
		{map[string]string{"FABRIC_LATENCY": "lower"}, tuning{}, "want low or normal"},
	} {
		got, err := readTuning(func(name string) string { return c.env[name] })
		if c.says == "" && (err != nil || got != c.want) {
			t.Errorf("%v: %+v, %v, want %+v", c.env, got, err, c.want)
		}
		if c.says != "" && (!errors.Is(err, status.Invalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v: %v, want it to say %q", c.env, err, c.says)
		}
	}
}

func TestSpinnerLooksAsOftenAsItMay(t *testing.T) {
	for _, c := range []struct {
		tuning
		first, tenth int // polls of the first and the tenth futile wait
	}{
		{tuning{spin: 0}, 0, 0},
		{tuning{spin: 100}, 13, 0}, // an eighth; it does not pay: half as often each time
		{tuning{spin: 1 << 15}, 1 << 12, 1 << 3},
		{tuning{low: true, spin: 100}, 100, 100},
	} {
		s := c.spinner()
		looks := 0
		for i := range 10 {
			looks = 0
			if s.watch(func() bool { looks++; return false }, func() bool { return false }) {
				t.Fatal("nothing was seen")
			}
			if i == 0 && looks != c.first {
				t.Errorf("%+v: %d looks, want %d", c.tuning, looks, c.first)
			}
		}
		if looks != c.tenth {
			t.Errorf("%+v: %d looks at last, want %d", c.tuning, looks, c.tenth)
		}
	}
	s := tuning{spin: 64}.spinner()
	for range 200 { // until it has tried again, and then it pays
		s.watch(func() bool { return false }, func() bool { return false })
	}
	for range 200 {
		s.watch(func() bool { return true }, func() bool { return false })
	}
	if got := s.budget.Polls(); got != 64 {
		t.Errorf("watching pays and its budget is %d, want all 64", got)
	}
}

// Both sides use the node's settings, at the bounds too, and the stream is the same with any of
// them.
func TestRingsAreTheNodes(t *testing.T) {
	for _, p := range []ring.Params{
		{Slots: ring.MinSlots, Data: ring.MinData, Release: 0},
		{Slots: ring.MinSlots, Data: ring.MinData, Release: ring.MaxRelease},
		{Slots: 1 << 12, Data: 1 << 21, Release: 50},
	} {
		s := serve(t, func(o *server.Options) { o.Rings = p })
		a, b := overShmPath(t, s)
		for _, e := range []attach.Endpoint{a, b} {
			if got := e.(*endpoint).shmPath.Load().in.Params; got != p {
				t.Errorf("ring of %+v, want %+v", got, p)
			}
		}
		var wg sync.WaitGroup
		for i, d := range [][2]attach.Endpoint{{a, b}, {b, a}} {
			wg.Go(func() { sendCounted(t, d[0], 150_000, rand.New(rand.NewPCG(1, uint64(i)))) })
			wg.Go(func() { recvCounted(t, d[1], 150_000, rand.New(rand.NewPCG(2, uint64(i)))) })
		}
		wg.Wait()
		a.Close()
		b.Close()
		s.stop()
	}
}

func TestNewServerRefusesRingsThatCannotBe(t *testing.T) {
	_, err := server.NewServer(context.Background(), server.Options{Rings: ring.Params{Slots: 5, Data: ring.MinData}})
	if !errors.Is(err, status.Invalid) || !strings.Contains(err.Error(), "slots 5, want a power of two from 4 to 65536") {
		t.Errorf("NewServer = %v", err)
	}
}

// withoutHuge takes the kernel's huge pages from this process until the test ends.
func withoutHuge(t *testing.T) {
	t.Helper()
	set := func(on uintptr) {
		const disable = 41 // PR_SET_THP_DISABLE
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, disable, on, 0, 0, 0, 0); e != 0 {
			t.Fatal("prctl: ", e)
		}
	}
	set(1)
	t.Cleanup(func() { set(0) })
}

// mebibyte are rings that fill a huge page.
var mebibyte = ring.Params{Slots: 256, Data: 1 << 20, Release: 25}

// ways returns the paths that the fake node has recorded for the endpoints' messages.
func (s *service) ways() (all [][2]string) {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	for sess := range s.node.sessions {
		for e := range sess.eps {
			all = append(all, e.via)
		}
	}
	return all
}

func TestShmPathWithoutHugePagesSaysWhy(t *testing.T) {
	withoutHuge(t)
	s := serve(t, func(o *server.Options) { o.Rings, o.HugePages = mebibyte, shm.HugeTry })
	a, b := overShmPath(t, s)
	exchange(t, a, b, 100)
	eventually(t, "both ways are reported with the reason", func() bool {
		for _, via := range s.ways() {
			if via[0] != attach.ViaShmPath || !strings.HasPrefix(via[1], "small pages: this kernel ") {
				return false
			}
		}
		return true
	})
}

func TestNoShmPathWithoutHugePagesThatAreRequired(t *testing.T) {
	withoutHuge(t)
	s := serve(t, func(o *server.Options) { o.Rings, o.HugePages = mebibyte, shm.HugeRequire })
	a, b := connect(t, s.dial(t), s.dial(t))
	for range shmPathAfter[1] + 1 {
		exchange(t, a, b, 1)
	}
	eventually(t, "the reason is reported", func() bool {
		for _, via := range s.ways() {
			if via[0] != attach.ViaSocket || !strings.Contains(via[1], "huge pages are required: this kernel ") {
				return false
			}
		}
		return a.(*endpoint).shmPath.Load() == nil && b.(*endpoint).shmPath.Load() == nil
	})
	exchange(t, a, b, 10)
}

func TestShmPathInHugePages(t *testing.T) {
	if err := server.CheckHugePages(mebibyte); err != nil {
		t.Log("no huge pages here, as is tested beside this: ", err)
		return
	}
	s := serve(t, func(o *server.Options) { o.Rings, o.HugePages = mebibyte, shm.HugeRequire })
	a, b := overShmPath(t, s)
	exchange(t, a, b, 1000)
	eventually(t, "both paths are reported", func() bool {
		for _, via := range s.ways() {
			if via != [2]string{attach.ViaShmPath, ""} {
				return false
			}
		}
		return true
	})
}

func TestHugePagesAreCheckedBefore(t *testing.T) {
	if err := server.CheckHugePages(ring.Default); shm.HugePageSize() > 0 && (!errors.Is(err, server.ErrSmallRings) || !strings.Contains(err.Error(), "the two of a shared-memory path are ")) {
		t.Errorf("default rings: %v, want them too small", err)
	}
	withoutHuge(t)
	if err := server.CheckHugePages(mebibyte); !errors.Is(err, status.NotSupp) {
		t.Errorf("without huge pages: %v", err)
	}
}

func TestWindowMemoryInHugePages(t *testing.T) {
	withoutHuge(t)
	s := serve(t, nil)
	for setting, check := range map[string]func(m attach.Memory, err error){
		"off": func(m attach.Memory, err error) {
			if err != nil || m.SmallPages() != "" {
				t.Errorf("off: %v", err)
			}
		},
		"try": func(m attach.Memory, err error) {
			if err != nil || !strings.HasPrefix(m.SmallPages(), "small pages: ") {
				t.Errorf("try: %v", err)
			}
		},
		"require": func(_ attach.Memory, err error) {
			if !errors.Is(err, status.NotSupp) || !strings.Contains(err.Error(), "huge pages are required: ") {
				t.Errorf("require: %v", err)
			}
		},
	} {
		t.Setenv("FABRIC_HUGE_PAGES", setting)
		sess := s.dial(t)
		m, err := sess.Alloc(4 << 20)
		check(m, err)
		if err == nil {
			m.Close()
		}
		m, err = sess.Alloc(100)
		if err != nil {
			t.Errorf("%s: less than a huge page: %v", setting, err)
			continue
		}
		m.Close()
		if b, err := sess.(*session).memory.bouncing(); err != nil {
			t.Errorf("%s: memory that nobody asked for: %v", setting, err)
		} else {
			b.region.Release()
		}
	}
}

// The node's description of a shared-memory path is checked before anything is mapped. A node
// without RINGS is served with the defaults.
func TestHostileShmPaths(t *testing.T) {
	good := func() (proto.Message, *os.File) {
		return &proto.ShmPathBody{Slots: 4, Data: 4096}, sharedMemory(t, proto.RingsSize(small))
	}
	for name, c := range map[string]struct {
		rings   *proto.RingsBody
		shmPath func() (proto.Message, *os.File)
		want    string // of JOINED's why; empty: it is joined. "-": there is no JOINED
	}{
		"good":                   {&proto.RingsBody{Release: 90}, good, ""},
		"release over its bound": {&proto.RingsBody{Release: 91}, good, "-"},
		"a fourth kind of pages": {&proto.RingsBody{Huge: 3}, good, "-"},
		"slots no power of two":  {nil, geometry(t, 3, 4096), "slots 3, want a power of two from 4 to 65536"},
		"no slots":               {nil, geometry(t, 0, 4096), "slots 0"},
		"slots without end":      {nil, geometry(t, 1<<31, 4096), "slots 2147483648"},
		"data no power of two":   {nil, geometry(t, 4, 4097), "data 4097 bytes, want a power of two from 4096 to 67108864"},
		"data without end":       {nil, geometry(t, 4, 1<<31), "data 2147483648"},
		"a third side": {nil, func() (proto.Message, *os.File) {
			_, f := good()
			return &proto.ShmPathBody{Side: 2, Slots: 4, Data: 4096}, f
		}, "side 2"},
		"other memory than it has": {nil, geometry(t, 4, 8192), "announced were"},
		"no memory":                {nil, func() (proto.Message, *os.File) { m, f := good(); f.Close(); return m, nil }, "no memory"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &hostileNode{t: t, rings: c.rings, shmPath: c.shmPath, joined: make(chan proto.JoinedBody, 8)}
			n.start()
			sess, err := Dial(context.Background(), n.path)
			if err != nil {
				t.Fatal(err)
			}
			defer sess.Close()
			ep, err := sess.Open()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ep.Connect(context.Background(), addr.Addr{Node: 1, Port: 1}); err != nil {
				t.Fatal(err)
			}
			e := ep.(*endpoint)
			e.upgrade(false)
			if c.want == "-" {
				eventually(t, "the attempt has ended", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return !e.upgrades.upgrading })
				if len(n.joined) > 0 || e.shmPath.Load() != nil {
					t.Error("it is joined")
				}
				return
			}
			m := <-n.joined
			if m.OK == 1 != (c.want == "") || !strings.Contains(m.Why, c.want) {
				t.Errorf("JOINED %+v, want %q", m, c.want)
			}
			if sp := e.shmPath.Load(); c.want == "" && (sp == nil || c.rings == nil && sp.in.Params.Release != ring.Default.Release) {
				t.Errorf("shared-memory path %+v", sp)
			}
		})
	}
}

// small are the smallest rings.
var small = ring.Params{Slots: 4, Data: 4096}

func sharedMemory(t testing.TB, n int64) *os.File {
	f, err := shm.Shared("test", n)
	if err != nil {
		t.Error(err)
	}
	return f
}

// geometry returns a shared-memory path of these sizes, with memory of the smallest size.
func geometry(t testing.TB, slots, data uint32) func() (proto.Message, *os.File) {
	return func() (proto.Message, *os.File) {
		return &proto.ShmPathBody{Slots: slots, Data: data}, sharedMemory(t, proto.RingsSize(small))
	}
}
