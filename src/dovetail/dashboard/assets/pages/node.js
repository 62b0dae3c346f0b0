// A node: its GPUs, what holds them, their health, and how they are wired.
import { html } from "/assets/core.js";
import { NodeActions } from "/assets/actions.js";
import { Cells, Legend } from "/assets/cells.js";
import { NodeDrawing } from "/assets/drawing.js";
import { useSheet } from "/assets/live.js";
import { Bar, BarLegend, hours, money, percent } from "/assets/money.js";
import { jobLink } from "/assets/route.js";
import { Table } from "/assets/table.js";
import { Time, moment } from "/assets/times.js";
import { Name, State, count, rounded } from "/assets/words.js";

const HOLDERS = [
  { key: "pod", title: "Pod", value: (one) => one.pod, cell: (one) => html`<${Name}>${one.pod}<//>` },
  { key: "job", title: "Job", value: (one) => one.job, cell: (one) => one.job && html`<a href=${jobLink(one.job)}><${Name}>${one.job}<//></a>` },
  { key: "user", title: "User", value: (one) => one.user, cell: (one) => html`<${Name}>${one.user}<//>` },
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "count", title: "GPUs", num: true, value: (one) => one.count },
  { key: "gpus", title: "Which", value: (one) => (one.gpus ? one.gpus.join(", ") : one.count ? "not known" : "") },
  { key: "parts", title: "Parts", value: (one) => one.parts.map((part) => `${part.kind} ${part.device}${part.milli ? ` ${part.milli / 10}%` : ""}`).join(", ") },
];

const DEVICES = [
  { key: "index", title: "GPU", num: true, value: (one) => one.index },
  { key: "product", title: "Model", value: (one) => one.product, cell: (one) => html`<${Name}>${one.product}<//>` },
  { key: "state", title: "State", value: (one) => one.state, cell: (one) => html`<${State} name=${one.state} />` },
  { key: "code", title: "Code", value: (one) => one.code },
  { key: "reason", title: "Why", wide: true, value: (one) => one.reason },
  { key: "since", title: "Since", value: (one) => one.since_ms, cell: (one) => html`<${Time} ms=${one.since_ms} />` },
  { key: "next", title: "Next", wide: true, value: (one) => one.next },
  { key: "uuid", title: "UUID", value: (one) => one.uuid, cell: (one) => html`<${Name}>${one.uuid}<//>` },
];

const OF_POD = { owner: "of a pod that holds it", other_pod: "of a pod that does not hold it", gone: "of a pod that is gone", no_pod: "of no pod" };
const PROCESSES = [
  { key: "gpu", title: "GPU", num: true, value: (one) => one.gpu, cell: (one) => one.gpu ?? "?" },
  { key: "pid", title: "PID", num: true, value: (one) => one.pid },
  { key: "pod", title: "Pod", value: (one) => one.pod, cell: (one) => html`<${Name}>${one.pod}<//>` },
  { key: "holder", title: "It is", value: (one) => OF_POD[one.holder] ?? one.holder },
  { key: "memory", title: "Memory", num: true, value: (one) => one.memory_mib, cell: (one) => (one.memory_mib ? `${rounded(one.memory_mib / 1024)} GiB` : "not known") },
  { key: "uuid", title: "UUID", value: (one) => one.uuid, cell: (one) => html`<${Name}>${one.uuid}<//>` },
];

function Processes({ inside }) {
  const { processes, other_processes: others } = inside;
  if (!processes.length && !others) return null;
  const foreign = processes.filter((one) => one.holder !== "owner").length;
  return html`<section><h2>Processes</h2><p>${foreign > 0 && html`<strong>${foreign} process${foreign === 1 ? "" : "es"} of no pod that holds the GPU.</strong> `}${others > 0 && `${others} more ${others === 1 ? "is" : "are"} of others. `}The agent reports
    a process after five minutes at most, and one of a pod that does not hold the GPU after half a minute.</p>
    ${processes.length > 0 && html`<${Table} caption="Processes" columns=${PROCESSES} rows=${processes} filter=${false} />`}</section>`;
}

function Wiring({ topology, cells }) {
  const gpus = topology.numa.map((_, gpu) => gpu);
  const between = (a, b) => (a === b ? "–" : topology.nvlinks[a]?.[b] ? `NV${topology.nvlinks[a][b]}` : topology.pcie[a]?.[b] ?? "?");
  const best = new Map();
  for (const one of topology.sets) if (!best.has(one.gpus.length)) best.set(one.gpus.length, one);
  return html`<section><h2>Wiring</h2><p>Read from ${topology.source}${topology.assumed ? "; it is the usual one of the product, and was not read" : ""}.
    ${" "}NV4 is four NVLinks; PIX, PXB, PHB, NODE and SYS are how far apart two GPUs are on PCIe.</p>
    <${NodeDrawing} topology=${topology} cells=${cells} />
    <div class="scroll" tabindex="0" role="region" aria-label="Links between GPUs"><table class="matrix"><caption class="hidden">Links between GPUs</caption>
      <thead><tr><td></td>${gpus.map((one) => html`<th scope="col">${one}</th>`)}<th scope="col">NUMA</th>${topology.nics.map((_, at) => html`<th scope="col">NIC ${at}</th>`)}</tr></thead>
      <tbody>${gpus.map((a) => html`<tr><th scope="row">GPU ${a}</th>${gpus.map((b) => html`<td class=${topology.nvlinks[a]?.[b] ? "near" : ""}>${between(a, b)}</td>`)}
        <td>${topology.numa[a] ?? "?"}</td>${topology.nics.map((nic) => html`<td>${nic.levels[a] ?? "?"}</td>`)}</tr>`)}</tbody></table></div>
    ${best.size > 0 && html`<p>Best bandwidth: ${[...best.values()].map((one) => `${one.gpus.length} GPUs (${one.gpus.join(", ")}) ${one.mbps / 1000} GB/s`).join("; ")}.</p>`}
    ${topology.notes.map((one) => html`<p>${one}</p>`)}</section>`;
}

// What its GPUs were in the last thirty days.
function Past({ name }) {
  const sheet = useSheet("cost/node/30d");
  const page = sheet?.document.page;
  if (!sheet) return null;
  const row = page?.groups.find((one) => one.name === name);
  if (!row) return html`<section><h2>The last 30 days</h2><p>${page ? "The history has no record of it." : sheet.document.error}</p></section>`;
  const parts = [["Allocated", "allocated"], ["Used", "used"], ["Idle", "idle"], ["Not allocated", "unallocated"], ["Not healthy", "unhealthy"]];
  return html`<section><h2>The last 30 days</h2><p><small>${moment(page.start_ms)} to ${moment(page.end_ms)}</small></p><${Bar} group=${row} most=${row.gpu_hours} /><${BarLegend} />
    <dl class="facts">${parts.map(([term, key]) => html`<div><dt>${term}</dt><dd>${hours(row[`${key}_hours`])} GPU-hours, ${percent(row[`${key}_hours`], row.gpu_hours) || "0%"}${money(row[key]) && `, ${money(row[key])} ${page.currency}`}</dd></div>`)}</dl></section>`;
}

export function Node({ page }) {
  const { health, inside } = page;
  const ready = health.readiness;
  const facts = [
    ["GPUs", `${health.gpus}${health.model ? ` × ${health.model}` : ""}`], ["Place", page.place.map(([key, value]) => `${key}=${value}`).join(", ")],
    ["In maintenance", health.maintenance && `by ${health.maintenance}`], ["Quarantine", health.quarantine],
    ["Why", health.why], ["Next", health.next], ["Since", health.since_ms ? html`<${Time} ms=${health.since_ms} />` : ""],
    ["Step", ready && `${ready.step}${ready.reason ? `: ${ready.reason}` : ""}`], ["What is missing", ready?.message], ["What to do", ready?.action],
    ["Kubelet", inside && Object.values(inside.policies).some((one) => one?.length)
      ? Object.entries(inside.policies).filter(([, value]) => value?.length).map(([key, value]) => `${key.replaceAll("_", " ")}: ${value}`).join(", ") : ""],
  ];
  return html`<p class="lead"><${State} name=${health.state} /> <${Cells} cells=${page.cells} />
      ${!page.exact && html` <small>which GPUs its pods hold is not known; their number is</small>`}</p><${NodeActions} node=${health.node} maintained=${Boolean(health.maintenance)} key=${health.node} /><${Legend} />
    <dl class="facts">${facts.filter(([, value]) => value).map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>
    <section><h2>${count(page.holders.length, "pod")} with GPUs</h2><${Table} caption="Pods" columns=${HOLDERS} rows=${page.holders} path=${`node/${health.node}`} noun="pod"
      empty=${html`<p>No pod holds a GPU of this node.</p>`} /></section>
    ${health.devices.length > 0 && html`<section><h2>Health</h2><${Table} caption="GPUs" columns=${DEVICES} rows=${health.devices} filter=${false} /></section>`}
    ${inside && html`<${Processes} inside=${inside} />`}
    ${inside?.topology ? html`<${Wiring} topology=${inside.topology} cells=${page.cells} />` : html`<section><h2>Wiring</h2><p>It is not known: the agent of the node reports it.</p></section>`}
    <${Past} name=${health.node} />
    ${inside?.findings.length > 0 && html`<section><h2>Contradictions</h2><ul>${inside.findings.map((one) => html`<li>${one}</li>`)}</ul></section>`}`;
}
