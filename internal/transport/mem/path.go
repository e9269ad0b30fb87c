package mem

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A path is the way between the two ends of a session: its delay, and
// whether it is cut.
type path struct {
	delay, jitter time.Duration
	idleTimeout   time.Duration
	isCut         atomic.Bool

	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand // nil without jitter
	a, b  *session
	timer *time.Timer // ends both sessions while the path is cut
}

// slow reports whether something is ever in flight.
func (p *path) slow() bool { return p.delay > 0 || p.jitter > 0 }

// cut reports whether nothing passes.
func (p *path) cut() bool { return p.isCut.Load() }

// flight draws the delay of one message.
func (p *path) flight() time.Duration {
	if p.jitter <= 0 {
		return p.delay
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay + time.Duration(p.rng.Int64N(int64(p.jitter)))
}

// setCut stops all traffic; after the idle timeout both ends notice.
func (p *path) setCut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCut.Swap(true) {
		return
	}
	p.timer = time.AfterFunc(p.idleTimeout, func() {
		p.a.end(&transport.CloseError{Timeout: true})
		p.b.end(&transport.CloseError{Timeout: true})
	})
}

// heal lets all traffic pass again, the report of a Close during the cut too.
func (p *path) heal() {
	p.mu.Lock()
	if !p.isCut.Swap(false) {
		p.mu.Unlock()
		return
	}
	p.timer.Stop()
	p.mu.Unlock()
	p.a.healed()
	p.b.healed()
}

// deliver calls f after one delay, unless the path is cut by then.
func (p *path) deliver(f func()) {
	d := p.flight()
	if d <= 0 {
		if !p.cut() {
			f()
		}
		return
	}
	time.AfterFunc(d, func() {
		if !p.cut() {
			f()
		}
	})
}
