// The time of a recorded day that is shown: it runs, or is drawn to another one. The address has it once it rests.
import { film, follow, onFilm, show } from "/assets/film.js";
import { live } from "/assets/live.js";
import { parameter, setParameter } from "/assets/route.js";
import { moment } from "/assets/times.js";

const RESTS_MS = 250;
const RUNS_MS = 3000;
const frames = new Set();
let drawing = 0;
let thenMs = 0;
let timer = null;
let settledAt = 0;

export const SPEEDS = [[1, "as it was"], [60, "1 min a second"], [600, "10 min a second"], [3600, "1 h a second"], [21600, "6 h a second"], [172800, "2 d a second"]];
const A_DAY_MS = 180000;
// `begun`: the day is there, and the time that the link asks for. `elsewhere`: why another time than that is shown.
export const clock = { atMs: 0, playing: false, speed: 600, begun: false, elsewhere: "" };
const ends = () => [film.day?.startMs ?? 0, film.day?.endMs ?? 0];

// Called for each frame that is drawn. A function that ends that is returned.
export function onFrame(listener) {
  frames.add(listener);
  return () => frames.delete(listener);
}

export function draw() {
  if (!drawing) drawing = requestAnimationFrame(frame);
}

function frame(ms) {
  drawing = 0;
  const [, end] = ends();
  if (clock.playing) {
    clock.atMs = Math.min(end, clock.atMs + Math.max(0, ms - (thenMs || ms)) * clock.speed);
    thenMs = ms;
    if (clock.atMs >= end && film.day.whole) play(false);
    settle();
  }
  live.atMs = clock.atMs;
  show(clock.atMs);
  frames.forEach((one) => one());
  if (clock.playing) draw();
}

function settled() {
  timer = null;
  settledAt = performance.now();
  const at = Math.round(clock.atMs);
  live.restsMs = at;
  setParameter("at", new Date(at).toISOString());
}

// The other pages are those of the time at which it rests; while it runs, of one that is a few seconds old.
function settle() {
  if (clock.playing && timer) return;
  clearTimeout(timer);
  timer = setTimeout(settled, clock.playing ? Math.max(RESTS_MS, RUNS_MS - (performance.now() - settledAt)) : RESTS_MS);
}

export function seek(ms) {
  const [start, end] = ends();
  clock.atMs = Math.min(end, Math.max(start, ms));
  clock.elsewhere = "";
  settle();
  draw();
}

export function play(on) {
  const [start, end] = ends();
  if (on && clock.atMs >= end) clock.atMs = start;
  clock.playing = on;
  clock.elsewhere = "";
  thenMs = 0;
  settle();
  draw();
  frames.forEach((one) => one());
}

// The time that a link asks for: the nearest that the day has.
function linked() {
  const [start, end] = ends();
  const text = parameter("at");
  const asked = Date.parse(text);
  const at = Number.isFinite(asked) ? Math.min(end, Math.max(start, asked)) : null;
  if (!text || at === asked) clock.elsewhere = "";
  else if (at === null) clock.elsewhere = `The link asks for “${text.slice(0, 40)}”, which is no time (2027-01-31T12:00:00Z is one).`;
  else clock.elsewhere = `The link asks for ${moment(asked)}, which the recording does not have: its ${at === start ? "beginning" : "end"} is shown.`;
  return at;
}

// Another link was followed, or back.
export function renewed() {
  const asked = linked();
  if (clock.begun && asked !== null && !timer && !clock.playing && asked !== live.restsMs) {
    Object.assign(live, { restsMs: asked, atMs: asked });
    clock.atMs = asked;
  }
  draw();
}

// Begin once the day is there; a time that is not read yet is waited for.
export function begin() {
  onFilm(() => {
    const { day } = film;
    if (!day?.startMs || !day.parts.length) return;
    const asked = Date.parse(parameter("at"));
    if (!clock.begun && (day.whole || !(asked > day.endMs))) {
      clock.begun = true;
      const at = linked() ?? day.startMs;
      clock.speed = SPEEDS.find(([speed]) => (day.endMs - day.startMs) / speed <= A_DAY_MS)?.[0] ?? SPEEDS.at(-1)[0];
      Object.assign(live, { restsMs: at, atMs: at });
      clock.atMs = at;
    }
    if (clock.begun) draw();
  });
  follow();
}
