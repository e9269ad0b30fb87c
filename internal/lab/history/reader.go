package history

import (
	"bufio"
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"io"
)

// MaxRecords bounds the records that [Read] takes from one log.
const MaxRecords = 20_000_000

// Read reads a log: of one source, or merged. The records of each source must be
// numbered from 1 without a gap and their time must not go back. A last line without
// a newline comes from a killed process: it is dropped, unless it is a whole record.
// name is for errors, which have the form "name:line: …".
func Read(r io.Reader, name string) ([]Record, error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	order := make(sequence)
	var records []Record
	for n := 1; ; n++ {
		text, last, err := readLine(lines)
		if err != nil {
			return records, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if last && len(text) == 0 {
			return records, nil
		}
		rec, err := Decode(text)
		if err == nil {
			err = order.next(rec)
		}
		switch {
		case err != nil && last:
			return records, nil // torn
		case err != nil:
			return records, fmt.Errorf("%s:%d: %w", name, n, err)
		case len(records) == MaxRecords:
			return records, fmt.Errorf("%s:%d: more than %d records", name, n, MaxRecords)
		}
		records = append(records, rec)
		if last {
			return records, nil
		}
	}
}

// readLine returns the next line without its newline; last: it had none. The
// line is valid until the next call.
func readLine(r *bufio.Reader) (text []byte, last bool, err error) {
	text, err = r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) { // rare: a long line
		text = bytes.Clone(text)
		for errors.Is(err, bufio.ErrBufferFull) && len(text) <= MaxLine {
			var more []byte
			more, err = r.ReadSlice('\n')
			text = append(text, more...)
		}
	}
	switch {
	case len(text) > MaxLine:
		return nil, false, fmt.Errorf("line longer than %d bytes", MaxLine)
	case errors.Is(err, io.EOF):
		return text, true, nil
	case err != nil:
		return nil, false, err
	}
	return text[:len(text)-1], false, nil
}

// A sequence is the last record of every source.
type sequence map[Source]struct {
	at  int64
	seq uint64
}

// next checks that r follows the earlier records of its source.
func (s sequence) next(r Record) error {
	p := s[r.Source]
	if r.Seq != p.seq+1 {
		return fmt.Errorf("seq: %d of %s follows %d: want no gap", r.Seq, r.Source, p.seq)
	}
	if r.At < p.at {
		return fmt.Errorf("at: %d of %s follows %d: time goes back", r.At, r.Source, p.at)
	}
	p.at, p.seq = r.At, r.Seq
	s[r.Source] = p
	return nil
}

// Merge makes one history of several logs, ordered by time, then source, then
// number. Each log must be in that order itself, as [Read] returns the log of
// one source.
func Merge(logs ...[]Record) []Record {
	var h mergeHeap
	total := 0
	for _, log := range logs {
		total += len(log)
		if len(log) > 0 {
			h = append(h, log)
		}
	}
	heap.Init(&h)
	all := make([]Record, 0, total)
	for len(h) > 0 {
		all = append(all, h[0][0])
		if h[0] = h[0][1:]; len(h[0]) == 0 {
			heap.Pop(&h)
		} else {
			heap.Fix(&h, 0)
		}
	}
	return all
}

// Compare orders records by time, then source, then number: the order of a
// merged history.
func Compare(a, b Record) int {
	switch {
	case a.At != b.At:
		return compare(a.At, b.At)
	case a.Source != b.Source:
		return a.Source.compare(b.Source)
	}
	return compare(a.Seq, b.Seq)
}

func compare[T int64 | uint64](a, b T) int {
	if a < b {
		return -1
	} else if a > b {
		return 1
	}
	return 0
}

// A mergeHeap holds the unread rest of each log, the earliest record first.
type mergeHeap [][]Record

func (h mergeHeap) Len() int           { return len(h) }
func (h mergeHeap) Less(i, j int) bool { return Compare(h[i][0], h[j][0]) < 0 }
func (h mergeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *mergeHeap) Push(x any) { *h = append(*h, x.([]Record)) }

// Pop implements [heap.Interface].
func (h *mergeHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
