package membership

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A host asks some members whether they reach an incarnation. That one does is believed
// only with that incarnation's own signature of a challenge that no node could know before
// the host asked.

// newChallenges returns the secret of this start from which challenges are made.
func newChallenges() []byte {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return b
}

// challenge returns the bytes that an incarnation has to sign for one check.
func (a *Agent) challenge(nonce uint64, incarnation addr.Incarnation) []byte {
	m := hmac.New(sha256.New, a.challenges)
	b := binary.BigEndian.AppendUint64(nil, nonce)
	b = binary.BigEndian.AppendUint16(b, uint16(incarnation.Node))
	m.Write(binary.BigEndian.AppendUint32(b, uint32(incarnation.Generation)))
	return m.Sum(nil)[:verdict.MaxChallenge]
}

// believed returns the result of a check as far as it is proved: the target's own
// answer needs no proof, any other member's has the target's signature.
func (a *Agent) believed(s *control.Session, m verdict.CheckResult) verdict.CheckResult {
	n, ok := a.host.Living(m.Target)
	if !m.Reached || ok && n.UUID == s.Peer().UUID && n.Epoch == s.Peer().Epoch {
		return m
	}
	if !ok || !a.host.Asked(m.Target, m.Nonce) {
		m.Reached = false // and no signature is looked at that was not asked for
		return m
	}
	if err := control.VerifyProof(a.cfg.Trust, n.UUID, n.Epoch, m.Target, a.challenge(m.Nonce, m.Target), m.Proof); err != nil {
		a.log.Warn().Err(err).Stringer("peer", s.Peer().UUID).Stringer("incarnation", m.Target).Msg("a member cannot prove that it reaches a node")
		m.Reached = false
	}
	return m
}
