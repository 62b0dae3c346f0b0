// The cost of the GPUs in a period, by group. The rows add up to the bill.
import { html, useState } from "/assets/core.js";
import { useSheet } from "/assets/live.js";
import { Bar, BarLegend, hours, money, percent } from "/assets/money.js";
import { jobLink, nodeLink, parameter, setParameter } from "/assets/route.js";
import { Files, Table } from "/assets/table.js";
import { Time, moment, span } from "/assets/times.js";
import { Empty, Name, count } from "/assets/words.js";

const BY = ["team", "user", "job", "model", "node", "namespace", "queue", "day"];
const PERIODS = [["24h", "the last 24 hours"], ["7d", "today and the six days before"], ["30d", "today and the 29 days before"], ["90d", "today and the 89 days before"]];

export const costPath = () => `cost/${parameter("by") || "team"}/${parameter("period") || "30d"}`;

// By what, and of which period. Both are in the address.
function Choice() {
  const period = parameter("period") || "30d";
  const [text, setText] = useState(period);
  const choose = (event) => {
    event.preventDefault();
    if (text.trim()) setParameter("period", text.trim() === "30d" ? "" : text.trim());
  };
  return html`<form class="bar" onSubmit=${choose}>
    <label>By <select value=${parameter("by") || "team"} onChange=${(event) => setParameter("by", event.target.value === "team" ? "" : event.target.value)}
      >${BY.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
    <span class="choice" role="group" aria-label="Period">${PERIODS.map(([one, words]) => html`<button type="button" aria-pressed=${one === period} title=${words}
      onClick=${() => { setText(one); setParameter("period", one === "30d" ? "" : one); }}>${one}</button>`)}</span>
    <label>Period <input type="text" class="short" value=${text} onInput=${(event) => setText(event.target.value)} aria-describedby="periods" /></label>
    <button type="submit">Show</button> <small id="periods">7d, 36h, 2026-11, 2026-11-05, or FROM..TO; UTC</small></form>`;
}

function NameOf({ group, by }) {
  if (group.kind === "group" && by === "job") return html`<a href=${jobLink(group.name)}><${Name}>${group.name}<//></a>`;
  if (group.kind === "group" && by === "node") return html`<a href=${nodeLink(group.name)}><${Name}>${group.name}<//></a>`;
  return html`<${Name}>${group.name || "(none)"}<//>`;
}

const amount = (key, title) => ({ key, title, num: true, value: (one) => one[key], cell: (one) => money(one[key]) });

function columns({ by, total }, most) {
  const parts = [["used", "Used"], ["idle", "Idle"], ["unmeasured", "Not measured"], ["unallocated", "Not allocated"], ["unhealthy", "Not healthy"]];
  return [
    { key: "name", title: by[0].toUpperCase() + by.slice(1), value: (one) => one.name, cell: (one) => html`<${NameOf} group=${one} by=${by} />` },
    amount("cost", "Cost"),
    { key: "share", title: "%", num: true, value: (one) => one.share_percent },
    amount("allocated", "Allocated"), ...parts.filter(([key]) => total[key]).map(([key, title]) => amount(key, title)),
    { key: "hours", title: "GPU-hours", num: true, value: (one) => one.gpu_hours, cell: (one) => hours(one.gpu_hours) },
    { key: "bar", title: "What they were", value: (one) => one.gpu_hours, cell: (one) => html`<${Bar} group=${one} most=${most} />` },
    { key: "jobs", title: "Jobs", num: true, value: (one) => one.jobs },
  ];
}

function Totals({ page }) {
  const { total, currency } = page;
  const parts = [["Allocated", "allocated"], ["Not allocated", "unallocated"], ["Not healthy", "unhealthy"]];
  return html`<section class="cards" aria-label="Totals">
    <div class="card"><h2>The bill</h2><p class="big">${money(total.cost) || "not known"} <small>${total.cost === null ? "" : currency}</small></p>
      <p>${hours(total.gpu_hours)} GPU-hours</p></div>
    ${parts.map(([word, key]) => html`<div class="card"><h2>${word}</h2><p class="big">${money(total[key]) || "not known"} <small>${percent(total[`${key}_hours`], total.gpu_hours)}</small></p>
      <p>${hours(total[`${key}_hours`])} GPU-hours${key === "allocated" && total.used_hours + total.idle_hours > 0
        ? `: used ${money(total.used) || hours(total.used_hours)}, idle ${money(total.idle) || hours(total.idle_hours)}` : ""}</p></div>`)}
  </section>`;
}

// What the amounts rest on, in sentences.
function Notes({ page }) {
  const { coverage: found } = page;
  const notes = [`${moment(page.start_ms)} to ${moment(page.end_ms)}${page.currency ? `, in ${page.currency}` : ""}.`];
  for (const one of page.prices) notes.push(`Prices: ${one.source}, of ${one.date || "no date"}, for ${hours(one.gpu_s / 3600)} GPU-hours.`);
  if (!page.prices.length) notes.push("No GPU has a price.");
  for (const one of page.unpriced) {
    notes.push(`No price: ${hours(one.gpu_s / 3600)} GPU-hours of ${[one.model, one.instance_type, one.region, one.spot && "spot"].filter(Boolean).join(" ") || "GPUs of an unknown model"} on ${count(one.nodes, "node")}, which are in no sum: ${one.why}. To do: ${one.fix}.`);
  }
  if (page.others) notes.push(`${count(page.others, "smaller group")} are in one row together.`);
  if (page.asked_start_ms < found.known_start_ms) notes.push(`The history begins at ${moment(found.known_start_ms)}: nothing before is counted.`);
  if (found.gap_ms) notes.push(`For ${span(found.gap_ms)} nothing was recorded; it is assumed that all stayed as it was before.`);
  notes.push(found.measured_ppm ? `Use was measured for ${Math.floor(found.measured_ppm / 10000)} % of the allocated time.` : "Use was not measured.");
  if (found.unknown_gpu_s) notes.push(`${hours(found.unknown_gpu_s / 3600)} GPU-hours were held of GPUs that no node had then: nobody pays for them.`);
  if (found.assumed_gpu_s) notes.push(`For ${hours(found.assumed_gpu_s / 3600)} GPU-hours it is assumed which GPU of its node a pod held, as pods were only counted there.`);
  return html`<section><h2>What this rests on</h2><ul class="notes">${notes.map((one) => html`<li>${one}</li>`)}</ul></section>`;
}

const amountOf = (micro) => (micro === null ? "" : money(micro / 1e6));
const BUDGETS = [
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "unit", title: "In", value: (one) => one.unit },
  { key: "used", title: "Used", num: true, value: (one) => one.used_micro, cell: (one) => amountOf(one.used_micro) || "not known" },
  { key: "limit", title: "Budget", num: true, value: (one) => one.limit_micro, cell: (one) => amountOf(one.limit_micro) },
  { key: "part", title: "Used of it", value: (one) => (one.used_micro ?? 0) / one.limit_micro, cell: (one) => one.used_micro !== null && html`<span class="against"><span class="num">${percent(one.used_micro ?? 0, one.limit_micro)}</span>
    <progress max=${one.limit_micro || 1} value=${one.used_micro ?? 0} aria-label=${`${percent(one.used_micro ?? 0, one.limit_micro) || "0%"} used`}></progress></span>` },
  { key: "forecast", title: "Forecast", num: true, value: (one) => one.forecast_micro, cell: (one) => amountOf(one.forecast_micro) },
  { key: "gone", title: "Used up", value: (one) => one.used_up_ms, cell: (one) => html`<${Time} ms=${one.used_up_ms} />` },
  { key: "ends", title: "Period ends", value: (one) => one.end_ms, cell: (one) => html`${one.period}: <${Time} ms=${one.end_ms} />` },
  { key: "then", title: "When used up", value: (one) => one.when_used },
  { key: "asof", title: "As of", value: (one) => one.as_of_ms, cell: (one) => html`<${Time} ms=${one.as_of_ms} />` },
  { key: "message", title: "Note", wide: true, value: (one) => one.message },
];

function Budgets() {
  const page = useSheet("budgets")?.document.page;
  if (!page?.budgets.length) return null;
  return html`<section><h2>Budgets of queues</h2><${Table} caption="Budgets" columns=${BUDGETS} rows=${page.budgets} filter=${false} /><p><${Files} path="budgets" /></p></section>`;
}

export function Cost({ page, error }) {
  if (!page) return html`<${Choice} />${error ? html`<${Empty} title="There is no answer.">${error}<//>` : html`<p class="loading">Loading</p>`}`;
  const most = Math.max(...page.groups.map((one) => one.gpu_hours), 0);
  return html`<${Choice} />
    ${page.groups.length > 0 && html`<${Totals} page=${page} /><${BarLegend} />`}
    <${Table} caption="Costs" columns=${columns(page, most)} rows=${page.groups} path=${costPath()} noun="row" empty=${html`<${Empty}
      title="There was no GPU in this period.">The history is of ${page.coverage.known_end_ms ? `${moment(page.coverage.known_start_ms)} to ${moment(page.coverage.known_end_ms)}` : "no time yet"}.<//>`} />
    <${Budgets} />
    ${page.groups.length > 0 && html`<${Notes} page=${page} />`}`;
}
