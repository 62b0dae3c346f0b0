// Money and GPU time of the past: amounts as text, and a bar of what the time was.
import { html } from "/assets/core.js";

const MONEY = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const HOURS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

// "" where it is not known.
export const money = (amount) => (amount === null || amount === undefined ? "" : MONEY.format(amount));
export const hours = (number) => HOURS.format(number);
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)}%` : "");

export const PARTS = [["used", "used"], ["idle", "idle"], ["unmeasured", "not measured"], ["unallocated", "not allocated"], ["unhealthy", "not healthy"]];

// A group of costs as a bar: its GPU-hours by what they were, as a part of `most` GPU-hours.
export function Bar({ group, most }) {
  const parts = PARTS.map(([key, word]) => [key, word, group[`${key}_hours`]]).filter(([, , part]) => part > 0);
  const words = parts.map(([, word, part]) => `${hours(part)} GPU-hours ${word}`).join(", ");
  return html`<span class="use" role="img" aria-label=${words || "no GPU-hours"} title=${words} style=${{ width: `${Math.max(1, (100 * group.gpu_hours) / (most || 1))}%` }}
    >${parts.map(([key, , part]) => html`<span class=${`use-${key}`} style=${{ flexGrow: part }}></span>`)}</span>`;
}

export function BarLegend() {
  return html`<ul class="legend" aria-label="What the parts of a bar mean">${PARTS.map(([key, word]) => html`<li><span class="use key" aria-hidden="true"
    ><span class=${`use-${key}`}></span></span> ${word}</li>`)}</ul>`;
}
