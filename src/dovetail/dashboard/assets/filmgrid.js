// The GPUs of all nodes at the time that is shown, drawn: only what is in view, as often as the screen is.
import { html, useEffect, useRef } from "/assets/core.js";
import { CELLS, Legend, described } from "/assets/cells.js";
import { draw, onFrame } from "/assets/clock.js";
import { counted, film } from "/assets/film.js";
import { go, nodeLink, parameter } from "/assets/route.js";
import { Filter, words } from "/assets/table.js";

const [TILE, HIGH, GAP, HEAD, CELL] = [9.2, 2.9, 0.4, 1.9, 1];
const MOST_STRIPS = 1024;
const WARM = { degraded: "warn", draining: "warn", quarantined: "broken" };
const placeOf = (node) => node.place.filter(Boolean).join(" / ");

class Drawing {
  constructor(box, canvas, label) {
    Object.assign(this, { box, canvas, label, context: canvas.getContext("2d"), heads: [], tiles: [], present: "", asked: null, chosen: -1, strips: new Map() });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(box);
    this.ends = [onFrame(() => this.frame()), () => this.observer.disconnect()];
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const renew = () => this.resize();
    dark.addEventListener("change", renew);
    this.ends.push(() => dark.removeEventListener("change", renew));
    box.addEventListener("scroll", draw, { passive: true });
    this.resize();
  }

  close() {
    this.ends.forEach((one) => one());
  }

  resize() {
    const { box, canvas } = this;
    const ratio = devicePixelRatio || 1;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const style = getComputedStyle(document.documentElement);
    this.family = getComputedStyle(document.body).fontFamily;
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colours = Object.fromEntries(["ground", "raised", "line", "text", "dim", "link", "bad"].map((name) => [name, colour(name)]));
    for (const [name] of Object.values(CELLS)) this.colours[name] = [colour(WARM[name] ?? name), colour(`${WARM[name] ?? name}-text`)];
    Object.assign(this, { rem, ratio, wide: box.clientWidth, high: box.clientHeight });
    canvas.width = Math.round(this.wide * ratio);
    canvas.height = Math.round(this.high * ratio);
    Object.assign(canvas.style, { width: `${this.wide}px`, height: `${this.high}px` });
    this.strips.clear();
    this.present = "";
    draw();
  }

  // Where each node is drawn: by place, those that are there alone.
  layout() {
    const asked = words();
    const places = new Map();
    film.nodes.forEach((node, number) => {
      if (!film.cells[number]) return;
      const place = placeOf(node);
      if (!asked.every((word) => `${node.node} ${place} ${node.model}`.toLowerCase().includes(word))) return;
      if (!places.has(place)) places.set(place, []);
      places.get(place).push(number);
    });
    const most = Math.max(0, ...[...places.values()].flat().map((number) => film.cells[number].length));
    const tile = Math.max(TILE, (Math.min(most, 32) + 1) * CELL) * this.rem;
    const [high, gap, head] = [HIGH * this.rem, GAP * this.rem, HEAD * this.rem];
    const columns = Math.max(1, Math.floor((this.wide - gap) / (tile + gap)));
    [this.heads, this.tiles, this.tile] = [[], [], Math.min(tile, this.wide - 2 * gap)];
    let y = 0;
    for (const [place, numbers] of [...places].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))) {
      this.heads.push({ y, place, numbers });
      y += head;
      numbers.sort((a, b) => film.nodes[a].node.localeCompare(film.nodes[b].node, "en", { numeric: true }));
      numbers.forEach((number, at) => this.tiles.push({ number, x: gap + (at % columns) * (tile + gap), y: y + Math.floor(at / columns) * (high + gap) }));
      y += Math.ceil(numbers.length / columns) * (high + gap) + gap;
    }
    this.canvas.parentElement.style.height = `${Math.max(y, this.high)}px`;
    this.chosen = Math.min(this.chosen, this.tiles.length - 1);
  }

  // The cells of a node as a picture: few of them differ.
  strip(cells) {
    let found = this.strips.get(cells);
    if (!found) {
      const { rem, ratio } = this;
      const side = Math.round(CELL * rem * ratio);
      const shown = cells.slice(0, 32);
      found = Object.assign(document.createElement("canvas"), { width: side * shown.length, height: side });
      const context = found.getContext("2d");
      Object.assign(context, { font: `${0.72 * rem * ratio}px Menlo, Consolas, "DejaVu Sans Mono", monospace`, textAlign: "center", textBaseline: "middle" });
      [...shown].forEach((one, at) => {
        const [ground, text] = this.colours[CELLS[one]?.[0] ?? "free"];
        context.fillStyle = ground;
        context.fillRect(at * side, 0, side * 0.88, side);
        context.fillStyle = text;
        context.fillText(one, (at + 0.44) * side, side / 2);
      });
      if (this.strips.size >= MOST_STRIPS) this.strips.clear();
      this.strips.set(cells, found);
    }
    return found;
  }

  frame() {
    let present = `${film.nodes.length} ${parameter("q")}`;
    let hash = 0;
    for (let number = 0; number < film.cells.length; number += 1) if (film.cells[number]) hash = (hash * 31 + number + 1) | 0;
    present += ` ${hash}`;
    if (present !== this.present) {
      this.present = present;
      this.layout();
    }
    const { context, ratio, rem, colours, tiles, wide, high } = this;
    const top = this.box.scrollTop;
    const [tall, head] = [HIGH * rem, HEAD * rem];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, wide, high);
    context.textBaseline = "alphabetic";
    context.font = `600 ${0.95 * rem}px ${this.family}`;
    for (const one of this.heads) {
      if (one.y + head < top || one.y > top + high) continue;
      let [all, used] = [0, 0];
      for (const number of one.numbers) {
        const [gpus, held] = counted(film.cells[number] || "");
        all += gpus;
        used += held;
      }
      context.fillStyle = colours.text;
      context.fillText(`${one.place || "no place"}   ${one.numbers.length} node${one.numbers.length === 1 ? "" : "s"}, ${used} of ${all} GPUs in use`, 0.4 * rem, one.y - top + 0.72 * head, wide - 0.8 * rem);
    }
    context.font = `${0.8 * rem}px ${this.family}`;
    for (let at = this.first(top - tall); at < tiles.length && tiles[at].y < top + high; at += 1) {
      const { number, x, y } = tiles[at];
      const cells = film.cells[number] || "";
      context.fillStyle = colours.raised;
      context.fillRect(x, y - top, this.tile, tall);
      context.lineWidth = at === this.chosen ? 3 : cells.includes("x") ? 2 : 1;
      context.strokeStyle = at === this.chosen ? colours.link : cells.includes("x") ? colours.bad : colours.line;
      context.strokeRect(x + 0.5, y - top + 0.5, this.tile - 1, tall - 1);
      context.fillStyle = colours.text;
      context.fillText(film.nodes[number].node.slice(0, 40), x + 0.45 * rem, y - top + 1.1 * rem, this.tile - 0.9 * rem);
      const strip = this.strip(cells);
      if (strip.width) context.drawImage(strip, x + 0.45 * rem, y - top + 1.45 * rem, strip.width / ratio, strip.height / ratio);
    }
    this.describe();
  }

  // The first tile below a height: they are sorted by it.
  first(y) {
    let [low, high] = [0, this.tiles.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tiles[middle].y < y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  text(at) {
    const { number } = this.tiles[at];
    const node = film.nodes[number];
    return [`${node.node}: ${described(film.cells[number] || "")}`, placeOf(node), node.model].filter(Boolean).join("; ");
  }

  describe() {
    const text = this.chosen >= 0 ? this.text(this.chosen) : "";
    if (this.label.textContent !== text) this.label.textContent = text;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top + this.box.scrollTop];
    return this.tiles.findIndex((one) => x >= one.x && x < one.x + this.tile && y >= one.y && y < one.y + HIGH * this.rem);
  }

  key(event) {
    const { tiles } = this;
    const here = tiles[this.chosen];
    let next = { ArrowRight: this.chosen + 1, ArrowLeft: this.chosen - 1 }[event.key];
    if (event.key === "ArrowDown" && here) next = tiles.findIndex((one) => one.y > here.y && one.x === here.x);
    if (event.key === "ArrowUp" && here) next = tiles.findLastIndex((one) => one.y < here.y && one.x === here.x);
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !here) next = 0;
    if (event.key === "Enter" && here) go(nodeLink(film.nodes[here.number].node));
    if (next === undefined || !tiles[next]) return;
    event.preventDefault();
    this.chosen = next;
    const { y } = tiles[next];
    const tall = HIGH * this.rem;
    if (y < this.box.scrollTop + HEAD * this.rem) this.box.scrollTop = y - HEAD * this.rem;
    else if (y + tall > this.box.scrollTop + this.high) this.box.scrollTop = y + tall - this.high;
    draw();
  }
}

export function FilmGrid() {
  const [box, canvas, label, drawing] = [useRef(), useRef(), useRef(), useRef()];
  useEffect(() => {
    drawing.current = new Drawing(box.current, canvas.current, label.current);
    return () => drawing.current.close();
  }, []);
  useEffect(draw, [parameter("q")]);
  const hover = (event) => {
    const at = drawing.current.at(event);
    event.currentTarget.title = at >= 0 ? drawing.current.text(at) : "";
    event.currentTarget.style.cursor = at >= 0 ? "pointer" : "";
  };
  const click = (event) => {
    const at = drawing.current.at(event);
    if (at >= 0) go(nodeLink(film.nodes[drawing.current.tiles[at].number].node));
  };
  return html`<div class="bar"><${Filter} label="Filter nodes" /></div><${Legend} />
    <div class="film" ref=${box} tabindex="0" role="group" aria-label="GPUs of the nodes; arrow keys choose a node, Enter opens it; the table has the same" onKeyDown=${(event) => drawing.current.key(event)}>
      <div class="film-room"><canvas ref=${canvas} aria-hidden="true" onMouseMove=${hover} onClick=${click}></canvas></div></div>
    <p class="film-node" role="status"><bdi ref=${label}></bdi></p>`;
}
