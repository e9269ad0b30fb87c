package gossip

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"
)

// A Word is what one member says to another in a packet of its own, which the
// acknowledgements of nothing hold up: it arrives also where the network is cut in
// the other direction. It says "I do not hear you". Whoever gossips can
// make one, so it proves itself with a secret that the two share. SPEC.md 6 has its
// bytes.
type Word struct {
	From   Key    // who says it
	To     Key    // whom From does not hear
	Number uint64 // grows with each word of one secret
	proof  [sha256.Size]byte
}

const (
	wordVersion = 1
	wordDeaf    = 1
	wordProved  = 2 + 2*(16+8) + 8
	wordLen     = wordProved + sha256.Size

	// wordCopies is how often a word is sent: a packet may be lost.
	wordCopies = 2
	// maxWords bounds those that nobody has taken yet; further ones are dropped.
	maxWords = 64
)

var errWord = errors.New("malformed word")

// appendProved appends the bytes that the proof is about.
func (w Word) appendProved(b []byte) []byte {
	b = append(b, wordVersion, wordDeaf)
	for _, k := range []Key{w.From, w.To} {
		b = append(b, k.UUID[:]...)
		b = binary.BigEndian.AppendUint64(b, k.Epoch)
	}
	return binary.BigEndian.AppendUint64(b, w.Number)
}

func (w Word) append(b []byte) []byte { return append(w.appendProved(b), w.proof[:]...) }

func (w Word) prove(secret []byte) (proof [sha256.Size]byte) {
	m := hmac.New(sha256.New, secret)
	m.Write(w.appendProved(nil))
	m.Sum(proof[:0])
	return proof
}

// Proves reports whether somebody who knows the secret has said w.
func (w Word) Proves(secret []byte) bool {
	want := w.prove(secret)
	return hmac.Equal(w.proof[:], want[:])
}

func parseWord(b []byte) (w Word, err error) {
	if len(b) != wordLen || b[0] != wordVersion || b[1] != wordDeaf {
		return Word{}, fmt.Errorf("%w of %d bytes", errWord, len(b))
	}
	b = b[2:]
	for _, k := range []*Key{&w.From, &w.To} {
		copy(k.UUID[:], b)
		k.Epoch = binary.BigEndian.Uint64(b[16:])
		b = b[16+8:]
	}
	w.Number = binary.BigEndian.Uint64(b)
	copy(w.proof[:], b[8:])
	return w, nil
}

// TellDeaf tells member k, in packets that may be lost, that this member does not
// hear it. The secret is one that both share, and number larger than in every word
// before with that secret. The error is that of the socket, or that k is not known.
func (g *Gossip) TellDeaf(k Key, secret []byte, number uint64) error {
	g.mu.Lock()
	r := g.members.records[k]
	g.mu.Unlock()
	if r == nil || !r.seen {
		return fmt.Errorf("member %s is not known", k)
	}
	w := Word{From: g.self, To: k, Number: number}
	w.proof = w.prove(secret)
	to := memberlist.Address{Addr: r.member.Address.String(), Name: k.String()}
	var errs []error
	for range wordCopies {
		errs = append(errs, g.list.SendToAddress(to, w.append(nil)))
	}
	return errors.Join(errs...)
}

// TakeWords returns the words since the last TakeWords, in the order in which they
// have come. They are about this member, and said by one that is known; whether that
// is true the caller finds out by [Word.Proves].
func (g *Gossip) TakeWords() []Word { return g.queue.takeWords() }

// hear takes a word. One that is malformed, meant for somebody else or said by a
// stranger is dropped.
func (g *Gossip) hear(b []byte) {
	if len(b) > 1 && b[1] == wordDoubt {
		g.hearDoubt(b)
		return
	}
	w, err := parseWord(b)
	if err != nil || w.To != g.self {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.members.records[w.From]; !g.closed && r != nil && r.seen {
		g.queue.putWord(w)
	}
}
