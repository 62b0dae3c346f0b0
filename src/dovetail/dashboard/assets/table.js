// A table: sorted by its heads, filtered by words, both in the address; the rows of the page as CSV and JSON.
import { html, useState } from "/assets/core.js";
import { dataLink, download } from "/assets/live.js";
import { parameter, setParameter } from "/assets/route.js";

export const FIRST = 200;
const texts = new WeakMap();

// What the filter reads: all that the row shows.
function textOf(row, columns) {
  if (!texts.has(row)) texts.set(row, columns.map((one) => String(one.value(row) ?? "")).join(" ").toLowerCase());
  return texts.get(row);
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
}

export function Filter({ label }) {
  return html`<label class="filter"><span class="hidden">${label}</span>
    <input type="search" placeholder=${`${label}  /`} value=${parameter("q")}
      onInput=${(event) => setParameter("q", event.target.value)} /></label>`;
}

export const words = () => parameter("q").toLowerCase().split(/\s+/).filter(Boolean);

export function Files({ path }) {
  return html`<span class="files">${["csv", "json"].map((form) => html`<a href=${dataLink(path, form)} download
    onClick=${(event) => download(event, path, form)}>${form.toUpperCase()}</a>`)}</span>`;
}

function without(column, row) {
  const value = column.value(row);
  return value === "" || value === null || value === undefined || (value === 0 && !column.num);
}

// On a narrow screen a cell without a value is left out.
function classOf(column, row) {
  return [column.num && "num", column.wide && "wide", without(column, row) && "none"].filter(Boolean).join(" ");
}

// columns: {key, title, value(row), cell(row), num}. `filter` false: a small table beside others, as it is.
// A column without a value in any row is left out. With `served` {total, found, most} the server has searched and
// sorted the rows, and gives no more than `most`.
export function Table({ caption, columns: every, rows, path, noun = "row", filter = true, empty, served }) {
  const [whole, showWhole] = useState(false);
  const total = served ? served.total : rows.length;
  if (!total && empty) return empty;
  const [, down, by] = /^(-?)(.*)$/.exec(filter ? parameter("sort") : "");
  const columns = every.filter((one) => !rows.length || (served && one.key === by) || rows.some((row) => !without(one, row)));
  const column = columns.find((one) => one.key === by);
  const asked = filter ? words() : [];
  let found = served ? rows : rows.filter((row) => asked.every((word) => textOf(row, columns).includes(word)));
  if (column && !served) found = [...found].sort((a, b) => compared(column.value(a), column.value(b)) * (down ? -1 : 1));
  const shown = whole || served ? found : found.slice(0, FIRST);
  const all = served ? served.found : found.length;
  const more = served ? Math.min(served.most, all) : all;
  const sort = (key) => setParameter("sort", by !== key ? key : down ? "" : `-${key}`);
  return html`<div class="table">
    ${filter && html`<div class="bar"><${Filter} label=${`Filter ${noun}s`} />
      <span class="count" role="status">${all === total ? `${total}` : `${all} of ${total}`}
        ${" "}${noun}${total === 1 ? "" : "s"}</span>${path && html`<${Files} path=${path} />`}</div>`}
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}><table><caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map((one) => html`<th scope="col" class=${one.num ? "num" : ""}
        aria-sort=${one.key === by ? (down ? "descending" : "ascending") : undefined}>
        ${filter ? html`<button type="button" onClick=${() => sort(one.key)}>${one.title}<span aria-hidden="true" class="arrow"
          >${one.key === by ? (down ? " ▾" : " ▴") : ""}</span></button>` : one.title}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr>${columns.map((one) => html`<td class=${classOf(one, row)}
        data-title=${one.title}>${one.cell ? one.cell(row) : one.value(row)}</td>`)}</tr>`)}</tbody></table></div>
    ${!all && total > 0 && html`<p class="none">No ${noun} has ${asked.map((one) => `“${one}”`).join(" and ")}.
      ${" "}<button type="button" onClick=${() => setParameter("q", "")}>Show all</button></p>`}
    ${more > shown.length && html`<p><button type="button" onClick=${() => (served ? setParameter("rows", "most") : showWhole(true))}>Show ${more < all ? `${more} of` : "all"} ${all} ${noun}s</button></p>`}
    ${served && shown.length === served.most && all > shown.length && html`<p>The first ${shown.length} of ${all} ${noun}s. Filter them, or take all as CSV or JSON.</p>`}
  </div>`;
}
