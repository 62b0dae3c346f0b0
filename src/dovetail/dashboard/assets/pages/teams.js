// The queues: what each is due, has, borrows and waits for.
import { html, useMemo } from "/assets/core.js";
import { useSheet } from "/assets/live.js";
import { hours } from "/assets/money.js";
import { Spark } from "/assets/spark.js";
import { Table } from "/assets/table.js";
import { Empty, Name, amounts, gpuAmount, rounded } from "/assets/words.js";

// The GPUs that a queue has, against its fair share.
function Against({ queue }) {
  const [has, due] = [gpuAmount(queue.allocated), gpuAmount(queue.due)];
  return html`<span class="against"><span class="num">${has}</span>
    <progress max=${Math.max(has, due, 1)} value=${has} aria-label=${`${has} GPUs allocated, ${due} due`}></progress></span>`;
}

const COLUMNS = [
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<span style=${{ paddingInlineStart: `${one.depth}em` }}><${Name}>${one.queue}<//></span>
    ${one.problem && html`<div class="message">${one.problem}</div>`}` },
  { key: "has", title: "GPUs allocated", value: (one) => gpuAmount(one.allocated), cell: (one) => html`<${Against} queue=${one} />` },
  { key: "due", title: "Fair share", num: true, value: (one) => gpuAmount(one.due) },
  { key: "borrowed", title: "Borrowed", num: true, value: (one) => gpuAmount(one.borrowed) },
  { key: "pending", title: "Wanted", num: true, value: (one) => gpuAmount(one.pending) },
  { key: "jobs", title: "Jobs waiting", num: true, value: (one) => one.pending_jobs },
  { key: "guarantee", title: "Guarantee", value: (one) => amounts(one.guarantee) },
  { key: "limit", title: "Limit", value: (one) => amounts(one.limit) },
  { key: "weight", title: "Weight", num: true, value: (one) => one.weight },
  ...[1, 7, 30].map((days) => ({ key: `hours${days}`, title: `GPU-hours, ${days} d`, num: true, value: (one) => one[`gpu_hours_${days}d`], cell: (one) => rounded(one[`gpu_hours_${days}d`]) })),
  { key: "credit", title: "Credit, GPU-hours", num: true, value: (one) => one.credit_gpu_hours, cell: (one) => rounded(one.credit_gpu_hours) },
];

const last = (values) => values.at(-1) ?? 0;

// The days of a queue: what it was allocated, and of that what it used.
const trendColumn = (trend, of) => ({ key: "trend", title: "GPU-hours a day", value: (one) => (of.has(one.queue) ? last(of.get(one.queue).allocated_hours) : ""),
  cell: (one) => of.has(one.queue) && html`<span class="against"><span class="num">${hours(last(of.get(one.queue).allocated_hours))}</span><${Spark} days=${trend.days}
    lines=${[["allocated", of.get(one.queue).allocated_hours, "line-allocated"], ["used", of.get(one.queue).used_hours, "line-used"]]} /></span>` });

export function Teams({ page }) {
  const trend = useSheet("trend")?.document.page;
  const columns = useMemo(() => {
    if (!trend?.days.length) return COLUMNS;
    const of = new Map(trend.queues.map((one) => [one.queue, one]));
    return [...COLUMNS.slice(0, 3), trendColumn(trend, of), ...COLUMNS.slice(3)];
  }, [trend]);
  return html`<${Table} caption="Queues" columns=${columns} rows=${page.queues} path="teams" noun="queue" empty=${html`<${Empty}
    title="There is no queue.">All jobs share the GPUs in the order of their priority and age. <code>dovetail queue create team-a</code> makes one.<//>`} />
    ${trend?.days.length > 0 && page.queues.length > 0 && html`<p><small>A day: the dashed line is what a queue was allocated, the other one what it used; the number is of ${trend.days.at(-1)} (UTC).</small></p>`}`;
}
