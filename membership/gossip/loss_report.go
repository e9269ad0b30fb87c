package gossip

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/fabricd/fabricd/internal/codec"
)

// A LossReport notifies another member that nothing of it arrives here. It is a packet of
// its own that waits for no acknowledgement, so it arrives also where the network is
// cut in the other direction. Each holder of the gossip key can make one: a secret that
// the two members share proves it. SPEC.md 6 has its bytes.
type LossReport struct {
	From   Key    // the member that reports
	To     Key    // the member from which From receives nothing
	Number uint64 // grows with each report of one secret
	proof  [sha256.Size]byte
}

const (
	noticeVersion = 1
	noticeLoss    = 1

	// lossReportCopies is how often a report is sent: a packet may be lost.
	lossReportCopies = 2
	// maxLossReports bounds the reports that wait to be taken; further ones are dropped.
	maxLossReports = 64
)

var errNotice = errors.New("malformed notice")

// beginNotice appends the fields that begin every notice.
func beginNotice(b []byte, kind uint8) codec.Encoder {
	e := codec.To(b)
	e.U8(noticeVersion)
	e.U8(kind)
	return e
}

// openNotice takes the fields that beginNotice has put.
func openNotice(b []byte, kind uint8) codec.Decoder {
	d := codec.From(b)
	d.Require(d.U8() == noticeVersion)
	d.Require(d.U8() == kind)
	return d
}

func putKey(e *codec.Encoder, k Key) {
	e.UUID(k.UUID)
	e.U64(k.Epoch)
}

func takeKey(d *codec.Decoder) Key { return Key{UUID: d.UUID(), Epoch: d.U64()} }

// appendProved appends the bytes that the proof is about.
func (w LossReport) appendProved(b []byte) []byte {
	e := beginNotice(b, noticeLoss)
	putKey(&e, w.From)
	putKey(&e, w.To)
	e.U64(w.Number)
	return e.Encoded()
}

func (w LossReport) append(b []byte) []byte { return append(w.appendProved(b), w.proof[:]...) }

func (w LossReport) prove(secret []byte) (proof [sha256.Size]byte) {
	m := hmac.New(sha256.New, secret)
	m.Write(w.appendProved(nil))
	m.Sum(proof[:0])
	return proof
}

// Proves reports whether a holder of the secret has made the report.
func (w LossReport) Proves(secret []byte) bool {
	want := w.prove(secret)
	return hmac.Equal(w.proof[:], want[:])
}

func parseLossReport(b []byte) (LossReport, error) {
	d := openNotice(b, noticeLoss)
	w := LossReport{From: takeKey(&d), To: takeKey(&d), Number: d.U64()}
	copy(w.proof[:], d.Take(len(w.proof)))
	if !d.Whole() {
		return LossReport{}, fmt.Errorf("%w of %d bytes", errNotice, len(b))
	}
	return w, nil
}

// SendLossReport reports to member k, in packets that may be lost, that this member receives
// nothing from it. Both share the secret; number is larger than in every report before with it. The error is that of the socket, or that k is not known.
func (g *Gossip) SendLossReport(k Key, secret []byte, number uint64) error {
	to, known := g.addressOf(k)
	if !known {
		return fmt.Errorf("member %s is not known", k)
	}
	w := LossReport{From: g.self, To: k, Number: number}
	w.proof = w.prove(secret)
	var errs []error
	for range lossReportCopies {
		errs = append(errs, g.list.SendToAddress(to, w.append(nil)))
	}
	return errors.Join(errs...)
}

// addressOf returns where a member is, if there was gossip about it.
func (g *Gossip) addressOf(k Key) (a memberlist.Address, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.members.records[k]
	if r == nil || !r.seen {
		return a, false
	}
	return memberlist.Address{Addr: r.member.Address.String(), Name: k.String()}, true
}

// TakeLossReports returns the reports since the last call, in the order in which they have
// come. They are addressed to this member, by members that are known; whether a report
// is genuine the caller finds out by [LossReport.Proves].
func (g *Gossip) TakeLossReports() []LossReport { return takeNotices(g.queue, &g.queue.lossReports) }

// receive takes a loss report or a doubt. One that is malformed, addressed to another
// member or made by an unknown one is dropped.
func (g *Gossip) receive(b []byte) {
	if len(b) > 1 && b[1] == noticeDoubt {
		g.receiveDoubt(b)
		return
	}
	w, err := parseLossReport(b)
	if err != nil || w.To != g.self {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.members.records[w.From]; !g.closed && r != nil && r.seen {
		putNotice(g.queue, &g.queue.lossReports, maxLossReports, w)
	}
}
