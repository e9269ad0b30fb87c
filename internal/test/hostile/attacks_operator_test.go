package hostile

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
)

// tookBack is how soon the holdings of a banned identity are dead; expired the same of an
// expired one, for which nodes check about every second.
const (
	tookBack = time.Second
	expired  = 2 * time.Second
)

// holdings are the sessions, links and connections that one member has open.
type holdings struct {
	b        *badMember
	session  *badSession
	lifeline *control.Lifeline
	link     transport.Session

	mu    sync.Mutex               // guards ended
	ended map[string]time.Duration // the time of each end after that of the certificate, by name
}

// watch records each of the holdings that ends, until the member does.
func (h *holdings) watch() {
	h.ended = map[string]time.Duration{}
	for what, done := range map[string]<-chan struct{}{"control session": h.session.down, "lifeline": h.lifeline.Done(), "link": h.link.Done()} {
		h.b.work.Go(func() {
			select {
			case <-done:
				h.mu.Lock()
				defer h.mu.Unlock()
				h.ended[what] = time.Since(h.b.id.NotAfter)
			case <-h.b.ctx.Done():
			}
		})
	}
}

// holds returns a member with everything that a member can have open.
func (a *arena) holds(name string) (*holdings, error) {
	b, s, err := a.bad(name)
	if err != nil {
		return nil, err
	}
	h := &holdings{b: b, session: s}
	to := a.f.honest()[1]
	if h.lifeline, err = b.lifeline(to); err != nil {
		return nil, fmt.Errorf("a lifeline of %s: %w", name, err)
	}
	err = eventually(patience, func() (err error) { // to may not know the member yet
		h.link, err = b.link(to, b.hello(to.incarnation(), b.term), nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("a link of %s: %w", name, err)
	}
	h.watch()
	return h, nil
}

// left returns an error for the holdings that are still open.
func (h *holdings) left() error {
	var errs []error
	if h.session.alive() {
		errs = append(errs, errors.New("its control session is open"))
	}
	for what, done := range map[string]<-chan struct{}{"lifeline": h.lifeline.Done(), "link": h.link.Done()} {
		select {
		case <-done:
		default:
			errs = append(errs, fmt.Errorf("its %s is open", what))
		}
	}
	return errors.Join(errs...)
}

// attackTakenBack: F4.
func attackTakenBack(a *arena) error {
	return errors.Join(a.revokedToken(), a.bannedMember(), a.expiredMember())
}

// operator runs a command of the operator at the host.
func (a *arena) operator(args ...string) error {
	_, err := a.f.fabricd(append(args, "--admin", a.f.host().adminSocket())...)
	return err
}

// revokedToken: a revoked token enrols no node, and it is listed no
// more as good.
func (a *arena) revokedToken() error {
	text, err := a.f.token(5)
	if err != nil {
		return err
	}
	t, err := trust.ParseToken(text)
	if err != nil {
		return err
	}
	id := t.ID.String()
	out, err := a.f.fabricd("token", "list", "--admin", a.f.host().adminSocket())
	switch {
	case err != nil:
		return err
	case !strings.Contains(out, id):
		return fmt.Errorf("fabricd token list does not show token %s:\n%s", id, out)
	case strings.Contains(out, text):
		return errors.New("fabricd token list shows the secret of a token")
	}
	if err := a.operator("token", "revoke", id); err != nil {
		return err
	}
	b, err := a.f.enrol(text, "late")
	if err == nil {
		b.close()
		return errors.New("a revoked token still gives certificates")
	}
	a.note("enrolling with a revoked token: %v", err)
	return nil
}

// bannedMember: the holdings of a banned member end, and it comes back only after
// the operator has allowed it.
func (a *arena) bannedMember() error {
	h, err := a.holds("banned")
	if err != nil {
		return err
	}
	to := a.f.honest()[1]
	before := h.b.hello(to.incarnation(), h.b.term)
	_, lease := h.b.end()
	began := time.Now()
	if err := a.operator("nodes", "ban", h.b.name); err != nil {
		return err
	}
	err = eventually(max(tookBack-time.Since(began), 0), h.left)
	took := time.Since(began).Round(time.Millisecond)
	if err != nil {
		return fmt.Errorf("%v after the ban: %w", took, err)
	}
	a.note("%v after the ban nothing of it is open", took)
	if s, err := h.b.session(); err == nil && s.join(h.b.asks()) == nil {
		return errors.New("a banned member gets an incarnation")
	}
	if h.b.linkAs(to, before, lease) == nil {
		return errors.New("a banned member gets a link")
	}
	if err := a.operator("nodes", "allow", h.b.name); err != nil {
		return err
	}
	s, err := h.b.session()
	if err == nil {
		err = s.join(h.b.asks())
	}
	if err != nil {
		return fmt.Errorf("a member that is allowed again: %w", err)
	}
	return nil
}

// expiredMember: the holdings of a member that never renews end with its certificate.
// The certificates of a fleet are valid for a minute, so that the honest nodes have
// renewed theirs meanwhile.
func (a *arena) expiredMember() error {
	h, err := a.expiring, error(nil)
	if h == nil {
		h, err = a.holds("expiring")
	}
	if err != nil {
		return err
	}
	time.Sleep(time.Until(h.b.id.NotAfter) + expired)
	if err := eventually(500*time.Millisecond, h.left); err != nil {
		return fmt.Errorf("%v after the end of its certificate %w", time.Since(h.b.id.NotAfter).Round(time.Millisecond), err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for what, at := range h.ended {
		a.note("the %s of a member that does not renew ended %v after its certificate", what, at.Round(time.Millisecond))
		if at < -5*time.Second || at > expired {
			errs = append(errs, fmt.Errorf("the %s ended %v after the certificate", what, at.Round(time.Millisecond)))
		}
	}
	return errors.Join(errs...)
}
