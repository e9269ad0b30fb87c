package check

// A table has values by their keys, in the order in which they were made. The zero table is empty.
type table[K comparable, V any] struct {
	byKey map[K]*V
	list  []*V
}

// get returns the value of a key, nil if it has none.
func (t *table[K, V]) get(key K) *V { return t.byKey[key] }

// of returns the value of a key; the first time it is made, from first.
func (t *table[K, V]) of(key K, first V) *V {
	v := t.byKey[key]
	if v == nil {
		if t.byKey == nil {
			t.byKey = map[K]*V{}
		}
		v = &first
		t.byKey[key] = v
		t.list = append(t.list, v)
	}
	return v
}
