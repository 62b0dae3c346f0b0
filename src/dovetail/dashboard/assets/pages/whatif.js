// What a change would do: a job, drained nodes, more nodes, another quota. The answer is that of `dovetail whatif`.
import { html, useLayoutEffect, useState } from "/assets/core.js";
import { ask, useSheet } from "/assets/live.js";
import { jobLink, parameter, setParameter } from "/assets/route.js";
import { Table } from "/assets/table.js";
import { Time } from "/assets/times.js";
import { Empty, Name, count, gpuAmount, gpus, rounded } from "/assets/words.js";

const KINDS = [["submit", "Submit a job"], ["drain", "Drain nodes"], ["add", "Add nodes"], ["quota", "Change a quota"]];

// A slider, with its number beside it, which can be typed too.
function Slider({ label, value, min = 0, max, set }) {
  const take = (event) => {
    const number = Number(event.target.value);
    if (event.target.value !== "" && Number.isInteger(number) && number >= min && number <= max) set(number);
  };
  return html`<div class="slider"><label>${label} <input type="range" min=${min} max=${max} value=${value} onInput=${take} /></label>
    <input type="number" aria-label=${`${label}, as a number`} min=${min} max=${max} value=${value} onInput=${take} /></div>`;
}

function Choice({ label, value, set, options, none }) {
  return html`<label class="field">${label} <select value=${value} onChange=${(event) => set(event.target.value)}>
    ${none && html`<option value="">${none}</option>`}${options.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>`;
}

// The nodes, for the fields that name one.
function Nodes({ label, value, set, hint }) {
  const sheet = useSheet("fleet");
  const nodes = sheet?.document.page?.nodes ?? [];
  return html`<label class="field">${label} <input type="text" list="nodes" autocomplete="off" value=${value} placeholder=${hint}
      onInput=${(event) => set(event.target.value)} /></label>
    <datalist id="nodes">${nodes.slice(0, 2000).map((one) => html`<option value=${one.node} />`)}</datalist>`;
}

function jobOf({ pods, gpus: each, queue }) {
  const labels = queue ? { "dovetail.dev/queue": queue } : {};
  const container = { name: "main", image: "example", resources: { limits: { "nvidia.com/gpu": String(each) } } };
  return { apiVersion: "batch/v1", kind: "Job", metadata: { name: "what-if", namespace: parameter("namespace") || "default" },
    spec: { completionMode: "Indexed", completions: pods, parallelism: pods,
      template: { metadata: { labels }, spec: { schedulerName: "dovetail", restartPolicy: "Never", containers: [container] } } } };
}

function Submit({ queues, change }) {
  const [job, setJob] = useState({ pods: 2, gpus: 8, queue: "" });
  const [manifest, setManifest] = useState("");
  const set = (name) => (value) => setJob({ ...job, [name]: value });
  useLayoutEffect(() => change({ type: "submitManifest", manifest: manifest.trim() || JSON.stringify(jobOf(job)) }), [job, manifest]);
  return html`<${Slider} label="Pods" value=${job.pods} min=${1} max=${256} set=${set("pods")} />
    <${Slider} label="GPUs of each" value=${job.gpus} min=${1} max=${16} set=${set("gpus")} />
    <${Choice} label="Queue" value=${job.queue} set=${set("queue")} options=${queues.map((one) => one.queue)} none="that of the namespace" />
    <details><summary>A manifest in place of that</summary><label class="field">YAML or JSON
      <textarea rows="8" spellcheck="false" value=${manifest} onInput=${(event) => setManifest(event.target.value)}></textarea></label></details>`;
}

function Drain({ change }) {
  const [nodes, setNodes] = useState("");
  const named = nodes.split(/[\s,]+/).filter(Boolean);
  useLayoutEffect(() => change(named.length ? { type: "drain", nodes: named } : null), [nodes]);
  return html`<${Nodes} label="Nodes" value=${nodes} set=${setNodes} hint="names, with spaces between" />`;
}

function Add({ change }) {
  const [like, setLike] = useState("");
  const [number, setNumber] = useState(1);
  useLayoutEffect(() => change(like.trim() ? { type: "addNodesLike", node: like.trim(), count: number } : null), [like, number]);
  return html`<${Nodes} label="Nodes like" value=${like} set=${setLike} hint="the name of a node" />
    <${Slider} label="How many" value=${number} min=${1} max=${256} set=${setNumber} />`;
}

function Quota({ queues, change }) {
  const [name, setName] = useState(queues[0]?.queue ?? "");
  const queue = queues.find((one) => one.queue === name);
  const [asked, setAsked] = useState({});
  const most = Math.max(64, ...queues.map((one) => 2 * Math.max(gpuAmount(one.guarantee), gpuAmount(one.allocated))));
  const now = { guarantee: queue ? gpuAmount(queue.guarantee) : 0, weight: queue?.weight ?? 1 };
  const set = (field) => (value) => setAsked({ ...asked, [field]: value });
  useLayoutEffect(() => {
    const changed = {};
    if (asked.guarantee !== undefined) changed.guarantee = [`gpu=${asked.guarantee}`];
    if (asked.weight !== undefined) changed.weight = asked.weight;
    change(queue && Object.keys(changed).length ? { type: "quota", queue: name, ...changed } : null);
  }, [name, asked]);
  if (!queues.length) return html`<p>There is no queue. <code>dovetail queue create team-a</code> makes one.</p>`;
  const choose = (value) => {
    setName(value);
    setAsked({});
  };
  return html`<${Choice} label="Queue" value=${name} set=${choose} options=${queues.map((one) => one.queue)} />
    <${Slider} label="Guaranteed GPUs" value=${asked.guarantee ?? now.guarantee} max=${most} set=${set("guarantee")} />
    <${Slider} label="Weight" value=${asked.weight ?? now.weight} min=${1} max=${Math.max(20, now.weight * 2)} set=${set("weight")} />
    <p class="dim">Now: ${rounded(now.guarantee)} guaranteed GPUs, weight ${now.weight}.</p>`;
}

const FORMS = { submit: Submit, drain: Drain, add: Add, quota: Quota };

function Start({ expected, state }) {
  if (!expected) return html`<span class="dim">–</span>`;
  if (state === "Placed") return "now";
  return expected.start_ms ? html`<span title=${expected.basis}><${Time} ms=${expected.start_ms} /> <small>${expected.sure}</small></span>` : html`<span class="dim">not known</span>`;
}

const GLYPHS = { "starts now": ["●", "ok"], sooner: ["▲", "ok"], "can start": ["▲", "ok"], later: ["▼", "wait"], waits: ["◐", "wait"], "no longer starts now": ["▼", "bad"], "never starts": ["✕", "bad"], gone: ["✕", "bad"] };
const COLUMNS = [
  { key: "job", title: "Job", value: (one) => one.job,
    cell: (one) => one.before ? html`<a href=${jobLink(one.job)}><${Name}>${one.job}<//></a>` : html`<${Name}>${one.job}<//>` },
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "gpus", title: "GPUs", num: true, value: (one) => one.gpus_milli, cell: (one) => gpus(one.gpus_milli) },
  { key: "effect", title: "Effect", value: (one) => one.effect, cell: (one) => {
    const [glyph, colour] = GLYPHS[one.effect] ?? ["○", "dim"];
    return html`<span class=${`state ${colour}`}><span aria-hidden="true">${glyph}</span> ${one.effect}</span>`;
  } },
  { key: "before", title: "Without", value: (one) => one.before?.start_ms ?? 0, cell: (one) => html`<${Start} expected=${one.before} state=${one.before_state} />` },
  { key: "after", title: "With", value: (one) => one.after?.start_ms ?? 0, cell: (one) => html`<${Start} expected=${one.after} state=${one.state} />` },
  { key: "where", title: "Where, or why not", wide: true, value: (one) => one.places.map((place) => place.node).join(" ") || one.message,
    cell: (one) => one.places.length ? html`<span class="message">${[...new Set(one.places.map((place) => place.node).filter(Boolean))].join(", ")}</span>`
      : html`<strong>${one.code}</strong><div class="message">${one.message}</div>` },
];
const QUEUES = [
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "before", title: "GPUs without", num: true, value: (one) => one.before_milli / 1000 },
  { key: "after", title: "GPUs with", num: true, value: (one) => one.after_milli / 1000 },
  { key: "difference", title: "Difference", num: true, value: (one) => (one.after_milli - one.before_milli) / 1000,
    cell: (one) => `${one.after_milli > one.before_milli ? "+" : ""}${(one.after_milli - one.before_milli) / 1000}` },
];
const VICTIMS = [
  { key: "job", title: "Job", value: (one) => one.job, cell: (one) => html`<${Name}>${one.job}<//>` },
  { key: "pod", title: "Pod", value: (one) => one.pod, cell: (one) => html`<${Name}>${one.pod}<//>` },
  { key: "node", title: "Node", value: (one) => one.node, cell: (one) => html`<${Name}>${one.node}<//>` },
];

function Answer({ found }) {
  const moved = found.queues.filter((one) => one.before_milli !== one.after_milli);
  return html`<h2>The difference</h2>
    ${found.jobs.length > 0 ? html`<${Table} caption="Jobs with a difference" columns=${COLUMNS} rows=${found.jobs} filter=${false} />` : html`<p>No job starts at another time.</p>`}
    <p>The change makes no difference to ${count(found.unchanged, "other waiting job")}.${found.elsewhere > 0 && ` ${count(found.elsewhere, "job")} of other namespaces differ.`}</p>
    ${!found.whole && html`<p>The look-ahead ended at its bound: later starts are not known.</p>`}
    ${found.evicted.length > 0 && html`<h3>Pods that would be evicted</h3><${Table} caption="Pods that would be evicted" columns=${VICTIMS} rows=${found.evicted} filter=${false} />`}
    ${found.spared.length > 0 && html`<h3>Pods that are evicted only without the change</h3><${Table} caption="Pods that are spared" columns=${VICTIMS} rows=${found.spared} filter=${false} />`}
    ${moved.length > 0 && html`<h3>GPUs of the queues after the next step</h3><${Table} caption="GPUs of the queues" columns=${QUEUES} rows=${moved} filter=${false} />`}
    ${found.notes.length > 0 && html`<h3>Notes</h3><ul>${found.notes.map((one) => html`<li class="message">${one}</li>`)}</ul>`}`;
}

export function WhatIf({ page }) {
  const kind = Object.hasOwn(FORMS, parameter("kind")) ? parameter("kind") : "submit";
  const [change, setChange] = useState(null);
  const [answer, setAnswer] = useState(null);
  const [asking, setAsking] = useState(false);
  const Form = FORMS[kind];
  const choose = (one) => {
    setParameter("kind", one);
    setAnswer(null);
  };
  const send = async (event) => {
    event.preventDefault();
    if (!change || asking) return;
    setAsking(true);
    setAnswer(await ask("whatif", { change }));
    setAsking(false);
  };
  return html`<p>The scheduler's own core works out a copy of the cluster with the change and without it. Nothing is made or changed.</p>
    <div class="choice plain" role="group" aria-label="The change">${KINDS.map(([one, title]) => html`<button type="button" aria-pressed=${one === kind} onClick=${() => choose(one)}>${title}</button>`)}</div>
    <form class="asked" onSubmit=${send}><${Form} key=${kind} queues=${page.queues} change=${setChange} />
      <p><button type="submit" disabled=${!change || asking}>${asking ? "Working it out" : "What if?"}</button></p></form>
    <div role="status" aria-live="polite">${asking && html`<p class="dim">The answer takes up to half a minute.</p>`}
      ${!asking && answer?.error && html`<${Empty} title="There is no answer."><span class="message">${answer.error}</span><//>`}
      ${!asking && answer?.page && html`<${Answer} found=${answer.page} />`}</div>`;
}
