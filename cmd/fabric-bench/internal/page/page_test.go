package page

import (
	"strings"
	"testing"

	"golang.org/x/net/html"
)

func example() Report {
	return Report{
		Title: "A <run>",
		Facts: []Fact{{"machine", "two | cores"}},
		Sections: []Section{{
			Heading: "Targets & more", Text: "What <b>is</b> reached.",
			Charts: []Chart{{File: "a.svg", SVG: `<svg xmlns="http://www.w3.org/2000/svg"><text>µs</text></svg>`}},
			Tables: []Table{{Caption: "All", Words: 1, Head: []string{"what", "ours"}, Rows: [][]Cell{
				{{Text: "<script>alert(1)</script>"}, {Text: "1.5", Mood: Bad}}, Cells("b", "2"),
			}}},
			List: []string{"a note"},
		}},
	}
}

// voids are the elements that have no end.
var voids = map[string]bool{"meta": true, "br": true}

// balanced fails unless every element that begins ends in order.
func balanced(t *testing.T, text string) {
	t.Helper()
	var open []string
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		switch z.Next() {
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("left open: %v", open)
			}
			return
		case html.StartTagToken:
			if name, _ := z.TagName(); !voids[string(name)] {
				open = append(open, string(name))
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			if len(open) == 0 || open[len(open)-1] != string(name) {
				t.Fatalf("</%s> ends %v", name, open)
			}
			open = open[:len(open)-1]
		}
	}
}

func TestPageIsWellFormedAndAlone(t *testing.T) {
	text, err := example().HTML()
	if err != nil {
		t.Fatal(err)
	}
	balanced(t, text)
	for _, want := range []string{"<svg", "µs", `class="figure bad"`, "Targets &amp; more", "&lt;script&gt;", `href="#s0"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	for _, bad := range []string{"<script", "<b>", "src=", "@import", "url(", "http://", "https://"} {
		if strings.Contains(strings.ReplaceAll(text, "http://www.w3.org/2000/svg", ""), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

func TestMarkdownKeepsItsTables(t *testing.T) {
	text := example().Markdown()
	for _, want := range []string{"# A &lt;run>", `two \| cores`, "![a.svg](a.svg)", "| what | ours |\n| --- | --: |\n", "| b | 2 |", "- a note"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
}
