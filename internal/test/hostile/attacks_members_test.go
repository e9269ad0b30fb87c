package hostile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// badAddresses are lists of addresses that no honest node has.
var badAddresses = map[string][]string{
	"no address":        nil,
	"an empty address":  {""},
	"a port alone":      {":7700"},
	"no port":           {"127.0.0.1"},
	"port 0":            {"127.0.0.1:0"},
	"port 99999":        {"127.0.0.1:99999"},
	"nowhere":           {"0.0.0.0:7700"},
	"a line break":      {"127.0.0.1:7700\r\nx"},
	"an escape":         {"\x1b]0;x\a127.0.0.1:7700"},
	"half a v6 address": {"[::1:7700"},
	"one good, one not": {"127.0.0.1:7700", ""},
}

// attackClaims: F1. Each claim is refused where it enters; whatever is granted all
// the same is dialed by every honest node, which must bear it.
func attackClaims(a *arena) error {
	b, err := a.enrolled("claims")
	if err != nil {
		return err
	}
	var errs []error
	for what, addresses := range badAddresses {
		errs = append(errs, a.claim(b, "JOIN with "+what, b.asks(), b.name, addresses))
	}
	errs = append(errs, a.claim(b, "JOIN without a name", b.asks(), "", b.asks().Addresses()))
	for what, addresses := range map[string][]string{"no address": nil, "an empty address": {""}} {
		errs = append(errs, a.claimAgain(b, what, addresses))
	}
	return errors.Join(errs...)
}

// claim asks for an incarnation with a claim that must be refused: m, a JOIN or
// RESUME, with another name and other addresses.
func (a *arena) claim(b *badMember, what string, m any, name string, addresses []string) error {
	if !a.f.host().running() {
		return nil // said already
	}
	frame, err := control.AppendFrame(nil, m)
	if err != nil {
		return err
	}
	r, _, err := b.greets(control.ProtoControl, a.f.host(), nil)
	if err != nil {
		return fmt.Errorf("%s: the host takes no session: %w", what, err)
	}
	defer r.c.NetConn().Close()
	if _, err := r.c.Write(withClaims(frame, name, addresses)); err != nil {
		return err
	}
	for {
		switch kind, body, err := r.next(); {
		case err != nil:
			return fmt.Errorf("%s: %w: %w", what, errSaidNothing, err)
		case kind == frameClose && len(body) > 2, kind == frameRefused:
			return nil
		case kind == frameGrant:
			incarnation := addr.Incarnation{Node: addr.NodeID(binary.BigEndian.Uint16(body[8:])), Generation: addr.Generation(binary.BigEndian.Uint32(body[10:]))}
			for _, m := range a.f.honest() {
				_ = m.ping(incarnation.Node, 300*time.Millisecond) // that it does not answer is no harm
			}
			return fmt.Errorf("%s is granted as %v", what, incarnation)
		}
	}
}

// withClaims replaces the claims of a JOIN or RESUME about the name and the addresses of its
// sender by ones that no encoder of ours would write.
func withClaims(frame []byte, name string, addresses []string) []byte {
	const at = control.HeaderLen + 16 + 8 + 6 // behind UUID, epoch and incarnation
	text := func(b []byte, s string) []byte { return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	skip := func(b []byte) []byte { return b[2+binary.BigEndian.Uint16(b):] }
	rest := skip(frame[at:])
	n := int(rest[0])
	for rest = rest[1:]; n > 0; n-- {
		rest = skip(rest)
	}
	b := append(text(slices.Clone(frame[:at]), name), byte(len(addresses)))
	for _, x := range addresses {
		b = text(b, x)
	}
	b = append(b, rest...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-control.HeaderLen))
	return b
}

// claimAgain resumes an incarnation that was granted for honest claims.
func (a *arena) claimAgain(b *badMember, what string, addresses []string) error {
	if !a.f.host().running() {
		return nil
	}
	s, err := b.session()
	if err != nil {
		return fmt.Errorf("RESUME with %s: the host takes no session: %w", what, err)
	}
	if err := s.join(b.asks()); err != nil {
		return fmt.Errorf("an honest JOIN is refused: %w", err)
	}
	r := b.resumes()
	err = a.claim(b, "RESUME with "+what, r, b.name, addresses)
	s.say(verdict.Leave{Incarnation: r.Incarnation})
	s.s.Close("left")
	return err
}

// accuse is how long two members try to have a third one removed.
const accuse = 30 * time.Second

// attackEndReported: F2. Messages that make sense only after an outage of the host, and
// every other kind of evidence, from two members, remove no node.
func attackEndReported(a *arena) error {
	var accusers [2]*badSession
	for i := range accusers {
		_, s, err := a.bad(fmt.Sprintf("accuser-%d", i+1))
		if err != nil {
			return err
		}
		accusers[i] = s
	}
	victim := a.f.honest()[1]
	incarnation := victim.incarnation()
	began, said, back := time.Now(), 0, 0
	for ; time.Since(began) < accuse; said++ {
		for i, s := range accusers {
			if s.b.self() == (addr.Incarnation{}) { // that word has ended it: it joins again
				s.abort()
				if x, err := s.b.session(); err == nil && x.join(s.b.asks()) == nil {
					accusers[i], s = x, x
					back++
				}
			}
			s.say(verdict.Report{About: incarnation, Evidence: verdict.Evidence(1 + said%8)})
			if said%8 == 7 {
				s.say(verdict.Report{About: incarnation, Evidence: verdict.EndAnnounced})
			}
		}
		time.Sleep(100 * time.Millisecond)
		if err := victim.goesOn(incarnation); err != nil {
			return fmt.Errorf("after %v of accusations %w", time.Since(began).Round(time.Millisecond), err)
		}
	}
	a.note("%s keeps %v for %v and %d rounds of accusations; the accusers were ended for it and came back %d times", victim.name, incarnation, accuse, said, back)
	if back < 4 {
		return fmt.Errorf("the accusers came back %d times: they were not believed", back)
	}
	return nil
}

// attackIdentity: F3. A token makes a new member, never one that there is or
// was; a lease serves its holder only.
func attackIdentity(a *arena) error {
	thief, _, err := a.bad("thief")
	if err != nil {
		return err
	}
	victim := a.f.honest()[1]
	lease, err := thief.steal(victim)
	if err != nil {
		return fmt.Errorf("no lease of %s to be had: %w", victim.name, err)
	}
	return errors.Join(a.beIt(thief, victim, lease, "alive"), a.takeOver(thief))
}

// takeOver enrols under the name of a node that is gone for a moment, with another
// key, and then wants to be it.
func (a *arena) takeOver(thief *badMember) error {
	victim := a.f.spare()
	lease, err := thief.steal(victim)
	if err != nil {
		return fmt.Errorf("no lease of %s to be had: %w", victim.name, err)
	}
	victim.kill()
	token, err := a.f.token(3)
	if err != nil {
		return err
	}
	var errs []error
	double, err := a.f.enrol(token, victim.name)
	if err == nil {
		errs = append(errs, fmt.Errorf("a token gave the name of %s, with UUID %s for %s", victim.name, double.id.Node, victim.uuid))
	} else {
		a.note("enrolling as %s, which is gone: %v", victim.name, err)
		if double, err = a.f.enrol(token, "double"); err != nil {
			return err
		}
	}
	defer double.close()
	if double.id.Node == victim.uuid {
		errs = append(errs, fmt.Errorf("a token gave a certificate for the UUID of %s", victim.name))
	}
	double.epoch = lease.Epoch
	errs = append(errs, a.beIt(double, victim, lease, "gone"), a.takeName(double, victim))
	if lease, err = thief.steal(victim); err != nil {
		return errors.Join(append(errs, err)...)
	}
	double.epoch = lease.Epoch
	errs = append(errs, a.beIt(double, victim, lease, "back"))
	return errors.Join(errs...)
}

// beIt has a thief resume the incarnation of a node, and open a link as it, with the
// lease that the node has shown.
func (a *arena) beIt(thief *badMember, victim *machine, lease stolenLease, when string) error {
	var errs []error
	for _, uuid := range []addr.UUID{thief.id.Node, victim.uuid} {
		h := thief.hello(a.f.host().incarnation(), lease.Term)
		h.From, h.FromEpoch, h.FromUUID = lease.Incarnation, lease.Epoch, uuid
		if thief.linkAs(a.f.host(), h, lease.signed) == nil {
			errs = append(errs, fmt.Errorf("the host takes a link of the thief for one of %s, which is %s", victim.name, when))
		}
		s, err := thief.session()
		if err != nil {
			return err
		}
		err = s.ask(verdict.Resume{Identity: says(uuid, lease.Epoch, victim.name, a.f.ip+":9"),
			Incarnation: lease.Incarnation, Lease: lease.signed})
		if err == nil {
			errs = append(errs, fmt.Errorf("RESUME as %s, which is %s, is granted to the thief", victim.name, when))
		}
		s.abort()
	}
	return errors.Join(errs...)
}

// takeName joins under the name of a node that is away, which must be the only one
// of its name when it is back.
func (a *arena) takeName(double *badMember, victim *machine) error {
	if s, err := double.session(); err == nil {
		own := double.asks()
		if err := s.join(verdict.Join{Identity: says(own.UUID, own.Epoch, victim.name, own.Addresses()[0])}); err != nil {
			a.note("JOIN as %q: %v", victim.name, err)
		}
		defer s.abort()
	}
	if err := victim.start(); err != nil {
		return err
	}
	all, err := a.f.host().list()
	for _, n := range all {
		incarnation := addr.Incarnation{Node: n.ID, Generation: n.Generation}
		if n.Name == victim.name && n.State != "removed" && incarnation != victim.incarnation() {
			err = errors.Join(err, fmt.Errorf("%v is called %s as well as %v", incarnation, n.Name, victim.incarnation()))
		}
	}
	return err
}

// sybils is how many identities one token is used for, and how many of them the host
// gives in a minute.
const sybils, mostSybils = 300, 200

// attackSybils: F6. One token and its identities take neither all places nor all
// descriptors; an honest node comes back meanwhile.
func attackSybils(a *arena) error {
	token, err := a.f.token(2 * sybils)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var members []*badMember
	defer func() {
		var work sync.WaitGroup
		for _, b := range members {
			work.Go(b.close)
		}
		work.Wait()
	}()
	next := make(chan int, sybils)
	for i := range sybils {
		next <- i
	}
	close(next)
	began, granted := time.Now(), 0
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for i := range next {
				if time.Since(began) > 15*time.Second {
					return
				}
				b, err := a.f.enrol(token, fmt.Sprintf("sybil-%d", i))
				if err != nil {
					continue
				}
				s, err := b.session()
				mu.Lock()
				members = append(members, b)
				if err == nil && s.join(b.asks()) == nil {
					granted++
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	a.note("%d identities enrolled and %d incarnations granted in %v", len(members), granted, time.Since(began).Round(time.Millisecond))
	var errs []error
	if granted > mostSybils {
		errs = append(errs, fmt.Errorf("one token gave %d incarnations", granted))
	}
	errs = append(errs, a.silentSessions(members))
	return errors.Join(errs...)
}

// silentSessions opens control sessions that say nothing behind the HELLO, more than
// the host has descriptors, and has an honest node come back meanwhile.
func (a *arena) silentSessions(members []*badMember) error {
	var open []*badSession
	opening := time.Now()
open:
	for _, b := range members {
		b.mu.Lock()
		b.incarnation = addr.Incarnation{} // it pings no more
		b.mu.Unlock()
		for range 6 {
			s, err := b.session()
			if err != nil && time.Since(opening) > 3*time.Second {
				break open
			} else if err != nil {
				break
			}
			open = append(open, s)
		}
	}
	held := a.f.host().usage().Descriptors
	began := time.Now()
	err := a.returns(5 * time.Second)
	time.Sleep(5*time.Second - time.Since(began))
	left := 0
	for _, s := range open {
		if s.alive() {
			left++
		}
	}
	a.note("of %d sessions without a JOIN %d are open after 5 s; the host held %d of %d descriptors", len(open), left, held, nofile)
	if left > 16 {
		err = errors.Join(err, fmt.Errorf("%d control sessions that have not said JOIN are held for 5 s", left))
	}
	if strings.Contains(string(a.f.host().log()), "too many open files") {
		err = errors.Join(err, errors.New("the host was out of descriptors"))
	}
	return err
}

// returns restarts the spare and wants it back soon.
func (a *arena) returns(limit time.Duration) error {
	a.f.spare().kill()
	began := time.Now()
	if err := a.f.spare().launch(); err != nil {
		return err
	}
	if err := a.f.spare().joinedWithin(3 * limit); err != nil {
		return err
	}
	took := time.Since(began)
	a.note("an honest node comes back in %v", took.Round(time.Millisecond))
	if took > limit {
		return fmt.Errorf("an honest node needs %v to come back, want %v", took.Round(time.Millisecond), limit)
	}
	return nil
}

// attackHidden: F7. A member claims to reach a node that stands still. The host
// finds out by itself, within its bound for a silent node plus the lateness of this
// machine.
func attackHidden(a *arena) error {
	const limit = 8 * time.Second // normal: 3 s
	var friends []*badMember
	for i := range 2 {
		b, _, err := a.bad(fmt.Sprintf("friend-%d", i+1))
		if err != nil {
			return err
		}
		b.reaches.Store(true)
		friends = append(friends, b)
	}
	victim := a.f.spare()
	incarnation := victim.incarnation()
	if err := victim.pause(); err != nil {
		return err
	}
	began := time.Now()
	err := eventually(limit, func() error {
		alive, err := a.f.host().alive()
		if err == nil && alive[incarnation] {
			err = fmt.Errorf("the host holds %s for alive, which stands still", victim.name)
		}
		return err
	})
	a.note("removed %v after it stopped, and %d lies about it", time.Since(began).Round(time.Millisecond), friends[0].lies.Load()+friends[1].lies.Load())
	return errors.Join(err, victim.resume(), victim.joined())
}

// attackStall: F8. A host that stood still for less than nodes bear is not reset by
// the word of two members.
func attackStall(a *arena) error {
	var sessions []*badSession
	for i := range 2 {
		_, s, err := a.bad(fmt.Sprintf("hasty-%d", i+1))
		if err != nil {
			return err
		}
		sessions = append(sessions, s)
	}
	host := a.f.host()
	incarnation := host.incarnation()
	for range 3 {
		if err := host.pause(); err != nil {
			return err
		}
		time.Sleep(1350 * time.Millisecond)
		for _, s := range sessions { // read as soon as the host goes on
			r := s.b.resumes()
			r.HostOver = incarnation.Generation
			s.say(r)
		}
		if err := host.resume(); err != nil {
			return err
		}
		for _, s := range sessions { // and on sessions of their own
			x, err := s.b.session()
			if err != nil {
				continue
			}
			r := s.b.resumes()
			r.HostOver = incarnation.Generation
			x.say(r)
			a.ends = append(a.ends, x.abort)
		}
		time.Sleep(1500 * time.Millisecond)
		if err := host.goesOn(incarnation); err != nil {
			return err
		}
	}
	a.note("the host stays %v through 3 stalls of 1.35 s", incarnation)
	return nil
}

// attackVeto: F9. A rotation goes on without a member that does not confirm.
func attackVeto(a *arena) error {
	b, _, err := a.bad("veto")
	if err != nil {
		return err
	}
	b.veto.Store(true)
	began := time.Now()
	out, err := a.f.fabricd("keys", "rotate", "--timeout", "20s", "--admin", a.f.host().adminSocket())
	a.note("rotation: %v, %s", time.Since(began).Round(time.Millisecond), strings.TrimSpace(out))
	return err
}

// attackRenewals: F10. Certificates are not to be had without end, nor log lines.
func attackRenewals(a *arena) error {
	b, s, err := a.bad("renewer")
	if err != nil {
		return err
	}
	request, err := trust.RequestFor(b.store.Credentials().Key)
	if err != nil {
		return err
	}
	host := a.f.host()
	log, before := len(host.log()), host.usage()
	got, began := 0, time.Now()
	for time.Since(began) < 3*time.Second && s.alive() {
		for range 64 {
			s.say(control.Renew{Request: request})
		}
		for waiting := true; waiting; {
			select {
			case m := <-s.answers:
				if c, ok := m.(control.Certificate); ok && len(c.Certificate) > 0 {
					got++
				}
			case <-time.After(10 * time.Millisecond):
				waiting = false
			}
		}
	}
	grown, cpu := len(host.log())-log, host.usage().CPU-before.CPU
	a.note("%d certificates, %d KiB of log and %v of the host's processor time in %v", got, grown>>10, cpu, time.Since(began).Round(time.Millisecond))
	switch {
	case got < 1 || got > 4: // one a second
		return fmt.Errorf("%d certificates in 3 s", got)
	case grown > 64<<10:
		return fmt.Errorf("the log grew by %d KiB", grown>>10)
	}
	return nil
}

// attackNames: F13. Names are checked, and unique; their printed form is printable.
func attackNames(a *arena) error {
	b, err := a.enrolled("names")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{"x\x1b]0;owned\a", "x\r\nhost  alive", "x\ty", "a b", "\u202egnp", a.f.honest()[1].name, a.f.host().name} {
		if err := a.claim(b, fmt.Sprintf("the name %q", name), b.asks(), name, b.asks().Addresses()); err != nil {
			errs = append(errs, err, a.printed(name))
		}
	}
	if token, err := a.f.token(1); err == nil {
		if c, err := a.f.enrol(token, "y\x1b[2J\r\n"); err == nil {
			c.close()
			errs = append(errs, errors.New("a certificate is given to a name with an escape"))
		}
	}
	return errors.Join(errs...)
}

// printed looks for control sequences of a terminal in the output that operators read.
func (a *arena) printed(name string) error {
	for _, m := range []*machine{a.f.host(), a.f.honest()[1]} {
		out, err := a.f.fabricd("nodes", "--admin", m.adminSocket())
		if err != nil {
			return err
		}
		if strings.ContainsAny(out, "\x1b\r\a\u202e") {
			return fmt.Errorf("fabricd nodes at %s prints %q raw", m.name, name)
		}
	}
	return nil
}
