package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
)

// Output for people is rounded; scripts read --json, where every value is exact.

// duration returns d with the two or three digits that matter.
func duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + duration(-d)
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= 10*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		switch {
		case d >= 100*unit:
			return d.Round(unit).String()
		case d >= 10*unit:
			return d.Round(unit / 10).String()
		case d >= unit:
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// ago returns how long ago at was, now being now.
func ago(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration(max(now.Sub(at), 0).Truncate(time.Second)) + " ago"
}

// in returns in how long until is, now being now.
func in(until, now time.Time) string {
	left := until.Sub(now)
	switch {
	case until.IsZero():
		return "-"
	case left <= 0:
		return duration(-left.Truncate(time.Second)) + " ago"
	}
	return "in " + duration(left.Truncate(time.Second))
}

// size returns a number of bytes in the largest unit that keeps it readable.
func size(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value /= 1 << 10; value < 1<<10 {
			break
		}
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + unit
}

// plural returns n and the word, with an s unless n is 1.
func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// showStatus prints a status in the order of interest: identity, health, addresses,
// activity. JSON members that it does not know follow.
func showStatus(w io.Writer, text json.RawMessage) error {
	var st daemon.Status
	if err := json.Unmarshal(text, &st); err != nil {
		return err
	}
	node := fmt.Sprintf("%d.%d  %s (%s)", st.ID, st.Generation, st.Name, st.Role)
	if st.ID == addr.NoNode {
		node = fmt.Sprintf("no ID yet  %s (%s)", st.Name, st.Role)
	}
	t := table{
		{"node", node},
		{"state", withDetail(st.State, st.Detail)},
		{"cluster", st.Cluster},
		{"host", hostOf(st)},
		{"running", fmt.Sprintf("%s, version %s, pid %d", duration(time.Duration(st.UptimeSec)*time.Second), st.Version, st.PID)},
		{"data", strings.Join(st.Data, " ") + " over " + providersOf(st)},
		{"gossip", st.Gossip},
		{"socket", st.Socket},
		{"admin", st.Admin},
		{"state dir", st.StateDir},
		{"identity", fmt.Sprintf("%s, start %d", st.Node, st.Epoch)},
		{"detection", st.Detection},
		{"shm paths", ringsOf(st.Rings)},
		{"access", accessOf(st.Access)},
		{"certificates", certificates(st)},
		{"nodes", fmt.Sprintf("%d, %s from here", st.Counts.Nodes, plural(st.Counts.Links, "link"))},
		{"refused", refusals(st.Counts)},
		{"panics", panics(st.Panics)},
		{"applications", strings.Join([]string{plural(st.Counts.Conns, "connection"), plural(st.Counts.Ports, "port"), plural(st.Counts.Windows, "window")}, ", ")},
		{"conn memory", fmt.Sprintf("%s of %s promised to connections", size(uint64(st.Counts.ConnMemory)), size(uint64(st.Counts.ConnMemoryLimit)))},
	}
	if st.FaultsEnabled {
		t = append(t, []string{"faults", "enabled"})
	}
	for _, warning := range st.Warnings {
		t = append(t, []string{"warning", warning})
	}
	members, err := fields(text)
	if err != nil {
		return err
	}
	for _, m := range members {
		if !slices.Contains(statusKnown, m.key) {
			t = append(t, []string{strings.ReplaceAll(m.key, "_", " "), m.text})
		}
	}
	for _, f := range st.Findings {
		if f.Kind != daemon.KindFault { // a warning above
			t = append(t, []string{"problem", findingText(f)})
		}
	}
	return t.print(w)
}

// refusals formats the counts of refused connections and lists of peers.
func refusals(c daemon.Counts) string {
	text := plural(int(c.Refused), "connection")
	if c.StrayLists > 0 {
		text += ", " + plural(int(c.StrayLists), "list") + " of services of another incarnation than the sender's"
	}
	return text
}

// panics formats the number of panics that were caught here. A peer must not be able
// to cause one.
func panics(n uint64) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d caught: each is a bug, whose stack the log has", n)
}

func providersOf(st daemon.Status) string {
	text := strings.Join(st.Providers, ", ")
	for _, u := range st.Unavailable {
		text += fmt.Sprintf("; not %s: %s", u.Provider, u.Reason)
	}
	if st.TCPPlaintext {
		text += "; tcp without TLS"
	}
	return text
}

// ringsOf describes the rings by which applications of the node bypass it.
func ringsOf(r daemon.RingStatus) string {
	if r.None != "" {
		return "none: " + r.None
	}
	text := fmt.Sprintf("%d slots and %s each way, released by %d %%, %s in all; huge pages %s",
		r.Slots, size(uint64(r.Data)), r.Release, size(uint64(r.ShmPath)), r.HugePages)
	if r.Small != "" {
		text += ", small ones at the start: " + r.Small
	}
	return text
}

// accessOf formats the number of access rules and of the connects, binds and services that they refused.
func accessOf(rules []daemon.AccessRule) string {
	if len(rules) == 0 {
		return "" // a node that has not joined yet
	}
	refused := uint64(0)
	for _, r := range rules {
		refused += r.Refused
	}
	return fmt.Sprintf("%s, %s, %s refused by them", rules[len(rules)-1].Rule, plural(len(rules)-1, "rule"), plural(int(refused), "request"))
}

// certificates names the issuer of the certificates and the expiry of this node's.
func certificates(st daemon.Status) string {
	text := "from the " + map[string]string{"host": "host", "operator": "operator's CA"}[st.Trust]
	if !st.Certificate.IsZero() {
		text += ", until " + st.Certificate.Format(time.RFC3339)
	}
	return text
}

// statusKnown are the JSON members of a status that showStatus formats itself.
var statusKnown = strings.Fields(`version pid name role state detail cluster node epoch term id generation host host_detail
	started uptime data_addresses gossip_address socket admin state_dir detection providers providers_unavailable tcp_plaintext trust certificate_until counts panics rings
	faults_enabled warnings access findings`)

func hostOf(st daemon.Status) string {
	text := withDetail(st.Host, st.HostDetail)
	if st.Role == daemon.RoleHost {
		text = "this node"
	}
	return fmt.Sprintf("%s, term %d", text, st.Term)
}

func withDetail(word, detail string) string {
	if detail == "" || detail == word {
		return word
	}
	if more, has := strings.CutPrefix(detail, word+"; "); has {
		return word + "; " + more
	}
	return word + ": " + strings.TrimPrefix(detail, word+": ")
}

// showNodes prints the list of nodes.
func showNodes(w io.Writer, all daemon.Nodes) error {
	now := time.Now()
	t := table{{"ID", "GENERATION", "NAME", "STATE", "SINCE", "ADDRESSES"}}
	for _, n := range all.Nodes {
		id := strconv.Itoa(int(n.ID))
		if n.ID == all.Self {
			id += " (this)"
		}
		t = append(t, []string{id, strconv.Itoa(int(n.Generation)), n.Name, n.State,
			ago(n.Since, now), strings.Join(n.Addresses, " ")})
	}
	return t.print(w)
}
