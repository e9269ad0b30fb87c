package pagetest

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTheMatrixHasTheRowsOfOthers: with what each node says of its own links, and why.
func TestTheMatrixHasTheRowsOfOthers(t *testing.T) {
	if lacks(t, "chromium", "chromium", "chromedriver") {
		return
	}
	c := newCluster(t)
	one, two := c.node("node-1"), c.node("node-2")
	b := newBrowser(t, 1280, 1800, false)
	b.open(c.host.page())
	b.await("matrix", func(text string) bool {
		return strings.Count(text, "quic") == 6 && strings.Count(text, "ms")+strings.Count(text, "µs") >= 6
	})
	end := c.fault(one, "--to", two.id(), "--plane", "link", "--drop", "40%")
	says := regexp.MustCompile(one.id() + ` → ` + two.id() + `\s+node ` + one.id() + ` reports: the path to node ` + two.id() + ` \(node-2\) loses \d+\.\d %`)
	b.await("trips-why", says.MatchString)
	if findings := b.text("findings-list"); strings.Contains(findings, "loses") {
		t.Errorf("the host finds by itself what node 1 says:\n%s", findings)
	}
	cells := b.roles()["cell"]
	if !slices.ContainsFunc(cells, func(name string) bool {
		return strings.Contains(name, "warning: ") && strings.Contains(name, "node "+one.id()+" reports: the path to node "+two.id())
	}) {
		t.Errorf("no cell of the accessibility tree has the reason in words: %q", cells)
	}
	b.picture("matrix")
	end()
	b.await("trips-why", func(text string) bool { return !says.MatchString(text) })
}

// roles returns the names of the elements of each role, as a screen reader has them.
func (b *browser) roles() map[string][]string {
	b.t.Helper()
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
		}
	}
	b.call(http.MethodPost, b.session+"/goog/cdp/execute", map[string]any{"cmd": "Accessibility.getFullAXTree", "params": map[string]any{}}, &tree)
	all := map[string][]string{}
	for _, n := range tree.Nodes {
		if role, _ := n.Role.Value.(string); !n.Ignored {
			name, _ := n.Name.Value.(string)
			all[role] = append(all[role], name)
		}
	}
	return all
}

// TestAScreenReaderFindsThePage by its landmarks, tables and headers.
func TestAScreenReaderFindsThePage(t *testing.T) {
	if lacks(t, "chromium", "chromium", "chromedriver") {
		return
	}
	c := newCluster(t)
	b := newBrowser(t, 1280, 1800, false)
	b.open(c.host.page())
	b.await("findings-list", func(text string) bool { return strings.Contains(text, "Fine") })
	roles := b.roles()
	for role, want := range map[string][]string{
		"banner": {""}, "main": {""}, "navigation": {"Sections"}, "search": {"Filter of events"}, "log": {""},
		"region":  {"What is wrong", "Nodes and their incarnations", "Round trips", "Services", "Connections", "Links", "Ports"},
		"table":   {"Round trips from each node to each other node", "Nodes", "Services", "Connections", "Links", "Ports", "Events"},
		"heading": {"What is wrong", "Round trips"}, "columnheader": {"Name", "Waits for", "Why this provider"}, "rowheader": {"0 host"},
		"combobox": {"Kind"}, "searchbox": {"Text"}, "link": {"To what is wrong", "Metrics"}, "button": {"Name", "Silent"},
	} {
		for _, name := range want {
			if !slices.ContainsFunc(roles[role], func(got string) bool { return strings.TrimSpace(got) == name }) {
				t.Errorf("no %s %q among %q", role, name, roles[role])
			}
		}
	}
	var live string
	b.run(`return document.getElementById("announce").getAttribute("aria-live")`, &live)
	if live != "polite" {
		t.Errorf("findings are shown as %q", live)
	}
}

// TestThePageIsUsedWithKeysAlone: each control is reached by Tab, shows that it is, and
// headers sort.
func TestThePageIsUsedWithKeysAlone(t *testing.T) {
	if lacks(t, "chromium", "chromium", "chromedriver") {
		return
	}
	c := newCluster(t)
	c.node("node-1")
	b := newBrowser(t, 1280, 1800, false)
	b.open(c.host.page())
	b.await("nodes-rows", func(text string) bool { return strings.Contains(text, "node-1") })
	type focus struct{ Name, Outline string }
	var order []string
	at := map[string]int{}
	for range 100 {
		b.press("\ue004") // Tab
		var f focus
		b.run(`const e = document.activeElement; return {Name: e === document.body ? "" : e.id || (e.getAttribute("aria-label") || e.innerText).trim(), Outline: getComputedStyle(e).outlineStyle}`, &f)
		if f.Name == "" || len(order) > 0 && f.Name == order[0] {
			break
		}
		if f.Outline == "none" {
			t.Errorf("the focus on %q is not to be seen", f.Name)
		}
		at[f.Name] = len(order)
		order = append(order, f.Name)
	}
	wanted := []string{"To what is wrong", "Nodes", "Round trips", "Waits for", "Silent", "filter-kind", "filter-text", "Detail"}
	for i, name := range wanted {
		if _, ok := at[name]; !ok || order[0] != wanted[0] || i > 3 && at[name] < at[wanted[i-1]] {
			t.Errorf("Tab comes to %q; want %q in this order", order, wanted)
			break
		}
	}
	first := func() (id string) {
		b.run(`return document.getElementById("nodes-rows").rows[0].cells[1].innerText`, &id)
		return id
	}
	b.run(`document.querySelector("#nodes thead th:nth-child(2) button").focus(); return true`, new(bool))
	for i, want := range []struct{ sort, first string }{{"ascending", "host"}, {"descending", "node-1"}, {"", "host"}} {
		b.press("\ue007") // Enter
		var sort string
		b.run(`return document.querySelector("#nodes thead th:nth-child(2)").getAttribute("aria-sort") || ""`, &sort)
		if got := first(); sort != want.sort || !strings.HasPrefix(got, want.first) {
			t.Errorf("after %d times Enter: %q, %q first; want %+v", i+1, sort, got, want)
		}
	}
	b.run(`document.getElementById("filter-text").focus(); return true`, new(bool))
	for _, key := range "node-1" {
		b.press(string(key))
	}
	b.await("events-count", regexp.MustCompile(`^[1-9]\d* of \d+ events$`).MatchString)
	if text := b.text("events-rows"); strings.Contains(text, "self") {
		t.Errorf("the filter lets through:\n%s", text)
	}
}

// press presses a key.
func (b *browser) press(key string) {
	b.t.Helper()
	down := []map[string]string{{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}}
	b.call(http.MethodPost, b.session+"/actions", map[string]any{"actions": []any{map[string]any{"type": "key", "id": "keys", "actions": down}}}, nil)
}
