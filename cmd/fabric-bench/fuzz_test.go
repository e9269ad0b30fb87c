package main

import (
	"bytes"
	"testing"
)

// FuzzReadFiles reads arbitrary bytes as a CSV and as a JSON file of results:
// what is accepted can be written and read again.
func FuzzReadFiles(f *testing.F) {
	var csv bytes.Buffer
	if err := writeCSV(&csv, []Row{{}}); err != nil {
		f.Fatal(err)
	}
	f.Add(csv.Bytes())
	f.Add([]byte(`{"schema":1,"rows":[{}]}`))
	f.Add([]byte("\"a\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = readJSON(bytes.NewReader(b)) // must not panic
		rows, err := readCSV(bytes.NewReader(b))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := writeCSV(&again, rows); err != nil {
			t.Fatalf("%d rows that were read cannot be written: %v", len(rows), err)
		}
		if more, err := readCSV(&again); err != nil || len(more) != len(rows) {
			t.Errorf("%d rows become %d, %v", len(rows), len(more), err)
		}
	})
}
