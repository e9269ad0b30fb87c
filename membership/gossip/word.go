package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"
)

// A word is what one member says to another in a packet of its own, which the
// acknowledgements of nothing hold up: it arrives also where the network is cut in
// the other direction. SPEC.md 6 has its bytes.
type word struct {
	from Key // who says it
	deaf Key // whom from does not hear
}

const (
	wordVersion = 1
	wordDeaf    = 1 // the only thing that is said
	wordLen     = 2 + 2*(16+8)
)

var errWord = errors.New("malformed word")

func (w word) append(b []byte) []byte {
	b = append(b, wordVersion, wordDeaf)
	for _, k := range []Key{w.from, w.deaf} {
		b = append(b, k.UUID[:]...)
		b = binary.BigEndian.AppendUint64(b, k.Epoch)
	}
	return b
}

func parseWord(b []byte) (w word, err error) {
	if len(b) != wordLen || b[0] != wordVersion || b[1] != wordDeaf {
		return word{}, fmt.Errorf("%w of %d bytes", errWord, len(b))
	}
	b = b[2:]
	for _, k := range []*Key{&w.from, &w.deaf} {
		copy(k.UUID[:], b)
		k.Epoch = binary.BigEndian.Uint64(b[16:])
		b = b[16+8:]
	}
	return w, nil
}

// TellDeaf tells member k, in one packet that may be lost, that this member does not
// hear it. The error is that of the socket, or that k is not known.
func (g *Gossip) TellDeaf(k Key) error {
	g.mu.Lock()
	r := g.members[k]
	g.mu.Unlock()
	if r == nil {
		return fmt.Errorf("member %s is not known", k)
	}
	to := memberlist.Address{Addr: r.member.Address.String(), Name: k.String()}
	return g.list.SendToAddress(to, word{g.self, k}.append(nil))
}

// TakeDeaf returns the members that have told us since the last TakeDeaf that they
// do not hear us, in the order of their names. Each is known, but who holds the keys
// can say it for others.
func (g *Gossip) TakeDeaf() []Key { return g.queue.takeDeaf() }

// hear takes a word. One that is malformed, meant for somebody else or said by a
// stranger is dropped.
func (g *Gossip) hear(b []byte) {
	w, err := parseWord(b)
	if err != nil || w.deaf != g.self {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed && g.members[w.from] != nil {
		g.queue.putDeaf(w.from)
	}
}
