// Lines beside a number: how it was on each of some days, or at some times.
import { html } from "/assets/core.js";
import { hours } from "/assets/money.js";
import { span } from "/assets/times.js";

const [WIDE, HIGH] = [84, 22];

function points(values, most) {
  const step = values.length > 1 ? WIDE / (values.length - 1) : 0;
  return values.map((one, at) => `${(at * step).toFixed(1)},${(HIGH - 2 - ((HIGH - 4) * one) / (most || 1)).toFixed(1)}`).join(" ");
}

// `lines` are [word, values, class], all on one scale; `days` name the values.
export function Spark({ lines, days }) {
  const most = Math.max(...lines.flatMap(([, values]) => values), 0);
  const words = days.map((day, at) => `${day}: ${lines.map(([word, values]) => `${hours(values[at])} ${word}`).join(", ")}`).join("; ");
  return html`<svg class="spark" role="img" aria-label=${words} viewBox=${`0 0 ${WIDE} ${HIGH}`} width=${WIDE} height=${HIGH}><title>${words}</title>
    ${lines.map(([, values, name]) => html`<polyline class=${name} points=${points(values, most)} />`)}</svg>`;
}

// The same over time, with the first and the last value, the least and the most in words. `lines` are [word, values, class]; a value that is
// null, or one of `gaps` ([from, to] in ms), breaks a line. Below zero is below the axis.
export function TimeSpark({ lines, times, gaps }) {
  const known = lines.flatMap(([, values]) => values.filter((one) => one !== null));
  if (!known.length) return null;
  const [from, to] = [times[0], Math.max(times.at(-1), times[0] + 1)];
  const [least, most] = [Math.min(0, ...known), Math.max(0, ...known)];
  const x = (ms) => (WIDE * (ms - from)) / (to - from);
  const y = (value) => HIGH - 2 - ((HIGH - 4) * (value - least)) / (most - least || 1);
  const broken = (at) => gaps.some(([a, b]) => a < times[at] && b > times[at - 1]);
  const path = (values) => values.map((one, at) => (one === null ? "" : `${at && values[at - 1] !== null && !broken(at) ? "L" : "M"}${x(times[at]).toFixed(1)} ${y(one).toFixed(1)}h.1`)).join("");
  const text = ([word, values]) => {
    const found = values.filter((one) => one !== null);
    return `${word}: ${hours(found[0])} at first, ${hours(found.at(-1))} now, from ${hours(Math.min(...found))} to ${hours(Math.max(...found))}`;
  };
  const inside = gaps.filter(([a, b]) => b > from && a < to);
  const words = `${span(to - from)}; ${lines.filter(([, values]) => values.some((one) => one !== null)).map(text).join("; ")}${inside.length ? `; not known for ${span(inside.reduce((sum, [a, b]) => sum + Math.min(b, to) - Math.max(a, from), 0))}` : ""}`;
  return html`<svg class="spark" role="img" aria-label=${words} viewBox=${`0 0 ${WIDE} ${HIGH}`} width=${WIDE} height=${HIGH}><title>${words}</title>
    ${inside.map(([a, b]) => html`<rect class="spark-gap" x=${x(Math.max(a, from))} width=${Math.max(1, x(Math.min(b, to)) - x(Math.max(a, from)))} y="0" height=${HIGH} />`)}
    ${least < 0 && html`<line class="spark-axis" x1="0" x2=${WIDE} y1=${y(0)} y2=${y(0)} />`}
    ${lines.map(([, values, name]) => html`<path class=${name} d=${path(values)} />`)}</svg>`;
}
