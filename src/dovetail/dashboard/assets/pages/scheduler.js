// The scheduler: how fast it decides, how old its cache is, what it refuses and decides; a decision from its recording.
import { html, useState } from "/assets/core.js";
import { go, link } from "/assets/route.js";
import { Table } from "/assets/table.js";
import { span } from "/assets/times.js";
import { count, rounded } from "/assets/words.js";

function seconds(value) {
  if (value === null) return "–";
  return value < 1 ? `${rounded(value * 1000)} ms` : `${rounded(value)} s`;
}

const REFUSALS = [
  { key: "reason", title: "Reason", value: (one) => one.reason },
  { key: "when", title: "Can waiting help", value: (one) => (one.when === "Never" ? "no" : "yes") },
  { key: "rate", title: "In a minute", num: true, value: (one) => one.a_minute, cell: (one) => rounded(one.a_minute) },
  { key: "count", title: "Since its start", num: true, value: (one) => one.count, cell: (one) => rounded(one.count) },
];
const DECISIONS = [
  { key: "kind", title: "Decision", value: (one) => one.kind },
  { key: "rate", title: "In a minute", num: true, value: (one) => one.a_minute, cell: (one) => rounded(one.a_minute) },
  { key: "count", title: "Since its start", num: true, value: (one) => one.count, cell: (one) => rounded(one.count) },
];
const CACHE = [
  { key: "resource", title: "Resource", value: (one) => one.resource },
  { key: "age", title: "Last heard", num: true, value: (one) => one.age_s, cell: (one) => `${span(one.age_s * 1000)} ago` },
];

function Open() {
  const [id, setId] = useState("");
  const open = (event) => {
    event.preventDefault();
    if (id.trim()) go(link(`/decision/${encodeURIComponent(id.trim())}`));
  };
  return html`<form class="asked" onSubmit=${open}><label class="field">A decision, as in the annotation <code>dovetail.dev/decision</code> of a pod
    <input type="text" autocomplete="off" spellcheck="false" placeholder="5ba19c0e-12" value=${id} onInput=${(event) => setId(event.target.value)} /></label>
    <p><button type="submit">Open</button></p></form>`;
}

export function Scheduler({ page }) {
  const oldest = page.cache[0];
  const waiting = page.pending.reduce((sum, [, number]) => sum + number, 0);
  return html`<section class="cards" aria-label="Totals">
      ${page.latencies.map((one) => html`<div class="card"><h2>Time of ${one.what}</h2><p class="big">${seconds(one.median_s)} <small>median</small></p>
        <p>${seconds(one.p99_s)} for 99 of 100; ${count(one.count, "value")}</p></div>`)}
      <div class="card"><h2>Its cache</h2><p class="big">${oldest ? seconds(oldest.age_s) : "–"} <small>since it last heard of ${oldest?.resource ?? "anything"}</small></p>
        <p>The resource that is silent for longest.</p></div>
      <div class="card"><h2>It has to do</h2><p class="big">${rounded(waiting)} <small>gangs and lone pods wait</small></p>
        <p class="parts">${page.pending.map(([state, number]) => html`<span>${rounded(number)} ${state}</span>`)}<span>${count(page.reports_queued, "report")} to write</span></p></div>
    </section>
    ${page.recording_errors > 0 && html`<p class="old" role="alert">Its recording has ended with an error: the log of the scheduler has the cause.</p>`}
    <p class="dim">${page.window_s ? `Rates and latencies are those of the last ${span(page.window_s * 1000)}.` : "Latencies are those since its start; rates appear after the second look."} ${rounded(page.steps)} steps since its start.</p>
    <h2>Decisions</h2><${Table} caption="Decisions by kind" columns=${DECISIONS} rows=${page.decisions} filter=${false} empty=${html`<p>It has decided nothing yet.</p>`} />
    ${page.opens && html`<${Open} />`}
    <h2>Refusals</h2><${Table} caption="Refusals by reason" columns=${REFUSALS} rows=${page.refusals} path="scheduler" noun="refusal" empty=${html`<p>It has refused nothing.</p>`} />
    <h2>Age of its cache</h2><${Table} caption="Age of its cache" columns=${CACHE} rows=${page.cache} filter=${false} empty=${html`<p>It reports none.</p>`} />`;
}
