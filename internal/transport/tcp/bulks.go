package tcp

import (
	"fmt"
	"iter"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A bulkState is what a session knows of its bulk connections. Guarded by its mu.
type bulkState struct {
	conns   []*bulk          // that work
	ending  map[uint64]*bulk // that were cut, until both ends know what has come
	dialing map[uint64]bool  // being dialed; true: the other end has given it up
	last    uint64           // number of the last connection that there was a token for
	tokens  []token          // given to the dialer and not used
	asked   time.Time        // when the last one was asked for
	closed  bool
}

// A token lets the dialer bind one connection.
type token struct {
	number  uint64 // of the connection
	secret  [tokenLen]byte
	expires time.Time
}

const (
	tokenLife = 10 * time.Second
	askEvery  = time.Second // between two attempts to get another connection
)

// close closes all connections.
func (st *bulkState) close() {
	st.closed, st.tokens = true, nil
	for b := range st.all() {
		_ = b.conn.Close()
	}
}

// all returns every connection on which something may be kept.
func (st *bulkState) all() iter.Seq[*bulk] {
	return func(yield func(*bulk) bool) {
		for _, b := range st.conns {
			if !yield(b) {
				return
			}
		}
		for _, b := range st.ending {
			if !yield(b) {
				return
			}
		}
	}
}

// find returns a connection, nil if it is not there or not any more.
func (st *bulkState) find(number uint64) *bulk {
	for _, b := range st.conns {
		if b.number == number {
			return b
		}
	}
	return st.ending[number]
}

// places returns how many connections there are or may soon be.
func (st *bulkState) places() int { return len(st.conns) + len(st.dialing) + len(st.tokens) }

// traffic returns the bytes of all connections.
func (st *bulkState) traffic() (sent, received uint64) {
	for _, b := range st.conns {
		sent, received = sent+b.sent.Load(), received+b.received.Load()
		if b.rec != nil {
			sent, received = sent+b.rec.sent.Load(), received+b.rec.received.Load()
		}
	}
	return sent, received
}

// stripeOver is how much may be under way on a lane's own connection, in bytes,
// before its next piece goes over the one on which there is least.
const stripeOver = 1 << 20

// choose returns where to begin to look for a connection for l. mu is held.
func (st *bulkState) choose(l *sendLane) (first int, crowded bool) {
	if len(st.conns) == 0 {
		return 0, false
	}
	first = int(l.id % uint64(len(st.conns)))
	least := st.conns[first].kept.bytes.Load()
	if least <= stripeOver {
		return first, false
	}
	for i, b := range st.conns {
		if n := b.kept.bytes.Load(); n < least {
			first, least = i, n
		}
	}
	return first, true
}

// takeBulk gives l's writer a turn on a bulk connection. It returns nil if there
// is none, and sees to it that there will be one.
func (s *session) takeBulk(l *sendLane) (*bulk, error) {
	for {
		b, next, full, err := s.tryBulk(l)
		if full {
			<-l.wake
			continue
		}
		if b != nil || err != nil || next == nil {
			return b, err
		}
		select {
		case next.turn <- struct{}{}:
		case <-l.wake:
			continue
		}
		s.mu.Lock()
		l.writing = next
		err = l.failure()
		s.mu.Unlock()
		if err == nil && next.kept.room() {
			return next, nil
		}
		next.give(l) // others may have filled it while l waited
		if err != nil {
			return nil, err
		}
	}
}

// tryBulk is takeBulk without waiting: next is the connection to wait for, or
// all are full and l will be woken.
func (s *session) tryBulk(l *sendLane) (b, next *bulk, full bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.failure(); err != nil {
		return nil, nil, false, err
	}
	if l.id == 0 || s.maxBulk == 0 { // the first frame of a lane is on the first connection
		return nil, nil, false, nil
	}
	st := &s.bulk
	first, crowded := st.choose(l)
	if crowded {
		s.wantBulk()
	}
	for i := range st.conns {
		b := st.conns[(first+i)%len(st.conns)]
		if !b.kept.room() {
			full = true // onAck wakes l
			continue
		}
		if next == nil {
			next = b
		}
		select {
		case b.turn <- struct{}{}:
			l.writing = b
			return b, nil, false, nil
		default:
		}
	}
	s.wantBulk()
	if next != nil {
		// It waits for nothing but its turn: woken for what others wait for, it
		// would be the last in line again, and so every time.
		delete(s.waiting, l)
		return nil, next, false, nil
	}
	if full {
		s.waiting[l] = struct{}{}
	}
	return nil, nil, full, nil
}

// wantBulk tries to get another connection, now and then. mu is held.
func (s *session) wantBulk() {
	st := &s.bulk
	if s.err != nil || len(st.conns)+len(st.dialing) >= s.maxBulk ||
		!st.asked.IsZero() && time.Since(st.asked) < askEvery {
		return
	}
	st.asked = time.Now()
	if s.dialed {
		s.spawn(func() { s.say(header{kind: typeWant}) })
		return
	}
	s.spawn(func() { s.giveToken() })
}

// onWant handles the dialer's question for a token.
func (s *session) onWant() error {
	if s.dialed {
		return fmt.Errorf("%w: WANT from the accepter", errMalformed)
	}
	s.giveToken()
	return nil
}

// giveToken lets the dialer bind another connection, if there may be one. It may
// be called at once by who writes and who reads: writeMu is held from the number
// on, since the dialer takes numbers that ascend.
func (s *session) giveToken() {
	t, err := newToken()
	if err != nil {
		return // no randomness: no further connections
	}
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.mu.Lock()
	st := &s.bulk
	now := time.Now()
	for len(st.tokens) > 0 && now.After(st.tokens[0].expires) {
		st.tokens = st.tokens[1:]
	}
	if s.err != nil || st.places() >= s.maxBulk || st.last == maxNumber {
		s.mu.Unlock()
		return
	}
	st.last++
	t.number = st.last
	st.tokens = append(st.tokens, t)
	s.mu.Unlock()
	_ = s.send(header{kind: typeToken, length: tokenLen, lane: t.number, value: s.number}, vector{b: t.secret[:]})
}

// onToken dials another connection.
func (s *session) onToken(h header, secret []byte) error {
	if !s.dialed {
		return fmt.Errorf("%w: TOKEN from the dialer", errMalformed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.bulk
	if h.lane <= st.last {
		return fmt.Errorf("%w: bulk connection %d comes behind %d", errMalformed, h.lane, st.last)
	}
	st.last = h.lane
	if s.err != nil || st.places() >= s.maxBulk {
		s.spawn(func() { s.sayLost(h.lane, 0) })
		return nil
	}
	at := binding{session: h.value}
	copy(at.token[:], secret)
	st.begin(h.lane)
	s.spawn(func() { s.dialBulk(h.lane, at) })
	return nil
}

// begin notes that a connection is being made.
func (st *bulkState) begin(number uint64) {
	if st.dialing == nil {
		st.dialing = make(map[uint64]bool)
	}
	st.dialing[number] = false
}

// useBulk takes a connection into use, or closes it and tells the other end,
// which may have begun to use it: if the session is over, or has enough, or if
// the other end has given it up.
func (s *session) useBulk(b *bulk) bool {
	tune(b.conn, s.p.cfg.UserTimeout, false)
	if s.addBulk(b) {
		return true
	}
	s.sayLost(b.number, 0)
	return false
}

func (s *session) addBulk(b *bulk) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.bulk
	givenUp := st.dialing[b.number]
	delete(st.dialing, b.number)
	if s.err != nil || st.closed || givenUp || len(st.conns) >= s.maxBulk || !s.spawn(b.read) {
		return false
	}
	st.conns = append(st.conns, b)
	st.asked = time.Time{}
	return true
}

var _ transport.Meter = (*session)(nil)
