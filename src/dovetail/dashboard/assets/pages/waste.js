// Waste: who holds GPUs and does not use them, since when, what that cost, and what to do; and advice on the size of jobs.
import { html } from "/assets/core.js";
import { Notify, useMayNotify } from "/assets/actions.js";
import { useSheet } from "/assets/live.js";
import { hours, money } from "/assets/money.js";
import { jobLink, nodeLink } from "/assets/route.js";
import { Files, Table } from "/assets/table.js";
import { Time, moment } from "/assets/times.js";
import { Empty, Name, count, gpus } from "/assets/words.js";

const job = (one) => html`<a href=${jobLink(one.job)}><${Name}>${one.job}<//></a>`;

const PODS = [
  { key: "pod", title: "Pod", value: (one) => one.pod, cell: (one) => html`<a href=${jobLink(one.job)}><${Name}>${one.pod}<//></a>` },
  { key: "user", title: "Owner", value: (one) => one.user, cell: (one) => html`<${Name}>${one.user}<//>` },
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "node", title: "Node", value: (one) => one.node, cell: (one) => html`<a href=${nodeLink(one.node)}><${Name}>${one.node}<//></a>` },
  { key: "unused", title: "Idle GPUs", num: true, value: (one) => one.unused, cell: (one) => `${one.unused} of ${one.held}` },
  { key: "since", title: "Since", value: (one) => one.since_ms, cell: (one) => html`<${Time} ms=${one.since_ms} />${one.at_least && html` <small>or longer</small>`}` },
  { key: "hours", title: "GPU-hours", num: true, value: (one) => one.gpu_hours, cell: (one) => hours(one.gpu_hours) },
  { key: "cost", title: "Cost", num: true, value: (one) => one.cost, cell: (one) => money(one.cost) },
  { key: "evidence", title: "Evidence", wide: true, value: (one) => `${one.ever_used ? "used before" : "never used"}; ${Math.round(one.measured_percent)}% of the time was measured` },
  { key: "action", title: "What to do", wide: true, value: (one) => one.action },
];

const NOTIFY = { key: "notify", title: "Action", value: (one) => one.job, cell: (one) => html`<${Notify} job=${one.job} />` };

export const ADVICE = [
  { key: "job", title: "Job", value: (one) => one.job, cell: job },
  { key: "user", title: "Owner", value: (one) => one.user, cell: (one) => html`<${Name}>${one.user}<//>` },
  { key: "gpus", title: "GPUs", num: true, value: (one) => one.gpus_milli, cell: (one) => gpus(one.gpus_milli) },
  { key: "mean", title: "Mean use", num: true, value: (one) => one.mean_percent, cell: (one) => `${Math.round(one.mean_percent)}%` },
  { key: "title", title: "Advice", wide: true, value: (one) => `${one.title} ${one.action}`, cell: (one) => html`<strong>${one.title}</strong><div class="message">${one.action}</div>` },
  { key: "cause", title: "Why", wide: true, value: (one) => one.cause },
  { key: "gain", title: "Gain, and risk", wide: true, value: (one) => [one.gain, one.risk].filter(Boolean).join("; ") },
  { key: "hours", title: "Saves GPU-hours", num: true, value: (one) => one.saves_gpu_hours, cell: (one) => hours(one.saves_gpu_hours) },
  { key: "saves", title: "Saves", num: true, value: (one) => one.saves, cell: (one) => one.saves !== null && `${money(one.saves)} ${one.currency}` },
];

function Idle({ page }) {
  const columns = useMayNotify() ? [...PODS, NOTIFY] : PODS;
  const others = page.elsewhere ? `${count(page.elsewhere, "pod")} of other namespaces ${page.elsewhere === 1 ? "is" : "are"} idle, too, and held ${hours(page.elsewhere_gpu_hours)} GPU-hours.` : "";
  return html`<section><h2>GPUs that are held and not used</h2>
    <p class="lead">${page.pods.length > 0 && html`<span class="big">${money(page.cost) || hours(page.gpu_hours)} <small>${page.currency || "GPU-hours"} so far${page.price_date && `, at prices of ${page.price_date}`}</small></span>`}
      <small>as of ${moment(page.now_ms)}; idle for an hour or longer</small></p>
    <${Table} caption="Idle pods" columns=${columns} rows=${page.pods} path="idle" noun="pod" empty=${html`<${Empty} title="No pod leaves its GPUs idle.">${others || "A pod appears here once it has not used a GPU that it holds for an hour."}<//>`} />
    ${page.pods.length > 0 && others && html`<p>${others}</p>`}
    ${page.not_measured.length > 0 && html`<p>The use of ${count(page.not_measured.length, "pod")} with GPUs is not measured: <${Name}>${page.not_measured.slice(0, 20).join(", ")}<//>${page.not_measured.length > 20 ? " and more" : ""}.</p>`}
  </section>`;
}

function Advice() {
  const sheet = useSheet("advice");
  if (!sheet) return html`<p class="loading">Loading</p>`;
  const { page, error } = sheet.document;
  if (!page) return html`<${Empty} title="There is no advice.">${error}<//>`;
  const seen = `${count(page.jobs, "job")} held GPUs from ${moment(page.start_ms)} to ${moment(page.end_ms)}${page.unjudged ? `, of ${page.unjudged} there is not enough data` : ""}.`;
  return html`<section><h2>Advice on the size of jobs</h2>
    ${page.advice.length ? html`<p>${seen} <code>dovetail advise JOB</code> has all that was seen, and <code>--diff</code> shows the change in a manifest.</p>
      <${Table} caption="Advice" columns=${ADVICE} rows=${page.advice} filter=${false} /><p><${Files} path="advice" /></p>`
      : html`<${Empty} title="Nothing is advised.">${seen}<//>`}</section>`;
}

export function Waste({ page, error }) {
  if (page) return html`<${Idle} page=${page} /><${Advice} />`;
  return error ? html`<${Empty} title="There is no answer.">${error}<//>` : html`<p class="loading">Loading</p>`;
}
