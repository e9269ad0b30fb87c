// Package page writes a report as one HTML file that needs nothing else, and as
// Markdown.
package page

import (
	"fmt"
	"html/template"
	"strings"
)

// A Report is headings, sentences, tables and pictures.
type Report struct {
	Title    string
	Facts    []Fact // of the run: when, where, by what
	Sections []Section
}

// A Fact is a name and a value.
type Fact struct{ Name, Value string }

// A Section is a part of the report.
type Section struct {
	Heading string
	Text    string
	Charts  []Chart
	Tables  []Table
	List    []string
}

// A Chart is a picture, and the file beside the report that has it too.
type Chart struct {
	File string
	SVG  string // trusted: package plot has escaped what it was given
}

// A Table is rows under a head; its first columns are left-aligned words, the
// others figures.
type Table struct {
	Caption string
	Words   int // how many columns are words
	Head    []string
	Rows    [][]Cell
}

// A Cell is a text, and whether it is good or bad news.
type Cell struct {
	Text string
	Mood Mood
}

// A Mood colors a cell.
type Mood string

// The moods.
const (
	Plain Mood = ""
	Good  Mood = "good"
	Bad   Mood = "bad"
	Dim   Mood = "dim"
)

// Cells returns plain cells.
func Cells(texts ...string) []Cell {
	cells := make([]Cell, len(texts))
	for i, t := range texts {
		cells[i] = Cell{Text: t}
	}
	return cells
}

var document = template.Must(template.New("report").Funcs(template.FuncMap{
	"svg":    func(s string) template.HTML { return template.HTML(s) }, // see Chart.SVG
	"figure": func(words, column int) bool { return column >= words },
	"anchor": func(i int) string { return fmt.Sprintf("s%d", i) },
}).Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1180px; margin: 0 auto; padding: 0 20px 60px; }
h1 { font-size: 24px; } h2 { font-size: 19px; margin-top: 40px; border-bottom: 1px solid #ddd; }
nav a { margin-right: 14px; }
dl { display: grid; grid-template-columns: max-content auto; gap: 2px 16px; } dt { color: #666; } dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; margin: 12px 0; white-space: nowrap; }
caption { text-align: left; color: #555; padding: 4px 0; }
th, td { padding: 3px 9px; border-bottom: 1px solid #e6e6e6; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #bbb; background: #fafafa; position: sticky; top: 0; }
.figure { text-align: right; font-variant-numeric: tabular-nums; }
.wrap { white-space: normal; min-width: 220px; }
.good { color: #116329; font-weight: 600; } .bad { color: #b42318; font-weight: 600; } .dim { color: #777; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 18px; }
.charts svg { width: 100%; height: auto; border: 1px solid #ddd; }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<dl>{{range .Facts}}<dt>{{.Name}}</dt><dd>{{.Value}}</dd>{{end}}</dl>
<nav>{{range $i, $s := .Sections}}<a href="#{{anchor $i}}">{{$s.Heading}}</a>{{end}}</nav>
{{range $i, $s := .Sections}}
<section id="{{anchor $i}}">
<h2>{{$s.Heading}}</h2>
{{with $s.Text}}<p>{{.}}</p>{{end}}
{{with $s.Charts}}<div class="charts">{{range .}}<div>{{svg .SVG}}</div>{{end}}</div>{{end}}
{{range $s.Tables}}{{$words := .Words}}<div class="scroll"><table>
{{with .Caption}}<caption>{{.}}</caption>{{end}}
<thead><tr>{{range $j, $h := .Head}}<th{{if figure $words $j}} class="figure"{{end}}>{{$h}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}<tr>{{range $j, $c := .}}<td class="{{if figure $words $j}}figure{{end}} {{$c.Mood}}">{{$c.Text}}</td>{{end}}</tr>
{{end}}</tbody></table></div>{{end}}
{{with $s.List}}<ul>{{range .}}<li>{{.}}</li>{{end}}</ul>{{end}}
</section>{{end}}
</body>
</html>
`))

// HTML returns the report as one page without anything from elsewhere.
func (r Report) HTML() (string, error) {
	var b strings.Builder
	err := document.Execute(&b, r)
	return b.String(), err
}

// Markdown returns the report as Markdown, with the pictures as the files beside
// it.
func (r Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", plain(r.Title))
	for _, f := range r.Facts {
		fmt.Fprintf(&b, "- %s: %s\n", plain(f.Name), plain(f.Value))
	}
	for _, s := range r.Sections {
		fmt.Fprintf(&b, "\n## %s\n\n", plain(s.Heading))
		if s.Text != "" {
			fmt.Fprintf(&b, "%s\n\n", plain(s.Text))
		}
		for _, c := range s.Charts {
			fmt.Fprintf(&b, "![%s](%s)\n", plain(c.File), c.File)
		}
		for _, t := range s.Tables {
			t.markdown(&b)
		}
		for _, l := range s.List {
			fmt.Fprintf(&b, "- %s\n", plain(l))
		}
	}
	return b.String()
}

func (t Table) markdown(b *strings.Builder) {
	if t.Caption != "" {
		fmt.Fprintf(b, "\n%s\n\n", plain(t.Caption))
	}
	row := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	head, rule := make([]string, len(t.Head)), make([]string, len(t.Head))
	for i, h := range t.Head {
		head[i], rule[i] = plain(h), "---"
		if i >= t.Words {
			rule[i] = "--:"
		}
	}
	row(head)
	row(rule)
	for _, cells := range t.Rows {
		texts := make([]string, len(cells))
		for i, c := range cells {
			texts[i] = plain(c.Text)
		}
		row(texts)
	}
	b.WriteString("\n")
}

// plain keeps a text from being read as Markdown's or HTML's own signs.
func plain(s string) string {
	return strings.NewReplacer("\n", " ", "|", `\|`, "<", "&lt;", "*", `\*`).Replace(s)
}
