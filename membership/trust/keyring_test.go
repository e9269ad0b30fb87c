package trust

import (
	"bytes"
	"reflect"
	"testing"
)

func TestKeyringRotation(t *testing.T) {
	first := NewKeyring()
	next, err := first.Next()
	if err != nil || next.Version != 2 {
		t.Fatalf("next key %v, %v, want version 2", next, err)
	}
	both, err := first.Install(next)
	if err != nil {
		t.Fatal(err)
	}
	if both.Primary() != first.Primary() || len(both.Keys()) != 2 {
		t.Errorf("after install: %v, want the old key to encrypt and both to decrypt", both)
	}
	used, err := both.Use(2)
	if err != nil {
		t.Fatal(err)
	}
	if used.Primary() != next || !bytes.Equal(used.Keys()[0], next.Key[:]) || len(used.Keys()) != 2 {
		t.Errorf("after use: %v, want the new key first", used)
	}
	_, err = used.Remove(2)
	wantError(t, "remove the primary", err, nil, "in use")
	last, err := used.Remove(1)
	if err != nil || !reflect.DeepEqual(last.Versions(), []uint32{2}) {
		t.Errorf("after remove: %v, %v", last, err)
	}
	// The steps left their receivers as they were.
	if !reflect.DeepEqual(both.Versions(), []uint32{1, 2}) || !reflect.DeepEqual(used.Versions(), []uint32{2, 1}) {
		t.Errorf("earlier rings changed: %v, %v", both, used)
	}
	if third, err := last.Next(); err != nil || third.Version != 3 {
		t.Errorf("next key %v, %v, want version 3", third, err)
	}
}

func TestKeyringRefuses(t *testing.T) {
	r := NewKeyring()
	same, err := r.Install(r.Primary())
	if err != nil || !reflect.DeepEqual(same, r) {
		t.Errorf("the same key again: %v, %v", same, err)
	}
	_, err = r.Install(GossipKey{Version: 1})
	wantError(t, "another key of this version", err, nil, "another key")
	_, err = r.Install(GossipKey{})
	wantError(t, "version 0", err, ErrKeyring)
	_, err = r.Use(9)
	wantError(t, "use an unknown key", err, ErrKeyringVersion)
	if got, err := r.Remove(9); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("remove an unknown key: %v, %v", got, err)
	}
	for range maxGossipKeys - 1 {
		k, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r, err = r.Install(k); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.Install(GossipKey{Version: 99})
	wantError(t, "a fifth key", err, ErrKeyringFull)
	last := Keyring{keys: []GossipKey{{Version: 1<<32 - 1}}}
	_, err = last.Next()
	wantError(t, "after the last version", err, nil, "used up")
	if (Keyring{}).Primary() != (GossipKey{}) {
		t.Error("an empty ring has a primary key")
	}
}

func FuzzDecodeKeyring(f *testing.F) {
	r := NewKeyring()
	f.Add(r.Encode())
	f.Add([]byte{})
	f.Add(make([]byte, 36))
	f.Add(append(r.Encode(), r.Encode()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeKeyring(b)
		if err != nil {
			return
		}
		if !bytes.Equal(r.Encode(), b) {
			t.Errorf("%x decodes to %v", b, r)
		}
		if n := len(r.Keys()); n < 1 || n > maxGossipKeys {
			t.Errorf("%d keys", n)
		}
	})
}

// Primary returns the key that encrypts, or the zero key of an empty keyring.
func (r Keyring) Primary() GossipKey {
	if len(r.keys) == 0 {
		return GossipKey{}
	}
	return r.keys[0]
}
