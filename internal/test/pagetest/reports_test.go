package pagetest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// reports writes the pages of the lab and of the benchmark, each by the command that writes it,
// and returns their files by name.
func reports(t *testing.T) map[string]string {
	t.Helper()
	fabricd, err := program()
	if err != nil {
		t.Fatal(err)
	}
	at, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	one, two, compared, bench := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "compared.html"), filepath.Join(dir, "bench.html")
	scenario := filepath.Join(at, "deploy/scenarios/node-killed.yaml")
	for _, args := range [][]string{
		{fabricd, "chaos", "run", scenario, "--seed", "1", "--report", one},
		{fabricd, "chaos", "run", scenario, "--seed", "2", "--report", two},
		{fabricd, "chaos", "compare", one, two, "--out", compared},
		{"go", "run", "./cmd/fabric-bench", "page", "cmd/fabric-bench/testdata/last.json", "--out", bench},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = at
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	golden := filepath.Join(at, "internal/lab/report/testdata")
	return map[string]string{"sample": filepath.Join(golden, "sample.html"), "suite": filepath.Join(golden, "suite.html"),
		"run": filepath.Join(one, "report.html"), "compared": compared, "bench": bench}
}

// cutOff lists the elements of a page that are not whole in its window: they begin or end beside
// it, have more than they show, or are text that its picture cuts.
const cutOff = `
const all = [], name = e => e.tagName + " " + (e.textContent || "").trim().slice(0, 60);
for (const e of document.body.querySelectorAll("*")) {
	const box = e.getBoundingClientRect(), svg = e.ownerSVGElement;
	if (box.left < -1 || box.right > innerWidth + 1) all.push(name(e) + ": beside the window");
	if (!svg && !(e instanceof SVGElement) && getComputedStyle(e).display !== "inline" && e.scrollWidth > e.clientWidth + 1) all.push(name(e) + ": wider than its place");
	if (svg && e.tagName === "text") {
		const picture = svg.getBoundingClientRect();
		if (box.left < picture.left - 1 || box.right > picture.right + 1 || box.top < picture.top - 1 || box.bottom > picture.bottom + 1) all.push(name(e) + ": cut by its picture");
	}
}
return {Width: document.documentElement.scrollWidth, Inner: innerWidth, Texts: document.body.innerText.length, Cut: all}`

// A fit is how a page lies in its window.
type fit struct {
	Width, Inner float64
	Texts        int // letters
	Cut          []string
}

func (b *browser) fit() (seen fit) {
	b.t.Helper()
	b.run(cutOff, &seen)
	return seen
}

// TestReportsFitTheirWindow: on a screen of 1,280 pixels no report scrolls to the side, and nothing
// of one is cut.
func TestReportsFitTheirWindow(t *testing.T) {
	if lacks(t, "chromium", "chromium", "chromedriver") {
		return
	}
	b := newBrowser(t, 1280, 1700, false)
	for name, file := range reports(t) {
		b.open("file://" + file)
		seen := b.fit()
		if seen.Inner != 1280 || seen.Width > seen.Inner || seen.Texts < 300 {
			t.Errorf("%s: %v wide in a window of %v, with %d letters", name, seen.Width, seen.Inner, seen.Texts)
		}
		for _, what := range seen.Cut {
			t.Errorf("%s: %s", name, what)
		}
		b.picture("report-" + name)
	}
	b.open(`data:text/html,<div style="overflow:auto"><p style="width:1500px">wide</p></div><svg width="40" height="9"><text y="8">cut by its picture</text></svg>`)
	if seen := b.fit(); len(seen.Cut) != 3 {
		t.Errorf("of a page with a wide line, its frame and a cut text it finds %q", seen.Cut)
	}
}
