// A step of the scheduler, repeated from its recording: what had happened, who waited, and what was decided.
import { html } from "/assets/core.js";
import { Table } from "/assets/table.js";
import { Time } from "/assets/times.js";
import { Name } from "/assets/words.js";

const WAITING = [
  { key: "job", title: "Job", value: (one) => one.job, cell: (one) => html`<${Name}>${one.job}<//>` },
  { key: "queue", title: "Queue", value: (one) => one.queue, cell: (one) => html`<${Name}>${one.queue}<//>` },
  { key: "pods", title: "Pods", num: true, value: (one) => one.pods },
  { key: "decided", title: "Decision, or the refusal before", wide: true, value: (one) => one.decided.join(" ") || one.before,
    cell: (one) => one.decided.length ? one.decided.map((text) => html`<div class="message"><strong>${text}</strong></div>`) : html`<div class="message">${one.before}</div>` },
];

const List = ({ texts, none }) => texts.length ? html`<ul>${texts.map((one) => html`<li class="message">${one}</li>`)}</ul>` : html`<p>${none}</p>`;

export function Decision({ page }) {
  return html`<p><${Time} ms=${page.now_ms} />, decided again: the same. <small>${page.place}</small></p>
    ${page.raised && html`<p class="old" role="alert">The step ended with an error, and the process with it: ${page.raised}</p>`}
    <h2>Decisions</h2><${List} texts=${page.decided} none="None." />
    <h2>Waiting jobs, in queue order</h2><${Table} caption="Waiting jobs before the step" columns=${WAITING} rows=${page.waiting} path=${`decision/${page.decision}`} noun="job" empty=${html`<p>No job waited.</p>`} />
    ${page.rooms.length > 0 && html`<h2>Room held</h2><${List} texts=${page.rooms.map((one) => `${one.job}: ${one.nodes.join(", ")}`)} />`}
    <h2>Events since the step before</h2><${List} texts=${page.events} none="None." />`;
}
