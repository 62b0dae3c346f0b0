// States as a glyph, a word and a colour, never as a colour alone; amounts as text.
import { html } from "/assets/core.js";

const STATES = {
  Running: ["●", "ok"], healthy: ["●", "ok"], Placed: ["●", "ok"], Bound: ["●", "ok"], Active: ["●", "ok"], Ready: ["●", "ok"],
  Completed: ["○", "dim"], Deleted: ["○", "dim"], unknown: ["?", "dim"],
  Waiting: ["◐", "wait"], NotYet: ["◐", "wait"], Ending: ["◑", "wait"], Preempted: ["◑", "wait"], Evicted: ["◑", "wait"], degraded: ["▲", "wait"], draining: ["▼", "wait"],
  Never: ["✕", "bad"], Failed: ["✕", "bad"], Lost: ["✕", "bad"], quarantined: ["✕", "bad"],
};
const SHOWN = { Placed: "starts now", NotYet: "not yet", Never: "never" };

export function State({ name }) {
  if (!name) return null;
  const [glyph, colour] = STATES[name] ?? ["◌", "dim"];
  return html`<span class=${`state ${colour}`}><span aria-hidden="true">${glyph}</span> ${SHOWN[name] ?? name}</span>`;
}

// A name from the cluster: of any length, script and direction.
export const Name = ({ children }) => children && html`<bdi class="name" title=${children}>${children}</bdi>`;

const FORMAT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
// Large numbers, and those with many digits behind the point, as people read them.
export const rounded = (number) => FORMAT.format(number);

export const gpus = (milli) => String(milli / 1000);

const MIB = 1048576;
function bytes(count) {
  const units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) [count, at] = [count / 1024, at + 1];
  return `${Math.round(count * 10) / 10}${units[at]}`;
}

function amount(name, value) {
  if (name === "memory") return bytes(value);
  if (name === "gpu-memory") return bytes(value * MIB);
  return name === "gpu-slices" ? String(value) : String(value / 1000);
}

// `40 gpu, 1Ti memory`: GPUs first.
export function amounts(list) {
  const rank = ([name]) => `${name.startsWith("gpu") ? 0 : 1}${name}`;
  return [...list].sort((a, b) => (rank(a) < rank(b) ? -1 : 1)).map(([name, value]) => `${amount(name, value)} ${name}`)
    .join(", ");
}

export const gpuAmount = (list) => (list.find(([name]) => name === "gpu")?.[1] ?? 0) / 1000;

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

export function Empty({ title, children }) {
  return html`<div class="empty"><p><strong>${title}</strong></p><p>${children}</p></div>`;
}
