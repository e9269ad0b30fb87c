package daemon

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
)

// ringSettings are those of the shared-memory paths between two applications of this node.
// A slot is a cache line and no setting; docs/rings.md gives the reason, and the effect of each of
// these.
func ringSettings() []Setting {
	return []Setting{
		setting("ring-slots", "messages on their way in one direction of a shared-memory path, between two applications of this node",
			fmt.Sprintf("a power of two from %d to %d", ring.MinSlots, ring.MaxSlots), func(c *Config) *int { return &c.Local.Rings.Slots },
			numbers[int](0, math.MaxInt32).where(func(n int) bool { return validRings(ring.Params{Slots: n, Data: ring.MinData}) })),
		setting("ring-data", "bytes of messages over 56 bytes on their way in one direction of a shared-memory path",
			fmt.Sprintf("a power of two from %s to %s", sizeText(ring.MinData), sizeText(ring.MaxData)), func(c *Config) *int { return &c.Local.Rings.Data },
			sizes[int](0, ring.MaxData).where(func(n int) bool { return validRings(ring.Params{Slots: ring.MinSlots, Data: n}) })),
		setting("ring-release", "how much of a shared-memory path's ring a receiver takes before it reports the room to the sender, in per cent",
			fmt.Sprintf("a number from 0 to %d; 0: after every read", ring.MaxRelease), func(c *Config) *int { return &c.Local.Rings.Release },
			numbers[int](0, math.MaxInt32).where(func(n int) bool {
				return validRings(ring.Params{Slots: ring.MinSlots, Data: ring.MinData, Release: n})
			})),
		setting("ring-huge-pages", "whether a shared-memory path's memory lies in huge pages", shm.HugeAllowed,
			func(c *Config) *shm.HugePages { return &c.Local.HugePages }, form[shm.HugePages]{shm.ParseHugePages, shm.HugePages.String}),
	}
}

// ringStatus is the part of Status.
func (d *Daemon) ringStatus() RingStatus {
	live, r := d.live.get(), d.cfg.Local.Rings
	return RingStatus{Slots: r.Slots, Data: r.Data, Release: r.Release, HugePages: d.cfg.Local.HugePages.String(),
		Small: live.small, ShmPath: int(server.ShmPathSize(r)), None: live.noShmPaths}
}

func validRings(r ring.Params) bool { return r.Check() == nil }

// The units of a size.
var units = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// parseSize reads a number of bytes up to most, or of KiB, MiB, GiB or TiB: "256KiB".
func parseSize(s string, most int64) (int64, bool) {
	unit := int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			s, unit = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n > uint64(most)/uint64(unit) {
		return 0, false
	}
	return int64(n) * unit, true
}

// sizeText returns n in the form that parseSize reads, in the largest unit of
// which it is a multiple.
func sizeText(n int64) string {
	for _, u := range units {
		if n > 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// tryShmPaths finds out whether this process can make memory for shared-memory paths, before a
// connection needs it, and returns why applications of this node are not to have any.
func (d *Daemon) tryShmPaths() (why string, err error) {
	may, must := d.cfg.sharesMemory()
	if !may {
		return "shared memory is left out by the setting providers", nil
	}
	switch err = server.CheckShmPaths(d.cfg.Local.Rings); {
	case err == nil:
		return "", nil
	case must:
		return "", problem("providers", strings.Join(d.cfg.Providers, ","), "shm cannot be used: "+err.Error(), err)
	}
	why = "no memory for shared-memory paths could be made when the node started: " + err.Error()
	d.log.Warn().Str("op", "provider").Str("provider", sharedMemory).Err(err).Msg("provider cannot be used; applications of this node talk through it")
	return why, nil
}

// tryHugePages finds out whether shared-memory paths can lie in huge pages before a connection
// needs them: if they are required, failure is a mistake in the configuration; if they are only to
// be tried, it is logged once.
func (d *Daemon) tryHugePages() error {
	local := d.cfg.Local
	if local.HugePages == shm.HugeOff {
		return nil
	}
	err := server.CheckHugePages(local.Rings)
	if err == nil {
		return nil
	}
	if local.HugePages == shm.HugeTry {
		d.live.set(func(p *parts) { p.small = err.Error() })
		d.log.Warn().Str("op", "shm-path").Err(err).Msg("no huge pages: shared-memory paths between applications have small ones")
		return nil
	}
	if errors.Is(err, server.ErrSmallRings) {
		return problem("ring-huge-pages", local.HugePages.String(), err.Error()+"; want a larger ring-data or ring-slots", err)
	}
	return problem("ring-huge-pages", local.HugePages.String(), err.Error(), err)
}
