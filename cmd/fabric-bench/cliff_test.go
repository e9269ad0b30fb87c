package main

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestCliffsAreFound(t *testing.T) {
	row := func(name string, size int64, value figure) Result {
		r := resultOf(name, value, 0, 0)
		r.Size = size
		return r
	}
	raw := row(latencyFigure, 128, 1000)
	raw.Provider = rawProvider
	cliffs, pairs := findCliffs([]Result{
		row(latencyFigure, 8192, 90), row(latencyFigure, 64, 10), row(latencyFigure, 128, 20), // twice the size in twice the time
		row(latencyFigure, 8193, 200), row(latencyFigure, 1<<20, 1e9), // and too far apart
		raw,
	})
	if pairs != 2 || len(cliffs) != 1 || cliffs[0].From != 8192 || cliffs[0].To != 8193 || cliffs[0].Growth < 2.2 || cliffs[0].Growth > 2.3 {
		t.Errorf("%d pairs, %+v; want 2 and the step at 8192", pairs, cliffs)
	}
	cliffs, _ = findCliffs([]Result{row(bandwidthFigure, 64, 100), row(bandwidthFigure, 128, 99), row(bandwidthFigure, 192, 40)})
	if len(cliffs) != 1 || cliffs[0].From != 128 {
		t.Errorf("of bandwidth: %+v, want one at 128", cliffs)
	}
	cliffs, pairs = findCliffs([]Result{row(rateFigure, 8, 1e6), row(rateFigure, 16, 1e6)})
	if len(cliffs) != 0 || pairs != 1 {
		t.Errorf("of rates: %d pairs, %+v; want one and none", pairs, cliffs)
	}
}

// sized returns a latency of a test at a size.
func sized(name string, size int64, micros figure) Result {
	r := resultOf(latencyFigure, micros, 0, 0)
	r.Test, r.Size = name, size
	return r
}

// Both sizes of a cliff are measured again; what stays is told, and a failure if it
// shall be one.
func TestCliffsThatStayAreTold(t *testing.T) {
	cliffs, _ := findCliffs([]Result{
		sized("msg_lat", 24, 1), sized("msg_lat", 32, 9),
		sized("rma_write_lat", 64, 1), sized("rma_write_lat", 128, 5),
		sized("rma_read_lat", 64, 1), sized("rma_read_lat", 128, 6),
	})
	if len(cliffs) != 3 {
		t.Fatalf("%+v, want 3", cliffs)
	}
	asked := map[string][]int64{}
	err := confirm(t.Context(), cliffs, func(_ context.Context, one *test, sizes []int64) ([]Result, error) {
		asked[one.name] = sizes
		low, high := sized(one.name, sizes[0], 1), sized(one.name, sizes[1], 99) // of another sweep
		low.Pairs, high.Pairs = 8, 8
		switch one.name {
		case "msg_lat":
			return []Result{sized(one.name, 24, 1), sized(one.name, 32, 4), low, high}, nil
		case "rma_write_lat":
			return []Result{sized(one.name, 64, 1), sized(one.name, 128, 2), low, high}, nil
		}
		return []Result{low, high}, nil
	})
	if err != nil || len(asked) != 3 || asked["msg_lat"][0] != 24 || asked["msg_lat"][1] != 32 {
		t.Errorf("%v, %v were measured again", err, asked)
	}
	if !near(cliffs[0].Again, 3) || !near(cliffs[1].Again, 1) || cliffs[2].Again.measured() || staying(cliffs) != 1 {
		t.Errorf("%+v, want 3, 1 and nothing again", cliffs)
	}
	var told strings.Builder
	if err := judgeCliffs(&told, cliffs, false); err != nil {
		t.Errorf("without --fail-on-cliff: %v", err)
	}
	if text := told.String(); strings.Count(text, "CLIFF") != 1 || !strings.Contains(text, "msg_lat over quic: from 24 to 32") || !strings.Contains(text, "measured again 3.0 times\n") {
		t.Errorf("told is %q", text)
	}
	if err := judgeCliffs(&told, cliffs, true); !errors.Is(err, errCliff) || exitCodeOf(err) != exitWorse {
		t.Errorf("with it: %v", err)
	}
	if err := judgeCliffs(&told, cliffs[1:], true); err != nil {
		t.Errorf("none has stayed: %v", err)
	}
	away := errors.New("away")
	if err := confirm(t.Context(), cliffs, func(context.Context, *test, []int64) ([]Result, error) { return nil, away }); !errors.Is(err, away) {
		t.Errorf("what cannot be measured again: %v", err)
	}
}

// A bench measures a cliff of its own again, with its own sides.
func TestABenchMeasuresCliffsAgain(t *testing.T) {
	b := &bench{row: newRow(), budget: budget{iters: 20, warmup: 1}, reps: 1, seed: 1, progress: func(string, ...any) {}}
	if err := b.start(t.Context(), bed{}, providerMem); err != nil {
		t.Fatal(err)
	}
	defer b.close()
	made := func(size int64, micros figure) Result {
		r := sized("msg_lat", size, micros)
		r.Provider, r.Dir = providerMem, "echo"
		return r
	}
	cliffs, pairs, err := b.cliffs(t.Context(), []Result{made(64, 1), made(128, 1000)})
	if err != nil || pairs != 1 || len(cliffs) != 1 || !cliffs[0].Again.measured() {
		t.Errorf("%+v of %d pairs, %v; want one that was measured again", cliffs, pairs, err)
	}
	b.plan = &plan{}
	if cliffs, _, err := b.cliffs(t.Context(), []Result{made(64, 1), made(128, 1000)}); err != nil || cliffs[0].Again.measured() {
		t.Errorf("under chaos: %+v, %v; want it left alone", cliffs, err)
	}
}
