package main

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestHeaderIsTheSchemas(t *testing.T) {
	want, err := os.ReadFile("testdata/header.csv")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := writeCSV(&got, nil); err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the header is\n%swant\n%s", got.String(), want)
	}
}

// anyRow draws rows with every kind of cell, unmeasured figures included.
func anyRow(t *rapid.T) Row {
	r := newRow()
	for i := range numColumns {
		switch v := r.column(i).(type) {
		case *string:
			*v = rapid.StringMatching(`[a-z ,"µ]{0,8}`).Draw(t, columns()[i])
		case *int64:
			*v = rapid.Int64().Draw(t, columns()[i])
		case *figure:
			if rapid.Bool().Draw(t, "measured") {
				*v = figure(rapid.Int64Range(-1_000_000_000, 1_000_000_000).Draw(t, columns()[i])) / 1000
			}
		case *bool:
			*v = rapid.Bool().Draw(t, columns()[i])
		default:
			t.Fatalf("column %s has a type without a form in CSV: %T", columns()[i], v)
		}
	}
	return r
}

func TestRowsSurviveCSVAndJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.Custom(anyRow), 0, 4).Draw(t, "rows")
		var text bytes.Buffer
		if err := writeCSV(&text, rows); err != nil {
			t.Fatal(err)
		}
		got, err := readCSV(&text)
		if err != nil {
			t.Fatal(err)
		}
		sameRows(t, "CSV", rows, got)

		d := &Document{Schema: schemaVersion}
		for _, r := range rows {
			d.Results = append(d.Results, Result{Row: r, Figure: "lat_p50_us", Min: 1, Median: absent, Max: 3, PerRep: []figure{1, 3}})
		}
		if err := writeJSON(&text, d); err != nil {
			t.Fatal(err)
		}
		back, err := readJSON(&text)
		if err != nil {
			t.Fatal(err)
		}
		var again []Row
		for _, r := range back.Results {
			again = append(again, r.Row)
			if r.Median.measured() || r.Max != 3 || !reflect.DeepEqual(r.PerRep, []figure{1, 3}) {
				t.Fatalf("JSON: the result's own fields changed: %+v", r)
			}
		}
		sameRows(t, "JSON", rows, again)
	})
}

// sameRows compares cells, because NaN equals nothing.
func sameRows(t *rapid.T, form string, want, got []Row) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows, want %d", form, len(got), len(want))
	}
	for i := range want {
		if w, g := want[i].record(), got[i].record(); !reflect.DeepEqual(w, g) {
			t.Fatalf("%s: row %d is\n%q, want\n%q", form, i, g, w)
		}
	}
}

func TestForeignFilesAreRefused(t *testing.T) {
	header := strings.Join(columns(), ",") + "\n"
	for name, text := range map[string]string{
		"empty":        "",
		"other header": strings.Replace(header, "lat_p50_us", "lat_p50_ms", 1),
		"short row":    header + "a,b\n",
		"bad number":   header + strings.Repeat("x,", numColumns-1) + "true\n",
	} {
		if _, err := readCSV(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read without an error", name)
		}
	}
	if _, err := readJSON(strings.NewReader(`{"schema":"other/1"}`)); err == nil {
		t.Error("JSON of another schema: read without an error")
	}
}
