// What a viewer can have done: buttons only where the rights are there; a dry run, a confirmation, what was recorded.
import { html, useEffect, useLayoutEffect, useRef, useState } from "/assets/core.js";
import { ask, possible } from "/assets/live.js";
import { jobLink, parameter } from "/assets/route.js";
import { Table } from "/assets/table.js";
import { Time } from "/assets/times.js";
import { Name, count, gpus } from "/assets/words.js";

const LOST = [
  { key: "pod", title: "Pod", value: (one) => one.pod, cell: (one) => html`<a href=${jobLink(one.job)}><${Name}>${one.pod}<//></a>` },
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "gpus", title: "GPUs", num: true, value: (one) => one.gpus_milli, cell: (one) => gpus(one.gpus_milli) },
  { key: "what", title: "What happens", value: (one) => one.what },
  { key: "left", title: "Has left", value: (one) => one.left_ms, cell: (one) => html`<${Time} ms=${one.left_ms} none="not known" />` },
  { key: "lost", title: "Lost GPU-minutes", num: true, value: (one) => one.lost_gpu_minutes },
  { key: "why", title: "Why", wide: true, value: (one) => one.basis },
];

function Plan({ plan }) {
  const pods = [...plan.nodes.flatMap((one) => one.pods), ...plan.elsewhere];
  return html`<p>${count(plan.jobs.length + plan.other_jobs, "job")} affected; ${count(plan.lost_gpu_minutes, "GPU-minute")} of work lost.</p>
    <ul class="notes">${plan.nodes.map((one) => html`<li><bdi>${one.node}</bdi>: ${one.empty_ms ? html`empty <${Time} ms=${one.empty_ms} />, ${one.basis}` : one.basis}</li>`)}</ul>
    ${pods.length > 0 && html`<${Table} caption="Pods that leave" columns=${LOST} rows=${pods} filter=${false} />`}`;
}

// What a dry run shows, and the button that does it.
function Preview({ found, busy, act }) {
  return html`<h3><bdi>${found.title}</bdi></h3><ul class="notes">${found.effects.map((one) => html`<li>${one}</li>`)}</ul>
    ${found.plan && html`<${Plan} plan=${found.plan} />`}
    <p>It is done as <strong><bdi>${found.user}</bdi></strong>, and recorded. This can be confirmed until <${Time} ms=${found.valid_until_ms} />.</p>
    <button type="button" class="serious" disabled=${busy} onClick=${act}>${found.title}</button>`;
}

// `action` is the action to take; `children` are its fields. A change of a field makes the dry run stale.
function ActionDialog({ title, action, close, children }) {
  const dialog = useRef();
  const result = useRef();
  const form = JSON.stringify(action);
  const [state, setState] = useState({ form: "", found: null, done: null, error: "", busy: false });
  useLayoutEffect(() => dialog.current.showModal(), []);
  const fresh = state.form === form;
  const found = fresh && state.found;
  const send = async (confirmation) => {
    setState({ ...state, form, busy: true, error: "" });
    const { page, error } = await ask("actions", { action, confirmation });
    setState({ form, found: confirmation || error ? null : page, done: confirmation && !error ? page : null, error, busy: false });
    result.current?.focus();
  };
  const dry = (event) => {
    event.preventDefault();
    send("");
  };
  return html`<dialog ref=${dialog} class="palette action" aria-label=${title} onClose=${close}><h2><bdi>${title}</bdi></h2>
    ${!state.done && html`<form onSubmit=${dry}>${children}<button type="submit" disabled=${state.busy}>Dry run</button></form>`}
    <div ref=${result} tabindex="-1" aria-live="polite" aria-busy=${state.busy}>
      ${state.busy && html`<p>Asking</p>`}${fresh && state.error && html`<p class="old" role="alert">${state.error}</p>`}
      ${found && html`<${Preview} found=${found} busy=${state.busy} act=${() => send(found.confirmation)} />`}
      ${state.done && html`<p><strong>Done:</strong> ${state.done.done}.</p><p>Recorded: ${state.done.record}.</p>`}</div>
    <button type="button" onClick=${close}>${state.done ? "Close" : "Cancel"}</button></dialog>`;
}

const MODES = [["WaitForJobs", "let pods run to their end"], ["WaitForCheckpoint", "move pods that have saved their work"], ["Evict", "evict pods at once"]];

function Drain({ node, close }) {
  const [mode, setMode] = useState(MODES[0][0]);
  const [reason, setReason] = useState("");
  return html`<${ActionDialog} title=${`Drain ${node}`} action=${{ type: "drain", node, mode, reason }} close=${close}>
    <label class="field">What happens to its pods <select value=${mode} onChange=${(event) => setMode(event.target.value)}>${MODES.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
    <label class="field">Reason <input type="text" maxlength="256" autocomplete="off" value=${reason} onInput=${(event) => setReason(event.target.value)} /></label><//>`;
}

// The actions that `on` allows (null: not asked), and which of them is open.
function usePossible(query) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    if (query) possible(query).then(setFound);
  }, [JSON.stringify(query), parameter("namespace")]);
  return found;
}

function Button({ name, label, children }) {
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  return html`<button type="button" aria-label=${label} onClick=${() => setOpen(true)}>${name}</button>${open && children(close)}`;
}

export function NodeActions({ node, maintained }) {
  const may = usePossible({ on: "node" });
  if (!may.includes("drain")) return null;
  return html`<div class="actions">${maintained
    ? html`<${Button} name="End the maintenance">${(close) => html`<${ActionDialog} title=${`Use ${node} again`} action=${{ type: "undrain", node }} close=${close} />`}<//>`
    : html`<${Button} name="Drain">${(close) => html`<${Drain} node=${node} close=${close} />`}<//>`}</div>`;
}

export function JobActions({ job, group, kind }) {
  const [namespace, name] = job.split("/");
  const may = usePossible(group ? { on: "job", of: namespace, group, kind } : null);
  if (!may.includes("suspend")) return null;
  return html`<div class="actions"><${Button} name="Suspend">${(close) => html`<${ActionDialog} title=${`Suspend ${job}`} action=${{ type: "suspend", namespace, job: name, group, kind }} close=${close} />`}<//></div>`;
}

// Whether owners of idle jobs can be notified, and the button of one job.
export const useMayNotify = () => usePossible({ on: "waste" }).includes("notify");

export function Notify({ job }) {
  const [namespace, name] = job.split("/");
  return html`<${Button} name="Notify" label=${`Notify the owner of ${job}`}>${(close) => html`<${ActionDialog} title=${`Notify the owner of ${job}`} action=${{ type: "notify", namespace, job: name }} close=${close} />`}<//>`;
}
