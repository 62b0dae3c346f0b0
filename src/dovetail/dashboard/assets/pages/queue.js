// The queue: the waiting jobs in their order, why each waits, and until when.
import { html } from "/assets/core.js";
import { jobLink } from "/assets/route.js";
import { Table } from "/assets/table.js";
import { Time } from "/assets/times.js";
import { Empty, Name, State, count, gpus } from "/assets/words.js";

function Starts({ job }) {
  const { start_ms: ms, sure, basis } = job.expected;
  if (job.state === "Placed") return "with the next step";
  if (job.state === "Never") return html`<span class="dim">never as things are</span>`;
  if (!ms) return html`<span class="dim" title=${basis}>not known</span>`;
  return html`<span title=${basis}><${Time} ms=${ms} /> <small>${sure}</small></span>`;
}

const COLUMNS = [
  { key: "position", title: "#", num: true, value: (one) => one.position },
  { key: "job", title: "Job", value: (one) => one.job, cell: (one) => html`<a href=${jobLink(one.job)}><${Name}>${one.job}<//></a>` },
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "user", title: "User", value: (one) => one.user, cell: (one) => html`<${Name}>${one.user}<//>` },
  { key: "gpus", title: "GPUs", num: true, value: (one) => one.gpus_milli, cell: (one) => gpus(one.gpus_milli) },
  { key: "pods", title: "Pods", num: true, value: (one) => one.pods },
  { key: "since", title: "Waits since", value: (one) => one.since_ms, cell: (one) => html`<${Time} ms=${one.since_ms} />` },
  { key: "starts", title: "Starts at the latest", value: (one) => one.expected.start_ms || Number.MAX_SAFE_INTEGER, cell: (one) => html`<${Starts} job=${one} />` },
  { key: "why", title: "Why it waits", wide: true, value: (one) => `${one.code} ${one.message} ${one.reclaim}`,
    cell: (one) => html`<${State} name=${one.state} /> ${one.code !== one.state && html`<strong>${one.code}</strong>`}
      <div class="message">${one.message}${one.reclaim && `; ${one.reclaim}`}</div>` },
];

export function Queue({ page }) {
  const others = page.elsewhere ? `${count(page.elsewhere, "job")} of other namespaces also wait${page.elsewhere === 1 ? "s" : ""}.` : "";
  return html`<${Table} caption="Waiting jobs" columns=${COLUMNS} rows=${page.jobs} path="queue" noun="job" empty=${html`<${Empty}
    title="No job waits.">${others || html`A job appears here while it waits for GPUs. <code>dovetail run --gpus 1 -- nvidia-smi</code> submits one.`}<//>`} />
    ${page.jobs.length > 0 && others && html`<p>${others}</p>`}
    ${!page.whole && html`<p>The look-ahead ended at its bound: later starts are not known.</p>`}`;
}
