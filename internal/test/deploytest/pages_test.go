package deploytest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// pages are those for users: short ones.
var pages = []string{"docs/README.md", "docs/compose.md", "docs/kubernetes.md", "docs/systemd.md", "docs/sysctl.md", "docs/rings.md", "docs/quotas.md",
	"docs/access.md", "docs/connect.md", "docs/names.md", "docs/audit.md", "docs/threats.md", "docs/failures.md", "docs/operate.md", "docs/backup.md", "docs/upgrade.md", "docs/observe.md",
	"docs/install.md", "docs/test-failures.md", "docs/performance.md", "CONTRIBUTING.md", "CHANGELOG.md"}

// commands returns the commands of a page: the indented lines that begin with
// one of the programs.
func commands(t *testing.T, page string, programs ...string) [][]string {
	t.Helper()
	var all [][]string
	for line := range strings.Lines(readFile(t, page)) {
		words := strings.Fields(line)
		if strings.HasPrefix(line, "    ") && len(words) > 0 && slices.Contains(programs, words[0]) {
			all = append(all, words)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no commands: nothing is tested", page)
	}
	return all
}

// TestEveryCommandIsTested allows no command on a page that no test knows. Those of fabricd
// are run by the test of its command line.
func TestEveryCommandIsTested(t *testing.T) {
	known := []string{"make", "docker-compose", "kubectl", "install", "systemd-sysusers", "runuser", "systemctl", "usermod", "sysctl", "UDP", "fabricd"}
	link := regexp.MustCompile(`\]\(([^)]+)\)`)
	for _, page := range pages {
		text := readFile(t, page)
		for line := range strings.Lines(text) {
			if words := strings.Fields(line); strings.HasPrefix(line, "    ") && !slices.Contains(known, words[0]) {
				t.Errorf("%s: no test runs %q", page, line)
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		if n := strings.Count(text, "\n"); n > 60 {
			t.Errorf("%s has %d lines, want 60 at most", page, n)
		}
	}
	makefile := readFile(t, "Makefile")
	for _, target := range regexp.MustCompile("(?:`|    )make\\s([a-z-]+)").FindAllStringSubmatch(readFile(t, "docs/compose.md")+readFile(t, "docs/README.md")+readFile(t, "docs/failures.md")+
		readFile(t, "docs/install.md")+readFile(t, "docs/test-failures.md")+readFile(t, "docs/performance.md")+readFile(t, "CONTRIBUTING.md"), -1) {
		if !strings.Contains(makefile, "\n"+target[1]+":") {
			t.Errorf("make %s is no target of the Makefile", target[1])
		}
	}
}

// TestFiguresAreThoseOfTheLastRun holds the table of performance.md to TARGETS.md: ours and its,
// in one row.
func TestFiguresAreThoseOfTheLastRun(t *testing.T) {
	_, table, _ := strings.Cut(readFile(t, "docs/performance.md"), "|---|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	targets := strings.Split(readFile(t, "cmd/fabric-bench/TARGETS.md"), "\n")
	rows := strings.Split(table, "\n")
	for _, row := range rows {
		cells := strings.Split(row, "|")
		ours := strings.TrimSpace(cells[3])
		its, _, _ := strings.Cut(strings.TrimSpace(cells[4]), ",")
		if !slices.ContainsFunc(targets, func(line string) bool {
			return strings.Contains(line, "| "+ours+" ") && (its == "" || strings.Contains(line, "| "+its+" "))
		}) {
			t.Errorf("TARGETS.md has no row with %q beside %q", ours, its)
		}
	}
	if len(rows) < 8 {
		t.Errorf("performance.md has %d rows of figures", len(rows))
	}
}

// composePage does the steps of compose.md, between its first
// command, which start has run, and its last, which the end of the test runs.
func composePage(t *testing.T, p *project) {
	all := commands(t, "docs/compose.md", "docker-compose")
	for i, words := range all {
		if len(words) < 4 || words[1] != "-f" || words[2] != "deploy/compose.yaml" {
			t.Fatalf("compose.md: %q: want the file of this repository", words)
		}
		args := strings.Join(words[3:], " ")
		if first, last := i == 0, i == len(all)-1; first || last {
			if first && args != "up -d" || last && args != "down -v" {
				t.Errorf("compose.md: %q: want up first and down last", words)
			}
			continue
		}
		out := p.compose(words[3:]...)
		for about, want := range map[string]string{"/fabricd nodes": "node2", "logs visitor": "round 0: ", "ps": "healthy"} {
			if strings.Contains(args, about) && !strings.Contains(out, want) {
				t.Errorf("%q prints no %q:\n%s", words, want, out)
			}
		}
	}
	if len(all) < 5 {
		t.Errorf("compose.md has %d commands: something is missing", len(all))
	}
}

// kubernetesPage runs what the page for Kubernetes lets fabricd do, in the
// cluster that is up, and looks up what kubectl is given.
func kubernetesPage(t *testing.T, p *project) {
	const page = "docs/kubernetes.md"
	host := p.container("host")
	ran := 0
	for _, words := range commands(t, page, "kubectl") {
		line := strings.Join(words[1:], " ")
		if i := slices.Index(words, "--"); i > 0 {
			args, _, _ := strings.Cut(strings.Join(words[i+1:], " "), " > ")
			docker(t, append([]string{"exec", host}, strings.Fields(args)...)...)
			ran++
			continue
		}
		manifests := readFile(t, "deploy/k8s/host.yaml") + readFile(t, "deploy/k8s/nodes.yaml")
		wants, known := map[string][]string{
			"apply -k deploy/k8s":                                                        nil, // deploy/check holds the kustomization to its files
			"-n fabricd rollout status statefulset/fabricd-host":                         {"kind: StatefulSet", "name: fabricd-host\n"},
			"-n fabricd create secret generic fabricd-join --from-file=token=join.token": {"secretName: fabricd-join", "/run/join/token"},
			"-n fabricd logs visitor-0 -c visitor":                                       {"name: visitor\n"},
		}[line]
		if !known {
			t.Errorf("%s: %q is checked by nothing", page, line)
		}
		for _, want := range wants {
			if !strings.Contains(manifests, want) {
				t.Errorf("%s: %q: no manifest has %q", page, line, want)
			}
		}
	}
	if ran < 2 {
		t.Errorf("%s: %d commands of fabricd were run", page, ran)
	}
	for _, m := range regexp.MustCompile("`(fabricd [a-z][^`]*)`").FindAllStringSubmatch(readFile(t, page), -1) {
		docker(t, append([]string{"exec", host, "/fabricd"}, strings.Fields(m[1])[1:]...)...)
	}
}

// TestFencesAreClosed in each page and each README, and what a block calls YAML is.
func TestFencesAreClosed(t *testing.T) {
	all := slices.Clone(pages)
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			page, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page)
		}
	}
	slices.Sort(all)
	blocks := 0
	for _, page := range slices.Compact(all) {
		block, language, open := "", "", false
		for line := range strings.Lines(readFile(t, page)) {
			after, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
			if !fence {
				block += line
				continue
			}
			var into any
			if open && language == "yaml" {
				blocks++
				if err := yaml.Unmarshal([]byte(block), &into); err != nil {
					t.Errorf("%s: a block of YAML: %v", page, err)
				}
			}
			block, language, open = "", after, !open
		}
		if open {
			t.Errorf("%s: a block of code is not closed", page)
		}
	}
	if blocks == 0 {
		t.Error("no page has a block of YAML: nothing is tested")
	}
}
