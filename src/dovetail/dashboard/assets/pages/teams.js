// The queues: what each is due, has, borrows and waits for.
import { html, useMemo } from "/assets/core.js";
import { useSheet } from "/assets/live.js";
import { hours } from "/assets/money.js";
import { Spark, TimeSpark } from "/assets/spark.js";
import { Table } from "/assets/table.js";
import { Time } from "/assets/times.js";
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
  { key: "due", title: "Fair share", num: true, value: (one) => gpuAmount(one.due), cell: (one) => rounded(gpuAmount(one.due)) },
  { key: "borrowed", title: "Borrowed", num: true, value: (one) => gpuAmount(one.borrowed) },
  { key: "pending", title: "Wanted", num: true, value: (one) => gpuAmount(one.pending) },
  { key: "jobs", title: "Jobs waiting", num: true, value: (one) => one.pending_jobs },
  { key: "guarantee", title: "Guarantee", value: (one) => amounts(one.guarantee) },
  { key: "limit", title: "Limit", value: (one) => amounts(one.limit) },
  { key: "weight", title: "Weight", num: true, value: (one) => one.weight },
  ...[1, 7, 30].map((days) => ({ key: `hours${days}`, title: `GPU-hours, ${days}\u00a0d`, num: true, value: (one) => one[`gpu_hours_${days}d`], cell: (one) => rounded(one[`gpu_hours_${days}d`]) })),
  { key: "credit", title: "Credit, GPU-hours", num: true, value: (one) => one.credit_gpu_hours, cell: (one) => rounded(one.credit_gpu_hours) },
];

const SHARES_MS = 60000;
const last = (values) => values.at(-1) ?? 0;

// The days of a queue: what it was allocated, and of that what it used.
const trendColumn = (trend, of) => ({ key: "trend", title: "GPU-hours a day", value: (one) => (of.has(one.queue) ? last(of.get(one.queue).allocated_hours) : ""),
  cell: (one) => of.has(one.queue) && html`<span class="against"><span class="num">${hours(last(of.get(one.queue).allocated_hours))}</span><${Spark} days=${trend.days}
    lines=${[["allocated", of.get(one.queue).allocated_hours, "line-allocated"], ["used", of.get(one.queue).used_hours, "line-used"]]} /></span>` });

// Two samples that are so far apart had none between them.
const apart = (shares) => shares.times_ms.slice(1).flatMap((ms, at) => {
  const before = shares.times_ms[at];
  const usual = at < shares.coarse ? 2700000 : 150000;
  return ms - before > usual ? [[before, ms]] : [];
});

// What was due and what was had since the dashboard began, and the credit.
function overTime(shares) {
  const of = new Map(shares.queues.map((one) => [one.queue, one]));
  const between = apart(shares);
  const gaps = [...between, ...shares.gaps.map((one) => [one.from_ms, one.to_ms]).filter(([from, to]) => !between.some(([a, b]) => a <= from && to <= b))];
  const cell = (lines) => (one) => of.has(one.queue) && html`<${TimeSpark} times=${shares.times_ms} gaps=${gaps} lines=${lines(of.get(one.queue))} />`;
  return [
    { key: "shares", title: "Fair share over time", value: (one) => (of.has(one.queue) ? gpuAmount(one.due) : ""), cell: cell((one) => [["GPUs due", one.due, "line-allocated"], ["GPUs allocated", one.allocated, "line-used"]]) },
    { key: "credits", title: "Credit over time", value: (one) => (of.has(one.queue) ? one.credit_gpu_hours : ""), cell: cell((one) => [["credit in GPU-hours", one.credit, "line-used"]]) },
  ];
}

function Samples({ shares }) {
  const last = shares.gaps.at(-1);
  return html`<p><small>Over time: as the scheduler published it, sampled each minute since this dashboard began, <${Time} ms=${shares.since_ms} />; the history does not have it. Dashed is the fair share, the other line what a queue had; grey: not known.
    ${last && html` The scheduler last did not answer <${Time} ms=${last.to_ms} />: ${last.why}.`}</small></p>`;
}

export function Teams({ page }) {
  const trend = useSheet("trend")?.document.page;
  const shares = useSheet("shares", SHARES_MS)?.document.page;
  const columns = useMemo(() => {
    const sampled = shares?.times_ms.length > 1 ? overTime(shares) : [];
    const of = new Map((trend?.days.length ? trend.queues : []).map((one) => [one.queue, one]));
    return [...COLUMNS.slice(0, 3), ...(trend?.days.length ? [trendColumn(trend, of)] : []), ...sampled, ...COLUMNS.slice(3)];
  }, [trend, shares]);
  return html`<${Table} caption="Queues" columns=${columns} rows=${page.queues} path="teams" noun="queue" empty=${html`<${Empty}
    title="There is no queue.">All jobs share the GPUs in the order of their priority and age. <code>dovetail queue create team-a</code> makes one.<//>`} />
    ${trend?.days.length > 0 && page.queues.length > 0 && html`<p><small>A day: the dashed line is what a queue was allocated, the other one what it used; the number is of ${trend.days.at(-1)} (UTC).</small></p>`}
    ${shares?.times_ms.length > 1 && page.queues.length > 0 && html`<${Samples} shares=${shares} />`}`;
}
