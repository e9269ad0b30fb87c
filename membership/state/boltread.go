package state

import (
	"encoding/binary"
	"hash/fnv"
)

// The format of bbolt files as far as lease tables use it, version 2. Integers
// are in the machine's byte order.
//
//	page     id u64, flags u16, count u16, overflow u32, then elements
//	meta     magic u32, version u32, page size u32, flags u32,
//	         root page u64, sequence u64, free list u64, page count u64,
//	         transaction u64, FNV-1a of all before it u64
//	branch   per element: position u32, key length u32, page u64
//	leaf     per element: flags u32, position u32, key length u32, value length u32
//
// A position counts from its element. Pages 0 and 1 hold the metas of the last
// two transactions. A leaf element with flag 1 is a bucket: its value is a root
// page u64 and a sequence u64; root 0 means that the bucket's only page follows
// in the value.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	pageHead    = 16
	metaLength  = 64
	branchSize  = 16
	leafSize    = 16
	bucketHead  = 16

	flagBranch = 0x01
	flagLeaf   = 0x02
	flagMeta   = 0x04
	flagBucket = 0x01
)

var native = binary.NativeEndian

// A boltPair is a key with its value; both share the file's memory.
type boltPair struct {
	flags      uint32
	key, value []byte
}

// A boltReader walks a bbolt file that may be damaged in any way. bbolt itself
// trusts its pages: a bad one makes it panic, fault or recurse without end, in ways that a
// caller cannot recover from ([TestBboltDoesNotSurviveDamage]).
type boltReader struct {
	file    []byte
	pages   uint64 // in use, including free ones
	visited map[uint64]bool
}

// readBolt returns the pairs of a bucket in the file's latest transaction. It
// checks that the file can be walked; whether the pairs are right is for the
// caller to check.
func readBolt(file []byte, bucket string) ([]boltPair, error) {
	r := &boltReader{file: file, visited: map[uint64]bool{}}
	root, err := r.latestRoot()
	if err != nil {
		return nil, err
	}
	top, err := r.walk(root, nil)
	if err != nil {
		return nil, err
	}
	if len(top) != 1 || string(top[0].key) != bucket || top[0].flags != flagBucket || len(top[0].value) < bucketHead {
		return nil, damaged("it has no bucket %q", bucket)
	}
	value := top[0].value
	var pairs []boltPair
	if root := native.Uint64(value); root != 0 {
		pairs, err = r.walk(root, nil)
	} else {
		pairs, err = leafPairs(value[bucketHead:], nil)
	}
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if p.flags != 0 {
			return nil, damaged("it has a bucket in bucket %q", bucket)
		}
	}
	return pairs, nil
}

// latestRoot returns the root page of the newer of the two metas that is whole,
// as bbolt does.
func (r *boltReader) latestRoot() (uint64, error) {
	if len(r.file) < 2*boltPage {
		return 0, damaged("%d bytes, want at least %d", len(r.file), 2*boltPage)
	}
	found := false
	var root, newest uint64
	for i := range uint64(2) {
		page := r.file[i*boltPage : (i+1)*boltPage]
		meta := page[pageHead : pageHead+metaLength]
		if native.Uint64(page) != i || native.Uint16(page[8:]) != flagMeta || !wholeMeta(meta) {
			continue
		}
		if tx := native.Uint64(meta[48:]); !found || tx > newest {
			found, newest = true, tx
			root, r.pages = native.Uint64(meta[16:]), native.Uint64(meta[40:])
		}
	}
	if !found {
		return 0, damaged("neither meta page is whole")
	}
	if r.pages > uint64(len(r.file))/boltPage {
		return 0, damaged("%d bytes, want %d pages of %d", len(r.file), r.pages, boltPage)
	}
	return root, nil
}

func wholeMeta(m []byte) bool {
	h := fnv.New64a()
	h.Write(m[:metaLength-8])
	return native.Uint32(m) == boltMagic &&
		native.Uint32(m[4:]) == boltVersion &&
		native.Uint32(m[8:]) == boltPage &&
		native.Uint64(m[metaLength-8:]) == h.Sum64()
}

// walk appends the pairs of a tree of pages. It visits each page at most once,
// so it ends whatever the pages contain; the depth is bounded by their number and
// in a whole tree by a handful.
func (r *boltReader) walk(id uint64, pairs []boltPair) ([]boltPair, error) {
	page, err := r.page(id)
	if err != nil {
		return nil, err
	}
	switch native.Uint16(page[8:]) {
	case flagLeaf:
		return leafPairs(page, pairs)
	case flagBranch:
		count := uint64(native.Uint16(page[10:]))
		if pageHead+count*branchSize > uint64(len(page)) {
			return nil, damaged("page %d has %d branches", id, count)
		}
		for i := range count {
			child := native.Uint64(page[pageHead+i*branchSize+8:])
			if pairs, err = r.walk(child, pairs); err != nil {
				return nil, err
			}
		}
		return pairs, nil
	}
	return nil, damaged("page %d is of an unknown kind", id)
}

// page returns a page with its overflow, which it marks as visited.
func (r *boltReader) page(id uint64) ([]byte, error) {
	if id < 2 || id >= r.pages || r.visited[id] {
		return nil, damaged("a reference to page %d", id)
	}
	r.visited[id] = true
	start := id * boltPage // in the file: id < pages
	overflow := uint64(native.Uint32(r.file[start+12:]))
	if native.Uint64(r.file[start:]) != id || overflow >= r.pages-id {
		return nil, damaged("page %d is not where it belongs", id)
	}
	return r.file[start : start+(overflow+1)*boltPage], nil
}

// leafPairs appends the pairs of a leaf page, which in a bucket's value need not
// be as long as a page.
func leafPairs(page []byte, pairs []boltPair) ([]boltPair, error) {
	if len(page) < pageHead || native.Uint16(page[8:]) != flagLeaf {
		return nil, damaged("a leaf of %d bytes", len(page))
	}
	count := uint64(native.Uint16(page[10:]))
	if pageHead+count*leafSize > uint64(len(page)) {
		return nil, damaged("a leaf with %d elements", count)
	}
	for i := range count {
		at := pageHead + i*leafSize
		e := page[at:]
		start := uint64(native.Uint32(e[4:]))
		keyEnd := start + uint64(native.Uint32(e[8:]))
		end := keyEnd + uint64(native.Uint32(e[12:]))
		if end > uint64(len(e)) { // three 32-bit numbers in 64 bits: no overflow
			return nil, damaged("an element reaches beyond its page")
		}
		pairs = append(pairs, boltPair{native.Uint32(e), e[start:keyEnd], e[keyEnd:end]})
	}
	return pairs, nil
}
