// Leases of software agents, what others negotiate for, and the control planes that ask.
import { html } from "/assets/core.js";
import { Table } from "/assets/table.js";
import { Time } from "/assets/times.js";
import { Empty, Name, State, amounts, count, rounded } from "/assets/words.js";

const name = (key, title) => ({ key, title, value: (one) => one[key], cell: (one) => html`<${Name}>${one[key]}<//>` });
const state = (key) => ({ key, title: "State", value: (one) => one[key], cell: (one) => html`<${State} name=${one[key]} />` });
const time = (key, title) => ({ key, title, value: (one) => one[key], cell: (one) => html`<${Time} ms=${one[key]} />` });

const LEASES = [
  name("lease", "Lease"), name("plane", "Control plane"), state("state"), { key: "what", title: "Holds", value: (one) => one.what },
  { key: "devices", title: "Where", value: (one) => one.devices.map((at) => `${at.node} ${(at.instances.length ? at.instances : at.gpus).join(",")}`).join("; ") },
  time("start_ms", "Start"), time("end_ms", "End"), { key: "renewals", title: "Renewals", num: true, value: (one) => one.renewals },
  { key: "pods", title: "Pods", num: true, value: (one) => one.pods.length },
  { key: "end", title: "Taken back", wide: true, value: (one) => (one.revocation ? `${one.revocation.cause}: ${one.revocation.message}` : one.cause || one.problem || one.refused) },
];

const REQUESTS = [
  name("request", "Request"), name("plane", "Control plane"), state("state"),
  { key: "alternatives", title: "Asks for", wide: true, value: (one) => one.alternatives.join(", else ") }, time("since_ms", "Since"),
  { key: "code", title: "Why", wide: true, value: (one) => `${one.code} ${one.message}`, cell: (one) => html`<strong>${one.code}</strong><div class="message">${one.message}</div>` },
  { key: "offers", title: "Offers", wide: true, value: (one) => one.offers.map((offer) => `${offer.alternative}${offer.why ? `: ${offer.why}` : ""}`).join("; ") },
  time("expected_start_ms", "Starts at the latest"),
];

const PLANES = [
  name("plane", "Control plane"), state("phase"), name("queue", "Queue"), { key: "held", title: "Holds", value: (one) => amounts(one.held) },
  { key: "limit", title: "Limit", value: (one) => amounts(one.limit) }, { key: "leases", title: "Leases", num: true, value: (one) => one.leases },
  { key: "requests", title: "Requests", num: true, value: (one) => one.requests },
  { key: "credit", title: "Credit, GPU-hours", num: true, value: (one) => one.credit_gpu_hours,
    cell: (one) => one.credit_gpu_hours !== null && rounded(one.credit_gpu_hours) }, time("heard_ms", "Heartbeat"),
  { key: "message", title: "What is wrong", wide: true, value: (one) => one.message },
];

export function Leases({ page }) {
  const { leases, requests, planes, elsewhere } = page.view;
  const others = elsewhere ? `Other namespaces have ${count(elsewhere.planes, "control plane")} with ${count(elsewhere.leases, "lease")} of ${elsewhere.gpus_milli / 1000} GPUs.` : "";
  if (!leases.length && !requests.length && !planes.length) {
    return html`<${Empty} title="No software agent asks for GPUs.">${others || html`An agent asks through a control plane of its own. <code>dovetail demo agents</code> shows five that negotiate.`}<//>`;
  }
  return html`<section><h2>Leases</h2><${Table} caption="Leases" columns=${LEASES} rows=${leases} path="leases" noun="lease" empty=${html`<p>No lease is held.</p>`} /></section>
    <section><h2>Negotiations</h2><${Table} caption="Requests" columns=${REQUESTS} rows=${requests} filter=${false} empty=${html`<p>No request waits.</p>`} /></section>
    <section><h2>Control planes</h2><${Table} caption="Control planes" columns=${PLANES} rows=${planes} filter=${false} /></section>
    ${others && html`<p>${others}</p>`}`;
}
