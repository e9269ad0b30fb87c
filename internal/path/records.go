package path

import "encoding/binary"

// records counts the bytes given to TLS and the bytes it has returned, so that a reader asks for
// buffered bytes only when there may be some: the question costs memory.
type records struct {
	head  [5]byte // of the record that has begun
	have  int     // of head
	left  int     // bytes of the record behind head that are to come
	plain uint64  // message bytes of the complete records, or more: other records and padding count too
	taken uint64  // message bytes that were read; set to plain when nothing is left
}

// applicationData is the outer type of all encrypted records, overhead the bytes that TLS 1.3
// adds to one.
const (
	applicationData = 23
	overhead        = 17
)

// feed counts the bytes that TLS is given.
func (r *records) feed(p []byte) {
	for len(p) > 0 {
		if r.have < len(r.head) {
			n := copy(r.head[r.have:], p)
			r.have, p = r.have+n, p[n:]
			r.left = int(binary.BigEndian.Uint16(r.head[3:]))
		} else {
			n := min(r.left, len(p))
			r.left, p = r.left-n, p[n:]
		}
		if r.have < len(r.head) || r.left > 0 {
			continue
		}
		if size := int(binary.BigEndian.Uint16(r.head[3:])); r.head[0] == applicationData && size > overhead {
			r.plain += uint64(size - overhead)
		}
		r.have = 0
	}
}

// more reports whether TLS may have bytes that were not read.
func (r *records) more() bool { return r.plain > r.taken }
