// A job: why it waits, which rule refuses it where, what holds what it lacks; or where it runs.
import { html } from "/assets/core.js";
import { JobActions } from "/assets/actions.js";
import { Cells } from "/assets/cells.js";
import { NodeDrawing } from "/assets/drawing.js";
import { useSheet } from "/assets/live.js";
import { Bar, BarLegend, hours, money } from "/assets/money.js";
import { Nodes } from "/assets/pages/jobs.js";
import { jobLink, nodeLink } from "/assets/route.js";
import { Files, Table } from "/assets/table.js";
import { ADVICE } from "/assets/pages/waste.js";
import { Timeline } from "/assets/timeline.js";
import { Time, moment } from "/assets/times.js";
import { Name, State, amounts, count, rounded } from "/assets/words.js";

const Facts = ({ list }) => html`<dl class="facts">${list.filter(([, value]) => value).map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;

const RULES = [
  { key: "when", title: "Until", value: (one) => one.when, cell: (one) => html`<${State} name=${one.when} />` },
  { key: "nodes", title: "Nodes", num: true, value: (one) => one.nodes.length },
  { key: "code", title: "Reason", value: (one) => one.code, cell: (one) => html`<strong>${one.code}</strong>` },
  { key: "text", title: "Rule", wide: true, value: (one) => one.text },
  { key: "nearest", title: "Closest to fitting", wide: true, value: (one) => one.nearest },
  { key: "which", title: "Which", value: (one) => one.nodes.join(" "), cell: (one) => html`<${Nodes} names=${one.nodes} />` },
];

const HOLDERS = [
  { key: "pod", title: "Pod", value: (one) => one.pod, cell: (one) => html`<${Name}>${one.pod}<//>` },
  { key: "node", title: "Node", value: (one) => one.node, cell: (one) => html`<a href=${nodeLink(one.node)}><${Name}>${one.node}<//></a>` },
  { key: "amount", title: "Holds", value: (one) => `${one.amount} ${one.resource}`, cell: (one) => `${one.amount} ${one.resource}${one.next ? " (with the next step)" : ""}` },
  { key: "devices", title: "Devices", value: (one) => one.devices.join(", ") },
];

const TERM = { allocated: "Allocated", due: "Fair share", guarantee: "Guarantee", limit: "Limit", beyond: "Beyond its limit" };
const TERMS = [
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "class", title: "With the job", value: (one) => one.standing || one.problem },
  ...Object.keys(TERM).map((key) => ({ key, title: TERM[key], value: (one) => amounts(one[key]) })),
];

function pods(node) {
  return node.pods.map((one) => html`<li><${Name}>${one.pod}<//>: ${one.gpus ? `GPU ${one.gpus.join(", ")}` : one.count ? count(one.count, "GPU") : ""}
    ${one.parts.map((part) => ` ${part.kind} ${part.device}${part.milli ? ` (${part.milli / 10}%)` : ""}`)}</li>`);
}

const own = (node) => node.pods.flatMap((pod) => pod.gpus ?? []);

function PlacedNode({ node, topology }) {
  return html`<div class="placed"><div class="where"><a class="node" href=${nodeLink(node.node)}
    ><${Name}>${node.node}<//><${Cells} cells=${node.cells} /></a><span class="place"><${Name}>${node.model}<//></span><ul>${pods(node)}</ul></div>
    ${topology && html`<${NodeDrawing} topology=${topology} cells=${node.cells} own=${own(node)} />`}</div>`;
}

// Nodes of one place are in one box: `block / rack`.
function places(nodes) {
  const found = new Map();
  for (const node of nodes) {
    const place = node.place.filter(Boolean).join(" / ");
    found.set(place, [...(found.get(place) ?? []), node]);
  }
  return [...found];
}

function Place({ page, why }) {
  if (!page.nodes.length) return null;
  const expected = why?.all_reduce;
  const undrawn = page.nodes.filter((one) => !page.wiring[one.node]).length;
  return html`<section><h2>Where it runs</h2>
    ${expected && html`<p>Expected all-reduce: at most <strong>${rounded(expected.mbps / 1000)} GB/s</strong> (${expected.algorithm})${expected.level ? html`, within one <code>${expected.level}</code>` : ""}.</p>`}
    ${places(page.nodes).map(([place, nodes]) => html`<div class="domain"><h3><${Name}>${place || "no place in the fabric"}<//> <small>${count(nodes.length, "node")}</small></h3>${nodes.map((one) => html`<${PlacedNode} node=${one} topology=${page.wiring[one.node]} key=${one.node} />`)}</div>`)}
    ${undrawn > 0 && html`<p><small>${count(undrawn, "node")} ${undrawn === 1 ? "is" : "are"} not drawn: the wiring is not known, or there are more than ${page.drawn}.</small></p>`}
    <${Files} path=${`job/${page.job}`} /></section>`;
}

const part = (percent) => `${Math.round(percent)}%`;

function Used({ past, error }) {
  if (!past) return html`<section><h2>Use and cost</h2><p>${error}</p></section>`;
  const { cost } = past;
  if (!cost && !past.runs.length) return html`<section><h2>Use and cost</h2><p>The history has no record of it from ${moment(past.start_ms)} to ${moment(past.end_ms)}.</p></section>`;
  return html`<section><h2>Use and cost</h2><p><small>${moment(past.start_ms)} to ${moment(past.end_ms)}</small></p>
    <${Facts} list=${[
      ["Cost so far", cost && (money(cost.cost) ? `${money(cost.cost)} ${past.currency}` : "not known: no price")],
      ["Of this idle", cost && money(cost.idle) && `${money(cost.idle)} ${past.currency}`], ["GPU-hours", cost && hours(cost.gpu_hours)],
      ["Mean real use", past.measured_percent ? part(past.mean_percent) : "not measured"], ["95th percentile", past.measured_percent && part(past.p95_percent)],
      ["Not used at all", past.measured_percent && `${part(past.idle_percent)} of the time`], ["Memory at most", past.memory_peak_mib && `${Math.round(past.memory_peak_mib / 102.4) / 10}Gi${past.memory_mib ? ` of ${Math.round(past.memory_mib / 102.4) / 10}Gi` : ""}`],
      ["What bounds it", past.bottleneck && `${past.bottleneck}: ${past.meaning}`],
    ]} />
    ${cost && html`<${Bar} group=${cost} most=${cost.gpu_hours} /><${BarLegend} />`}
    ${past.advice.length > 0 && html`<h3>Advice</h3><${Table} caption="Advice" columns=${ADVICE.filter((one) => one.key !== "job")} rows=${past.advice} filter=${false} />`}
  </section>`;
}

const bandwidth = (why) => why.mbps && `${rounded(why.mbps / 1000)} GB/s of ${rounded(why.ideal_mbps / 1000)} GB/s that as many GPUs of the node can have`;

function Why({ why }) {
  const waits = why.state === "NotYet" || why.state === "Never";
  const gang = why.gang && `${why.gang.bound} of ${why.gang.exist} pods placed${why.gang.needs === null ? "" : `, ${why.gang.needs} needed to start`}`;
  const said = why.message || why.reclaim || gang || why.mbps || waits || why.rules.length || why.holders.length || why.reserved.length || why.terms.length || why.hints.length;
  if (!said) return null;
  return html`<section><h2>${waits ? "Why it waits" : "Why it is where it is"}</h2>
    ${why.message && html`<p class="message">${why.message}</p>`}
    ${why.reclaim && html`<p class="message">${why.reclaim}</p>`}
    <${Facts} list=${[
      ["Gang", gang], ["Together by", why.gang?.required.join(", ")], ["Together if possible by", why.gang?.preferred.join(", ")],
      ["Jobs before it", waits ? String(why.ahead) : ""], ["Bandwidth between its GPUs", bandwidth(why)],
      ["Will be charged", why.wanted.length ? amounts(why.wanted) : ""],
      ["Repartition", why.repartition ? JSON.stringify(why.repartition) : ""], ["Similar names", why.hints.join(", ")],
    ]} />
    ${why.rules.length > 0 && html`<h3>Which rule refuses it where</h3><${Table} caption="Rules" columns=${RULES} rows=${why.rules} filter=${false} />`}
    ${why.holders.length > 0 && html`<h3>What holds what it lacks</h3><${Table} caption="Holders" columns=${HOLDERS} rows=${why.holders} filter=${false} />`}
    ${why.reserved.length > 0 && html`<h3>Room that is held</h3><ul>${why.reserved.map((one) => html`<li>for <a href=${jobLink(one.job)}><${Name}>${one.job}<//></a>
      ${" "}on ${one.nodes.join(", ")}, <${Time} ms=${one.expected.start_ms} none="start not known" /></li>`)}</ul>`}
    ${why.terms.length > 0 && html`<h3>Its queue</h3><${Table} caption="Queues" columns=${TERMS} rows=${why.terms} filter=${false} />`}
  </section>`;
}

export function Job({ page }) {
  const row = page.listed;
  const why = page.explained?.job ?? page.explained?.pod;
  const start = why?.expected;
  const sheet = useSheet(`past/${page.job}`);
  const past = sheet?.document.page;
  return html`<p class="lead">${row && html`<${State} name=${row.state} />`} ${why?.code && html`<strong>${why.code}</strong>`}</p>
    ${row && !["Completed", "Failed"].includes(row.state) && html`<${JobActions} job=${page.job} group=${row.group} kind=${row.kind} key=${`${row.kind} ${page.job}`} />`}
    ${page.others.length > 0 && html`<p>Of this name there is also ${page.others.map((one, at) => html`${at > 0 && ", "}<a href=${jobLink(page.job, one)}>${one}</a>`)}. Why it waits and where it runs do not tell them apart.</p>`}
    <${Facts} list=${[
      ["Kind", row?.kind], ["Queue", row?.queue || why?.queue], ["User", row?.user], ["GPUs", row?.gpus],
      ["Pods placed", row ? `${row.placed} of ${row.pods}` : ""], ["Priority", row ? String(row.priority) : ""], ["Lease", row?.lease],
      ["Submitted", row?.submitted_ms ? html`<${Time} ms=${row.submitted_ms} />` : ""],
      [row?.state === "Waiting" ? "Starts at the latest" : "Started", row?.start_ms ? html`<${Time} ms=${row.start_ms} />` : ""],
      [start?.start_ms ? "Start is based on" : "Start is not known", start?.basis], ["End", row?.end_ms ? html`<${Time} ms=${row.end_ms} /> <small>${row.end_sure}</small>` : ""],
      ["Why", !why ? row?.message : ""],
    ]} />
    <${Timeline} row=${row} runs=${past?.runs ?? []} />
    ${why && html`<${Why} why=${why} />`}<${Place} page=${page} why=${why} />
    ${sheet && html`<${Used} past=${past} error=${sheet.document.error} />`}`;
}
