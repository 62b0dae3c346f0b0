// The fleet: GPUs by state, what still fits, and the GPUs of each node, by place.
import { html, useEffect, useMemo, useRef, useState } from "/assets/core.js";
import { Cells, Legend, described } from "/assets/cells.js";
import { useSheet } from "/assets/live.js";
import { Bar, BarLegend, money, percent } from "/assets/money.js";
import { link, nodeLink, parameter, setParameter } from "/assets/route.js";
import { Files, Filter, Table, words } from "/assets/table.js";
import { Time, moment } from "/assets/times.js";
import { Empty, Name, State, count, rounded } from "/assets/words.js";

// The largest job that still fits of a model: of the largest pods that fit, as many as fit.
export function largest(model) {
  const sizes = model.sizes.filter((one) => one.pods);
  return sizes.length ? sizes.reduce((a, b) => (b.gpus > a.gpus ? b : a)) : null;
}

function fits(model) {
  const most = largest(model);
  if (!most) return "nothing fits";
  return `${count(most.pods, "pod")} × ${count(most.gpus, "GPU")}`;
}

function totals(nodes) {
  const found = { all: 0, used: 0, free: 0, broken: 0 };
  for (const node of nodes) {
    found.all += node.gpus;
    found.used += node.used;
    found.free += node.free;
  }
  found.broken = found.all - found.used - found.free;
  return found;
}

const LAST = "1h";

// What the last hour of the history cost, and which part of it was of no use to anybody.
function Wasted() {
  const sheet = useSheet(`cost/model/${LAST}`);
  if (!sheet) return html`<div class="card"><h2>Money and real use, last hour</h2><p class="dim">Being worked out</p></div>`;
  const { page, error } = sheet.document;
  if (!page || !page.groups.length) return html`<div class="card"><h2>Money and real use, last hour</h2><p>Not known. <small>${error || "The history has no record yet."}</small></p></div>`;
  const { total, currency } = page;
  const parts = [["idle", "held and idle"], ["unallocated", "not allocated"], ["unhealthy", "not healthy"]];
  const wasted = parts.reduce((sum, [key]) => sum + (total[key] ?? 0), 0);
  const measured = total.used_hours + total.idle_hours;
  return html`<div class="card"><h2>Money and real use, last hour</h2>
    <p class="big">${total.cost === null ? "no price" : money(wasted)} <small>${total.cost !== null && `${currency} wasted, of ${money(total.cost)}`}</small></p>
    <${Bar} group=${total} most=${total.gpu_hours} />
    <p class="parts">${parts.map(([key, word]) => total[key] > 0 && html`<span>${money(total[key])} ${word}</span>`)}
      <span>${measured ? `${percent(total.used_hours, measured)} really used of what is held` : "use is not measured"}</span></p>
    <p><small>as of ${moment(page.end_ms)}</small></p><p><a href=${link("/waste")}>What is idle, and whose it is</a></p></div>`;
}

// By node what the last hour was; empty without a history.
function useNodeUse() {
  const page = useSheet(`cost/node/${LAST}`)?.document.page;
  return useMemo(() => new Map((page?.groups ?? []).filter((one) => one.kind === "group").map((one) => [one.name, one])), [page]);
}

// What fits takes longest on a large cluster: the nodes are there before it.
const working = (page) => !page.fits_now && !page.capacity.length && !page.stranded;

function Totals({ page }) {
  const sum = totals(page.nodes);
  const parts = [["held", sum.used, "in use"], ["free", sum.free, "free"], ["quarantined", sum.broken, "not healthy"]];
  const percent = sum.all ? Math.round((100 * sum.used) / sum.all) : 0;
  const stranded = page.stranded ? page.stranded.stranded_milli / 1000 : 0;
  return html`<section class="cards" aria-label="Totals">
    <div class="card"><h2>GPUs</h2><p class="big">${rounded(sum.used)} <small>of ${rounded(sum.all)} in use (${percent}%)</small></p>
      <div class="bar-of" aria-hidden="true">${parts.map(([colour, number]) => number > 0 && html`<span class=${`part-of ${colour}`}
        style=${{ flexGrow: number }}></span>`)}</div>
      <p class="parts">${parts.map(([colour, number, word]) => html`<span>${rounded(number)} ${word}</span>`)}</p></div>
    <div class="card"><h2>Largest job that fits now${!page.fits_now && !working(page) && html` <small>(worked out again)</small>`}</h2>
      ${working(page) ? html`<p class="dim">Being worked out</p>` : page.capacity.length ? html`<dl class="fits">${page.capacity.map((one) => html`<div><dt><${Name}>${one.model || "GPU"}<//></dt>
        <dd><strong>${fits(one)}</strong> <small>${rounded(one.free)} of ${rounded(one.gpus)} free</small></dd></div>`)}</dl>` : html`<p>No node offers whole GPUs.</p>`}</div>
    <div class="card"><h2>Free, but of no use now</h2>
      ${page.stranded ? html`<p class="big">${rounded(stranded)} <small>of ${rounded(page.stranded.free_milli / 1000)} free GPUs fit no waiting pod</small></p>
        <p>${stranded ? html`<code>dovetail free</code> shows why.` : "Every free GPU can take a pod that waits, or none waits."}</p>`
        : html`<p>${working(page) ? "Being worked out" : "The scheduler is of a version that does not answer this."}</p>`}</div>
    <div class="card"><h2>Nodes</h2><p class="big">${rounded(page.nodes.length)}</p>
      <p class="parts">${states(page.nodes).map(([state, number]) => html`<span>${number} <${State} name=${state} /></span>`)}</p></div>
    <${Wasted} />
  </section>`;
}

function states(nodes) {
  const found = new Map();
  for (const node of nodes) found.set(node.state, (found.get(node.state) ?? 0) + 1);
  return [...found].sort();
}

const placeOf = (node) => node.place.filter(Boolean).join(" / ");

function groups(nodes) {
  const found = new Map();
  for (const node of nodes) {
    const place = placeOf(node);
    if (!found.has(place)) found.set(place, []);
    found.get(place).push(node);
  }
  return [...found].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
}

function label(node) {
  const parts = [`${node.node}: ${described(node.cells) || "no GPUs"}`, node.state];
  if (node.maintenance) parts.push(`in maintenance by ${node.maintenance}`);
  if (node.why) parts.push(node.why);
  return parts.join("; ");
}

// Arrow keys go from node to node.
function move(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "down", ArrowUp: "up" }[event.key];
  const here = document.activeElement;
  if (!step || !here?.classList.contains("node")) return;
  const all = [...event.currentTarget.querySelectorAll("a.node")];
  const at = all.indexOf(here);
  let next = all[at + step];
  if (typeof step === "string") {
    const box = here.getBoundingClientRect();
    const beyond = step === "down" ? all.slice(at) : all.slice(0, at).reverse();
    next = beyond.find((one) => {
      const other = one.getBoundingClientRect();
      return Math.abs(other.left - box.left) < box.width / 2 && (step === "down" ? other.top > box.top + 1 : other.top < box.top - 1);
    });
  }
  if (next) {
    event.preventDefault();
    next.focus();
  }
}

// A name that is not cut needs no clip, which each frame pays for while the page is scrolled.
const BRIEF = 22;
const Tile = ({ node, use }) => html`<a class=${`node of-${node.state}`} href=${nodeLink(node.node)} title=${label(node)}
  ><span class="head"><bdi class=${node.node.length > BRIEF ? "name" : "name brief"} title=${node.node}>${node.node}</bdi>${node.maintenance && html`<span class="tag">maint.</span>`}</span><${Cells} cells=${node.cells} />${use && html`<${Bar} group=${use} most=${use.gpu_hours} />`}</a>`;

const Tiles = ({ nodes, use }) => nodes.map((node) => html`<${Tile} node=${node} use=${use.get(node.node)} key=${node.node} />`);

const [FIRST, MANY, SLICE] = [320, 2000, 240];
const rooms = new Map();
const near = new IntersectionObserver((entries) => entries.forEach((one) => rooms.get(one.target)?.(one.isIntersecting)), { rootMargin: "100%" });
// On paper there is no view.
addEventListener("beforeprint", () => rooms.forEach((show) => show(true)));
addEventListener("afterprint", () => rooms.forEach((_, room) => {
  near.unobserve(room);
  near.observe(room);
}));

// Where there are very many nodes: those near the view are drawn, the others have room left for them.
function Room({ nodes, use }) {
  const box = useRef();
  const [high, setHigh] = useState(null);
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const { current } = box;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const across = Math.max(1, Math.floor(current.clientWidth / (9.6 * rem)));
    setHigh(`${Math.ceil(nodes.length / across) * 3.4 * rem}px`);
    rooms.set(current, (isNear) => {
      // The focus would be lost with what has it.
      if (!isNear && current.contains(document.activeElement)) return;
      if (!isNear && current.firstChild) setHigh(`${current.offsetHeight}px`);
      setShown(isNear);
    });
    near.observe(current);
    return () => {
      near.unobserve(current);
      rooms.delete(current);
    };
  }, []);
  return html`<div class="nodes" ref=${box} style=${{ minHeight: shown ? "" : high }}>${shown && html`<${Tiles} nodes=${nodes} use=${use} />`}</div>`;
}

function slices(nodes) {
  const found = [];
  for (let at = 0; at < nodes.length; at += SLICE) found.push(nodes.slice(at, at + SLICE));
  return found;
}

function drawn(place, inside, use, many) {
  const sum = totals(inside);
  return html`<section class=${many ? "group roomy" : "group"} key=${place}><h3><${Name}>${place || "no place"}<//> <small>${count(inside.length, "node")},
      ${" "}${sum.used} of ${sum.all} GPUs in use</small></h3>${many ? slices(inside).map((nodes, at) => html`<${Room} nodes=${nodes} use=${use} key=${at} />`)
    : html`<div class="nodes"><${Tiles} nodes=${inside} use=${use} /></div>`}</section>`;
}

// A group that has not changed is the same drawing, which is not compared again. Of many nodes those in view come first.
function Grid({ nodes, use }) {
  const known = useRef(new Map());
  const [most, setMost] = useState(FIRST);
  const many = nodes.length > MANY;
  const found = new Map();
  let number = 0;
  for (const [place, inside] of groups(nodes)) {
    if (number >= most && !many) break;
    number += inside.length;
    const text = JSON.stringify(inside);
    const before = known.current.get(place);
    const same = before?.text === text && before.use === use && before.many === many;
    found.set(place, same ? before : { text, use, many, drawing: drawn(place, inside, use, many) });
  }
  known.current = found;
  const more = number < nodes.length;
  useEffect(() => {
    if (!more) return undefined;
    const timer = setTimeout(() => setMost(most * 3), 30);
    return () => clearTimeout(timer);
  }, [more, most]);
  return html`<div class="grid" onKeyDown=${move}>${[...found.values()].map((one) => one.drawing)}</div>`;
}

const used = (use) => use && use.used_hours + use.idle_hours > 0 ? Math.round((100 * use.used_hours) / (use.used_hours + use.idle_hours)) : "";
const columns = (use) => (use.size ? [...COLUMNS.slice(0, 7),
  { key: "really", title: "Really used, last hour", num: true, value: (one) => used(use.get(one.node)), cell: (one) => (used(use.get(one.node)) === "" ? "" : `${used(use.get(one.node))}%`) },
  ...COLUMNS.slice(7)] : COLUMNS);
const COLUMNS = [
  { key: "node", title: "Node", value: (one) => one.node, cell: (one) => html`<a href=${nodeLink(one.node)}><${Name}>${one.node}<//></a>` },
  { key: "place", title: "Place", value: placeOf, cell: (one) => html`<${Name}>${placeOf(one)}<//>` },
  { key: "model", title: "Model", value: (one) => one.model, cell: (one) => html`<${Name}>${one.model}<//>` },
  { key: "state", title: "State", value: (one) => one.state, cell: (one) => html`<${State} name=${one.state} />` },
  { key: "gpus", title: "GPUs", num: true, value: (one) => one.gpus },
  { key: "used", title: "In use", num: true, value: (one) => one.used },
  { key: "free", title: "Free", num: true, value: (one) => one.free },
  { key: "jobs", title: "Jobs", num: true, value: (one) => one.jobs },
  { key: "since", title: "Since", value: (one) => one.since_ms, cell: (one) => html`<${Time} ms=${one.since_ms} />` },
  { key: "why", title: "Why, and what is next", wide: true,
    value: (one) => [one.maintenance && `in maintenance by ${one.maintenance}`, one.why, one.next].filter(Boolean).join("; ") },
];

function Body({ page, view, asked, grid }) {
  const use = useNodeUse();
  if (grid) return grid;
  // Drawn again for new data and another filter, and not for each sign of life.
  return useMemo(() => {
    if (view === "table") return html`<${Table} caption="Nodes" columns=${columns(use)} rows=${page.nodes} path="fleet" noun="node" />`;
    const found = page.nodes.filter((node) => {
      const text = `${node.node} ${placeOf(node)} ${node.model} ${node.state} ${node.maintenance && "maintenance"}`.toLowerCase();
      return asked.every((word) => text.includes(word));
    });
    return html`<div class="bar"><${Filter} label="Filter nodes" /><span class="count" role="status">${found.length === page.nodes.length
      ? count(page.nodes.length, "node") : `${found.length} of ${count(page.nodes.length, "node")}`}</span><${Files} path="fleet" /></div>
      <${Legend} />${use.size > 0 && html`<${BarLegend} />`}<${Grid} nodes=${found} use=${use} />`;
  }, [page, use, view, asked.join(" "), parameter("sort")]);
}

// Of a recorded day `grid` shows the nodes over time, and the rest is there once it is worked out.
export function Fleet({ page, grid }) {
  if (!page) return grid;
  if (!page.nodes.length && !grid) {
    return html`<${Empty} title="No node has GPUs.">A node has them when its device plugin or its agent reports them.
      ${" "}<code>dovetail doctor</code> finds out what is missing on each node.<//>`;
  }
  const view = parameter("view") === "table" ? "table" : "grid";
  return html`<${Totals} page=${page} />
    <div class="choice" role="group" aria-label="Show nodes as">${["grid", "table"].map((one) => html`<button type="button"
      aria-pressed=${one === view} onClick=${() => setParameter("view", one === "grid" ? "" : one)}>${one}</button>`)}</div>
    <${Body} page=${page} view=${view} asked=${words()} grid=${grid} />`;
}
