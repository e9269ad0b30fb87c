package history

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
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

// Merge makes one history of several logs, ordered by time, then source, then number.
func Merge(logs ...[]Record) []Record {
	all := slices.Concat(logs...)
	slices.SortFunc(all, Compare)
	return all
}

// Compare orders records by time, then source, then number: the order of a
// merged history.
func Compare(a, b Record) int {
	switch {
	case a.At != b.At:
		return cmp.Compare(a.At, b.At)
	case a.Source != b.Source:
		return a.Source.compare(b.Source)
	}
	return cmp.Compare(a.Seq, b.Seq)
}
