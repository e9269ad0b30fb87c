package trust

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// GossipKeyBytes is the length of a gossip key: AES-256.
const GossipKeyBytes = 32

// maxGossipKeys bounds a keyring. A rotation has two keys; more only overlap.
const maxGossipKeys = 4

// A GossipKey encrypts gossip. Versions count up from 1 and are never reused.
type GossipKey struct {
	Version uint32
	Key     [GossipKeyBytes]byte
}

// A Keyring holds the gossip keys that a node knows. One of them, the primary,
// encrypts; all of them decrypt. A rotation has three steps, each done at every
// node before the next one begins: [Keyring.Install] the new key, [Keyring.Use]
// it, [Keyring.Remove] the old one. A Keyring is a value: its methods return a
// changed copy and leave the receiver as it is.
type Keyring struct {
	keys []GossipKey // primary first, then newest first; versions differ
}

// Errors of keyrings.
var (
	ErrKeyringFull    = errors.New("keyring is full: remove an old key first")
	ErrKeyringVersion = errors.New("no such key in the keyring")
	ErrKeyring        = errors.New("malformed keyring")
)

// NewKeyring returns a keyring with one random key of version 1.
func NewKeyring() Keyring {
	return Keyring{keys: []GossipKey{newGossipKey(1)}}
}

func newGossipKey(version uint32) GossipKey {
	k := GossipKey{Version: version}
	rand.Read(k.Key[:]) // never fails
	return k
}

// Next makes a random key whose version follows the newest one.
func (r Keyring) Next() (GossipKey, error) {
	var newest uint32
	for _, k := range r.keys {
		newest = max(newest, k.Version)
	}
	if newest == ^uint32(0) {
		return GossipKey{}, errors.New("gossip key versions are used up")
	}
	return newGossipKey(newest + 1), nil
}

// Keys returns copies of all keys, the primary first, as memberlist wants them.
func (r Keyring) Keys() [][]byte {
	list := make([][]byte, 0, len(r.keys))
	for _, k := range r.keys {
		list = append(list, k.Key[:])
	}
	return list
}

// Versions returns the versions of all keys, the primary's first.
func (r Keyring) Versions() []uint32 {
	list := make([]uint32, 0, len(r.keys))
	for _, k := range r.keys {
		list = append(list, k.Version)
	}
	return list
}

// Install adds a key that decrypts. Installing the same key again changes
// nothing; another key of the same version is refused.
func (r Keyring) Install(key GossipKey) (Keyring, error) {
	if i := r.find(key.Version); i >= 0 {
		if r.keys[i] != key {
			return r, fmt.Errorf("install gossip key %d: another key has this version", key.Version)
		}
		return r, nil
	}
	if key.Version == 0 {
		return r, fmt.Errorf("install gossip key: %w: version 0", ErrKeyring)
	}
	if len(r.keys) >= maxGossipKeys {
		return r, fmt.Errorf("install gossip key %d: %w", key.Version, ErrKeyringFull)
	}
	return Keyring{keys: append(append([]GossipKey(nil), r.keys...), key)}, nil
}

// Use makes an installed key the primary.
func (r Keyring) Use(version uint32) (Keyring, error) {
	i := r.find(version)
	if i < 0 {
		return r, fmt.Errorf("use gossip key %d: %w", version, ErrKeyringVersion)
	}
	keys := append([]GossipKey{r.keys[i]}, r.keys[:i]...)
	return Keyring{keys: append(keys, r.keys[i+1:]...)}, nil
}

// Remove forgets a key that is not the primary. Removing a key that is not
// there changes nothing.
func (r Keyring) Remove(version uint32) (Keyring, error) {
	i := r.find(version)
	if i < 0 {
		return r, nil
	}
	if i == 0 {
		return r, fmt.Errorf("remove gossip key %d: it is in use", version)
	}
	keys := append([]GossipKey(nil), r.keys[:i]...)
	return Keyring{keys: append(keys, r.keys[i+1:]...)}, nil
}

func (r Keyring) find(version uint32) int {
	return slices.IndexFunc(r.keys, func(k GossipKey) bool { return k.Version == version })
}

// Encode returns the keyring for its file and for joining nodes: per key the
// version in 4 bytes, big endian, and 32 bytes of key, primary first. It is a
// secret.
func (r Keyring) Encode() []byte {
	b := make([]byte, 0, len(r.keys)*(4+GossipKeyBytes))
	for _, k := range r.keys {
		b = binary.BigEndian.AppendUint32(b, k.Version)
		b = append(b, k.Key[:]...)
	}
	return b
}

// DecodeKeyring parses the bytes of [Keyring.Encode]: one to four keys.
func DecodeKeyring(b []byte) (Keyring, error) {
	const size = 4 + GossipKeyBytes
	if len(b) == 0 || len(b)%size != 0 || len(b)/size > maxGossipKeys {
		return Keyring{}, fmt.Errorf("decode keyring: %w: %d bytes, want 1 to %d keys of %d", ErrKeyring, len(b), maxGossipKeys, size)
	}
	var r Keyring
	for ; len(b) > 0; b = b[size:] {
		k := GossipKey{Version: binary.BigEndian.Uint32(b), Key: [GossipKeyBytes]byte(b[4:size])}
		if k.Version == 0 || r.find(k.Version) >= 0 {
			return Keyring{}, fmt.Errorf("decode keyring: %w: version %d", ErrKeyring, k.Version)
		}
		r.keys = append(r.keys, k)
	}
	return r, nil
}

// String names the versions and no key.
func (r Keyring) String() string { return fmt.Sprintf("gossip keys %v", r.Versions()) }

// GoString returns the same as [Keyring.String].
func (r Keyring) GoString() string { return r.String() }

// String names the version and not the key.
func (k GossipKey) String() string { return fmt.Sprintf("gossip key %d", k.Version) }

// GoString returns the same as [GossipKey.String].
func (k GossipKey) GoString() string { return k.String() }
