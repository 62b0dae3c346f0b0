// The GPUs of a node: a cell each, with a letter and a colour. The letters are those of the data.
import { html } from "/assets/core.js";

export const CELLS = {
  ".": ["free", "free"],
  "#": ["held", "in use"],
  "%": ["part", "in use in part"],
  "!": ["degraded", "degraded"],
  "v": ["draining", "draining"],
  "x": ["quarantined", "quarantined"],
};

// Equal neighbours are one element: a thousand nodes are few.
function runs(cells) {
  const found = [];
  for (const one of cells) {
    if (found.length && found[found.length - 1][0] === one) found[found.length - 1] += one;
    else found.push(one);
  }
  return found;
}

export function described(cells) {
  const counts = new Map();
  for (const one of cells) counts.set(one, (counts.get(one) ?? 0) + 1);
  return [...counts].map(([one, number]) => `${number} ${CELLS[one][1]}`).join(", ");
}

export function Cells({ cells }) {
  return html`<span class="cells" role="img" aria-label=${described(cells)}>${runs(cells).map(
    (run) => html`<span class=${`run ${CELLS[run[0]][0]}`} style=${{ width: `${run.length}rem` }} aria-hidden="true">${run}</span>`,
  )}</span>`;
}

export function Legend() {
  return html`<ul class="legend" aria-label="What the cells of a node mean">${Object.entries(CELLS).map(
    ([letter, [colour, word]]) => html`<li><span class=${`run ${colour}`} aria-hidden="true">${letter}</span> ${word}</li>`,
  )}</ul>`;
}
