// The film of a recorded day: its parts, read when they are needed and ahead, and the cells of each node at any time.
const AGAIN_MS = 1000;
const MOST_CHANGES = 200000;
const parts = new Map();
const listeners = new Set();
const counts = new Map();
let current = null;
let applied = 0;
let asked = -1;
let reading = false;

// `day` is null until it is there. `cells` are those of each node at the time that was shown last, "" where it is not there.
export const film = { day: null, nodes: [], cells: [], missing: false, away: false };
const heard = () => listeners.forEach((one) => one());
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Called when more of the day is known, or a part has come.
export function onFilm(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

async function answer(path) {
  const reply = await fetch(path, { cache: "no-store" });
  if (!reply.ok) throw new Error(path);
  return reply.json();
}

// Follow the day while it is read by the server.
export async function follow() {
  while (!film.day?.whole) {
    try {
      const day = await answer("/api/replay.json");
      if (day.nodes > film.nodes.length) film.nodes = (await answer("/api/replay/nodes.json")).nodes;
      Object.assign(film, { day, away: false });
    } catch {
      film.away = true;
    }
    heard();
    if (!film.day?.whole) await pause(AGAIN_MS);
  }
}

// The number of the part that has this time.
function numberAt(ms) {
  const starts = film.day?.parts ?? [];
  let [low, high] = [0, starts.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= ms) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

// Of many parts those go that are farthest from the one that is shown.
function bound(near) {
  let changes = [...parts.values()].reduce((sum, one) => sum + one.changes.length, 0);
  while (changes > MOST_CHANGES && parts.size > 2) {
    const far = [...parts.keys()].reduce((a, b) => (Math.abs(b - near) > Math.abs(a - near) ? b : a));
    changes -= parts.get(far).changes.length;
    parts.delete(far);
  }
  return changes;
}

async function read() {
  if (reading) return;
  reading = true;
  while (asked >= 0) {
    const number = asked;
    asked = -1;
    if (!parts.has(number)) {
      try {
        parts.set(number, await answer(`/api/replay/parts/${number}.json`));
        film.away = false;
      } catch {
        film.away = true;
        await pause(AGAIN_MS);
        if (asked < 0) asked = number;
      }
      const changes = bound(number);
      // The parts around it come ahead of their use.
      if (asked < 0 && changes < MOST_CHANGES / 2) {
        const next = [1, -1, 2, -2, 3, -3].map((step) => number + step).find((one) => one >= 0 && one < film.day.parts.length && !parts.has(one));
        if (next !== undefined) asked = next;
      }
      heard();
    }
  }
  reading = false;
}

// Show a time. False while its part is not there: the cells are then those of the time before.
export function show(ms) {
  const number = numberAt(ms);
  if (!film.day?.parts.length) return false;
  const part = parts.get(number);
  film.missing = !part;
  if (!part) {
    asked = number;
    read();
    return false;
  }
  const offset = ms - part.startMs;
  if (part !== current || (applied && part.changes[applied - 1][0] > offset)) {
    film.cells = [...part.cells];
    [current, applied] = [part, 0];
  }
  for (; applied < part.changes.length && part.changes[applied][0] <= offset; applied += 1) {
    const [, node, cells] = part.changes[applied];
    film.cells[node] = cells;
  }
  return true;
}

// Of some cells: GPUs, in use, free.
export function counted(cells) {
  let found = counts.get(cells);
  if (!found) {
    found = [cells.length, 0, 0];
    for (const one of cells) {
      if (one === "#" || one === "%") found[1] += 1;
      else if (one === ".") found[2] += 1;
    }
    if (counts.size > 4096) counts.clear();
    counts.set(cells, found);
  }
  return found;
}
