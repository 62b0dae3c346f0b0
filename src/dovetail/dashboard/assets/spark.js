// A line beside a number: how it was on each of some days.
import { html } from "/assets/core.js";
import { hours } from "/assets/money.js";

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
