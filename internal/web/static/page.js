"use strict";
// The page of one node: it draws each state that the stream brings. All text of others goes
// into the document as text, never as HTML.

const byID = (id) => document.getElementById(id);
const windowMS = 15 * 60 * 1000; // of the timeline
let last = null; // the last state
let known = new Set(); // findings that were announced

function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) if (v !== undefined && v !== "") e.setAttribute(k, v);
  e.append(...children);
  return e;
}

function svg(tag, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

function span(ms) {
  const s = Math.max(ms, 0) / 1000;
  if (s < 0.0995) return Math.round(s * 1000) + " ms";
  if (s < 60) return s.toFixed(1) + " s";
  if (s < 3600) return Math.floor(s / 60) + "m" + Math.floor(s % 60) + "s";
  if (s < 172800) return Math.floor(s / 3600) + "h" + Math.floor((s % 3600) / 60) + "m";
  return Math.floor(s / 86400) + " days";
}

function trip(us) {
  if (us < 1000) return us + " µs";
  return (us / 1000).toFixed(us < 10000 ? 2 : 1) + " ms";
}

function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return (i === 0 ? n : n.toFixed(1)) + " " + units[i];
}

const isZero = (time) => !time || time.startsWith("0001-");
const ms = (time) => new Date(time).getTime();
const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
const num = (text) => el("td", { class: "num" }, String(text));
const td = (...text) => el("td", {}, ...text.map((t) => (t instanceof Node ? t : String(t))));
const wide = (text) => el("td", { class: "wide" }, text);
const badge = (text, kind) => el("span", { class: "badge " + kind }, text);

// Tables are sorted by the header that was chosen last, until it is chosen a third time.
const sorted = new Map(); // by the ID of a table's rows: { column, down }

function sortable(body) {
  [...body.parentNode.tHead.rows[0].cells].forEach((th, column) => {
    const button = el("button", { type: "button" }, ...th.childNodes);
    button.addEventListener("click", () => {
      const now = sorted.get(body.id);
      if (!now || now.column !== column) sorted.set(body.id, { column, down: false });
      else if (!now.down) now.down = true;
      else sorted.delete(body.id);
      const chosen = sorted.get(body.id);
      for (const other of th.parentNode.cells) other.removeAttribute("aria-sort");
      if (chosen) th.setAttribute("aria-sort", chosen.down ? "descending" : "ascending");
      if (last) draw(last);
    });
    th.replaceChildren(button);
  });
}

// valueOf is what a cell is sorted by: a number with its unit, else the text.
function valueOf(cell) {
  const text = cell.textContent;
  const m = /^(\d+(?:\.\d+)?)\s*(µs|ms|s|m|h|days|B|KiB|MiB|GiB|TiB|%|×)?/.exec(text);
  const unit = { "µs": 1e-6, ms: 1e-3, m: 60, h: 3600, days: 86400, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
  return m && cell.classList.contains("num") ? Number(m[1]) * (unit[m[2]] || 1) : cell.classList.contains("num") ? -1 : text;
}

function order(id, all) {
  const by = sorted.get(id);
  if (!by) return all;
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  return all.toSorted((a, b) => compare(valueOf(a.cells[by.column]), valueOf(b.cells[by.column])) * (by.down ? -1 : 1));
}

function rows(id, all) {
  const body = byID(id);
  all = order(id, all);
  if (all.length === 0 && body.dataset.empty) {
    const columns = body.parentNode.tHead.rows[0].cells.length;
    all = [el("tr", {}, el("td", { colspan: columns, class: "empty" }, body.dataset.empty))];
  }
  body.replaceChildren(...all);
}

function drawHead(s) {
  const me = s.self;
  byID("name").textContent = me.name;
  document.title = me.name + " · fabricd";
  byID("place").textContent = me.id === 65535 ? "no ID yet" : "node " + me.id + "." + me.generation;
  byID("about").textContent = [me.role, me.state, "cluster " + me.cluster.slice(0, 8), "up " + span(ms(s.time) - ms(me.started)), "version " + me.version].join(" · ");
}

function drawFindings(s) {
  const words = { broken: "Broken", warning: "Warning", note: "Note" };
  const items = s.findings.map((f) =>
    el("li", { class: "finding " + f.severity, "data-kind": f.kind }, el("b", {}, words[f.severity]), el("span", {}, f.text)));
  if (!s.findings.some((f) => f.severity !== "note")) {
    items.unshift(el("li", { class: "finding fine" }, el("b", {}, "Fine"), el("span", {}, "This node sees nothing wrong.")));
  }
  const list = byID("findings-list");
  const same = list.children.length === items.length && items.every((item, i) => item.isEqualNode(list.children[i]));
  if (!same) list.replaceChildren(...items); // a reader of the screen would lose its place
  const now = new Set();
  for (const f of s.findings) {
    const key = f.severity + f.kind + f.node;
    now.add(key);
    if (!known.has(key) && f.severity !== "note") byID("announce").textContent = f.text;
  }
  known = now;
}

// endOf says how an incarnation that is removed has ended: in order, by an operator, or "lost".
function endOf(s, n) {
  const e = s.events.findLast((e) => e.event === "removed" && e.node === n.id + "." + n.generation);
  return { left: "left", expelled: "removed by an operator", banned: "banned" }[e ? e.text.split(":")[0] : ""] || "lost";
}

function stateBadge(s, n) {
  const end = n.state === "removed" ? endOf(s, n) : "";
  if (end && end !== "lost") return badge(end, "");
  return badge(n.state, { alive: "good", suspect: "warn", removed: "bad" }[n.state] || "");
}

// incarnations returns what is known of those of one node: { incarnation, from, to, suspect }.
function incarnations(s, id) {
  const all = new Map();
  const get = (incarnation) => {
    if (!all.has(incarnation)) all.set(incarnation, { incarnation, from: null, to: null, suspect: [] });
    return all.get(incarnation);
  };
  for (const e of s.events) {
    if (!e.node || Number(e.node.split(".")[0]) !== id) continue;
    const at = ms(e.time);
    if (e.event === "added" || e.event === "self") get(e.node).from ??= at;
    if (e.event === "removed" || e.event === "reset") get(e.node).to = at;
    if (e.event === "updated") {
      const spans = get(e.node).suspect;
      const open = spans.length && spans[spans.length - 1][1] === null;
      if (e.text === "suspect" && !open) spans.push([at, null]);
      if (e.text !== "suspect" && open) spans[spans.length - 1][1] = at;
    }
  }
  for (const n of s.nodes) {
    if (n.id !== id) continue;
    const one = get(n.id + "." + n.generation);
    if (n.state === "removed") one.to ??= ms(n.since);
    else one.from = ms(n.since);
  }
  return [...all.values()];
}

function timeline(s, id) {
  const now = ms(s.time), began = now - windowMS, width = 300;
  const x = (t) => (Math.min(Math.max(t, began), now) - began) / windowMS * width;
  const bar = (from, to, kind, text) =>
    svg("rect", { x: x(from).toFixed(1), width: Math.max(x(to) - x(from), 1.5).toFixed(1), y: 3, height: 12, rx: 2, class: kind }, svg("title", {}, text));
  const bars = [svg("rect", { x: 0, y: 8, width, height: 2, class: "track" })];
  const words = [];
  for (const l of incarnations(s, id)) {
    const from = l.from ?? began, to = l.to ?? now;
    const text = l.incarnation + ", " + span(to - from) + (l.to ? ", ended " + clock(l.to) : "");
    if (to >= began) {
      bars.push(bar(from, to, l.to ? "removed" : "alive", text));
      words.push(text);
    }
    for (const [a, b] of l.suspect) if ((b ?? to) >= began) bars.push(bar(a, b ?? to, "suspect", l.incarnation + " suspect"));
  }
  return svg("svg", { class: "timeline", viewBox: "0 0 " + width + " 18", preserveAspectRatio: "none", role: "img", "aria-label": words.join("; ") }, ...bars);
}

function drawNodes(s) {
  rows("nodes-rows", s.nodes.map((n) =>
    el("tr", {}, td(n.id + "." + n.generation), td(n.name + (n.id === s.self.id ? " (this node)" : "")), el("td", {}, stateBadge(s, n)),
      td(clock(n.since) + ", " + span(ms(s.time) - ms(n.since))), td(n.addresses.join(" ")), el("td", { class: "wide" }, timeline(s, n.id)))));
}

const ofPath = ["node", "link", "loss", "slow", "fallback"]; // kinds of findings about the path to a node

// judge says how a peer is reached from here: the class of its cell, and the reasons.
function judge(s, n, link) {
  const about = s.findings.filter((f) => f.node === n.id && f.severity !== "note" && ofPath.includes(f.kind));
  const reasons = about.map((f) => f.text);
  if (n.state === "removed" && endOf(s, n) !== "lost") return ["none", []];
  if (n.state === "removed") return ["bad", reasons.length ? reasons : ["node " + n.id + " (" + n.name + ") was lost"]];
  if (about.some((f) => f.severity === "broken")) return ["bad", reasons];
  if (about.length) return ["warn", reasons];
  if (!link) return ["none", []];
  return ["good", []];
}

function drawTrips(s) {
  const why = [];
  const nodes = s.nodes.filter((n) => s.shown.includes(n.id));
  const header = el("tr", {}, el("th", { scope: "col" }, "from \\ to"), ...nodes.map((n) => el("th", { scope: "col" }, n.id + " " + n.name)));
  const body = el("tbody", {});
  for (const from of nodes.filter((n) => n.state !== "removed")) {
    const row = el("tr", {}, el("th", { scope: "row" }, from.id + " " + from.name));
    for (const to of nodes) row.append(tripCell(s, from, to, why));
    body.append(row);
  }
  byID("matrix").replaceChildren(el("caption", { class: "hidden" }, "Round trips from each node to each other node"), el("thead", {}, header), body);
  byID("trips-hint").textContent = "The row of this node is measured here. Another row is what that node says, and nothing is decided by it." +
    (s.nodes.length > nodes.length ? " " + (s.nodes.length - nodes.length) + " of " + s.nodes.length + " nodes are left out: those with problems come first." : "");
  byID("trips-why").replaceChildren(...why);
}

// tripOf says how one node reaches another: the class of the cell, the reasons in words, and
// the link if there is one.
function tripOf(s, from, to) {
  if (from.id === s.self.id) {
    const link = s.links.findLast((l) => l.node === to.id && l.generation === to.generation);
    return [...judge(s, to, link), link, to.state === "removed" ? endOf(s, to) : "no link"];
  }
  const row = s.rows.find((r) => r.node === from.id);
  if (to.state === "removed") return ["none", [], null, endOf(s, to)];
  if (!row) return ["none", [], null, "not known"];
  const link = row.links.find((l) => l.node === to.id && l.generation === to.generation);
  if (!link) return ["none", [], null, "no link"];
  return [{ broken: "bad", warning: "warn" }[link.severity] || "good", link.reasons, link, ""];
}

function tripCell(s, from, to, why) {
  if (from.id === to.id) return el("td", { class: "cell none" }, "–", el("span", { class: "hidden" }, "itself"));
  const [kind, reasons, link, none] = tripOf(s, from, to);
  for (const r of reasons) why.push(el("li", {}, badge(from.id + " → " + to.id, kind === "bad" ? "bad" : "warn"), " ", r));
  if (!link) return el("td", { class: "cell " + kind }, none);
  const text = link.round_trip_us ? trip(link.round_trip_us) : "–";
  const detail = (link.round_trip_us ? "± " + trip(link.deviation_us) + ", " : "") + (link.provider || "another provider");
  const mark = { bad: ["✗ ", "broken: "], warn: ["! ", "warning: "] }[kind];
  return el("td", { class: "cell " + kind, title: reasons.join("; ") },
    ...(mark ? [el("span", { "aria-hidden": "true" }, mark[0]), el("span", { class: "hidden" }, mark[1])] : []), text, el("small", {}, detail),
    ...(reasons.length ? [el("span", { class: "hidden" }, "; " + reasons.join("; "))] : []));
}

function drawServices(s) {
  byID("services-count").textContent = s.totals.services > s.services.length ? s.services.length + " of " + s.totals.services : "";
  rows("services-rows", s.services.map((x) =>
    el("tr", {}, td(x.name), td(x.node), td(x.address), num(x.round_trip_us < 0 ? "not known" : x.address.startsWith(s.self.id + ":") ? "this node" : trip(x.round_trip_us)))));
}

function nameOf(s, address) {
  const n = s.nodes.find((n) => n.id === Number(address.split(":")[0]));
  return n ? " (" + n.name + ")" : "";
}

function drawConns(s) {
  byID("conns-count").textContent = s.totals.conns > s.conns.length ? s.conns.length + " of " + s.totals.conns + ", those that wait longest" : "";
  rows("conns-rows", s.conns.map((c) => {
    const waits = c.waiting_ms >= 1000
      ? badge(c.remote + nameOf(s, c.remote) + " to read, for " + span(c.waiting_ms), "warn") : "nothing";
    const direct = c.socket ? c.socket : { sent_bytes: 0, received_bytes: 0, unread_bytes: 0 };
    const path = c.path === "channel" ? "shared-memory path" : (c.path === "call" ? "in-process" : c.path) + (c.provider ? ", " + c.provider : "");
    return el("tr", {}, td(c.local), td(c.remote + nameOf(s, c.remote)), el("td", {}, waits), td(path),
      num(size(c.sent + direct.sent_bytes)), num(size(c.received + direct.received_bytes)), num(size(c.unread + direct.unread_bytes)), wide(c.why || "the shortest there is"));
  }));
}

function drawLinks(s) {
  rows("links-rows", s.links.map((l) => {
    const silent = l.silent_ms >= 1000 ? badge(span(l.silent_ms), "bad") : span(l.silent_ms);
    const lost = l.packets === 0 ? "–" : l.loss_percent >= 0.5 ? badge(l.loss_percent.toFixed(1) + " %", "warn") : l.loss_percent.toFixed(1) + " %";
    const why = l.why + l.considered.filter((c) => !c.chosen).map((c) => "; " + (c.reason.startsWith(c.provider + ": ") ? "" : c.provider + ": ") + c.reason).join("");
    return el("tr", {}, td(l.node + "." + l.generation + " " + l.name), td(l.provider), td(l.remote), el("td", { class: "num" }, silent), el("td", { class: "num" }, lost),
      num(l.conns), num(size(l.sent_bytes)), num(size(l.received_bytes)), wide(why));
  }));
}

function drawPorts(s) {
  rows("ports-rows", s.ports.map((p) => {
    const full = p.backlog > 0 && p.waiting >= p.backlog;
    const waiting = p.backlog === 0 ? "–" : p.waiting + " of " + p.backlog;
    return el("tr", {}, num(p.port), td(p.state), el("td", { class: "num" }, full ? badge(waiting, "bad") : waiting), num(p.overflows + "×"), num(p.refused + "×"), num(p.pid),
      wide(p.access + (p.allow ? "; the listener allows " + p.allow : "")));
  }));
}

function drawEvents(s) {
  const select = byID("filter-kind");
  const kinds = [...new Set(s.events.map((e) => e.event))].sort();
  const have = [...select.options].map((o) => o.value);
  for (const k of kinds) if (!have.includes(k)) select.append(el("option", { value: k }, k));
  const text = byID("filter-text").value.toLowerCase();
  const shown = s.events.filter((e) => (!select.value || e.event === select.value) &&
    (!text || [e.event, e.node, e.name, e.text].join(" ").toLowerCase().includes(text))).reverse();
  const count = shown.length + " of " + s.events.length + " events";
  if (byID("events-count").textContent !== count) byID("events-count").textContent = count;
  rows("events-rows", shown.map((e) => el("tr", {}, td(clock(e.time)), td(e.event), td(e.node), td(e.name), num(e.count > 1 ? e.count + "×" : ""), wide(e.text))));
}

function draw(s) {
  last = s;
  for (const part of [drawHead, drawFindings, drawNodes, drawTrips, drawServices, drawConns, drawLinks, drawPorts, drawEvents]) part(s);
  document.documentElement.dataset.drawn = s.time; // for tests
}

function live(on, text) {
  const e = byID("live");
  if (e.textContent !== text) e.textContent = text;
  e.className = "live " + (on ? "on" : "off");
}

function follow() {
  const stream = new EventSource("v1/stream");
  stream.addEventListener("state", (e) => {
    draw(JSON.parse(e.data));
    live(true, "live");
  });
  stream.onerror = () => {
    live(false, last ? "the node does not answer; as of " + clock(last.time) : "the node does not answer");
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
}

for (const body of document.querySelectorAll("tbody[id]")) sortable(body);
byID("filter").addEventListener("submit", (e) => e.preventDefault());
byID("filter").addEventListener("input", () => last && drawEvents(last));
follow();
