// The jobs that run, wait or are done.
import { html } from "/assets/core.js";
import { jobLink, nodeLink, parameter } from "/assets/route.js";
import { FIRST, Table } from "/assets/table.js";
import { Time } from "/assets/times.js";
import { Empty, Name, State, count } from "/assets/words.js";

const SHOWN = 3;
// As the server has them (job_windows.py).
const MOST_FIRST = 1000;
const MOST_LETTERS = 100;

// A letter of the server may be two of ours, and is not cut in its middle.
const cut = (words) => [...words.trim()].slice(0, MOST_LETTERS).join("");

// The data of a window: the first rows with these words, in this order.
export function jobsPath(words = parameter("q"), sort = parameter("sort"), first = parameter("rows") ? MOST_FIRST : FIRST) {
  const found = new URLSearchParams({ first });
  if (COLUMNS.some((one) => one.key === sort.replace(/^-/, ""))) found.set("sort", sort);
  const letters = cut(words);
  if (letters) found.set("q", letters);
  return `jobs/${found}`;
}

// The data of the first jobs with these words in their names.
export function namedPath(words, first) {
  const letters = cut(words);
  return `jobs/${new URLSearchParams({ first, ...(letters ? { name: letters } : {}) })}`;
}

export function Nodes({ names }) {
  const more = names.length - SHOWN;
  return html`${names.slice(0, SHOWN).map((one, at) => html`<a href=${nodeLink(one)}><${Name}>${one}<//></a>${at < Math.min(SHOWN, names.length) - 1 && ", "}`)}${more > 0 && ` and ${more} more`}`;
}

const COLUMNS = [
  { key: "job", title: "Job", value: (one) => one.job, cell: (one) => html`<a href=${jobLink(one.job, one.kind)}><${Name}>${one.job}<//></a>` },
  { key: "state", title: "State", value: (one) => one.state, cell: (one) => html`<${State} name=${one.state} />` },
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "user", title: "User", value: (one) => one.user, cell: (one) => html`<${Name}>${one.user}<//>` },
  { key: "gpus", title: "GPUs", num: true, value: (one) => one.gpus_milli, cell: (one) => one.gpus },
  { key: "pods", title: "Pods placed", num: true, value: (one) => one.placed, cell: (one) => `${one.placed}/${one.pods}` },
  { key: "nodes", title: "Nodes", value: (one) => one.nodes.join(" "), cell: (one) => html`<${Nodes} names=${one.nodes} />` },
  { key: "submitted", title: "Submitted", value: (one) => one.submitted_ms, cell: (one) => html`<${Time} ms=${one.submitted_ms} />` },
  { key: "start", title: "Start", value: (one) => one.start_ms, cell: (one) => html`<${Time} ms=${one.start_ms} /> ${one.state === "Waiting" && html`<small>${one.sure.toLowerCase()}</small>`}` },
  { key: "end", title: "End", value: (one) => one.end_ms, cell: (one) => html`<${Time} ms=${one.end_ms} /> ${one.end_ms > 0 && one.end_sure !== "Known" && html`<small>${one.end_sure.toLowerCase()}</small>`}` },
  { key: "reason", title: "Reason", value: (one) => one.reason, cell: (one) => html`<span title=${one.message}>${one.reason}</span>` },
];

export function Jobs({ page }) {
  const others = page.elsewhere ? `${count(page.elsewhere, "unfinished job")} of other namespaces ${page.elsewhere === 1 ? "is" : "are"} not shown.` : "";
  return html`<${Table} caption="Jobs" columns=${COLUMNS} rows=${page.jobs} path="jobs" noun="job" served=${{ total: page.total, found: page.found, most: MOST_FIRST }} empty=${html`<${Empty}
    title="There is no job.">${others || html`<code>dovetail run --gpus 1 -- nvidia-smi</code> submits one; <code>dovetail demo --dashboard</code> shows some.`}<//>`} />
    ${page.total > 0 && others && html`<p>${others}</p>`}`;
}
