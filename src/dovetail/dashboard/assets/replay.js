// The time bar of a recorded day: play, speed, any time, the next event; and what was in use and waited, as a line.
import { html, useEffect, useMemo, useRef, useState } from "/assets/core.js";
import { SPEEDS, begin, clock, draw, onFrame, play, renewed, seek } from "/assets/clock.js";
import { counted, film, onFilm } from "/assets/film.js";
import { moment, span } from "/assets/times.js";
import { parameter } from "/assets/route.js";
import { count, rounded } from "/assets/words.js";

const [WIDE, HIGH] = [1000, 44];
const WORDS = { evicted: "evicted", drained: "drained", node: "node gone" };
begin();

export function useDay() {
  const [, again] = useState(0);
  useEffect(() => onFilm(() => again((one) => one + 1)), []);
  return film.day;
}

function Lines({ day }) {
  return useMemo(() => {
    const { startMs, endMs, line, marks } = day;
    const x = (ms) => ((WIDE * (ms - startMs)) / Math.max(1, endMs - startMs)).toFixed(1);
    const gpus = Math.max(1, ...line.map((one) => one[2]));
    const waiting = Math.max(1, ...line.map((one) => one[3]));
    const steps = (value, most) => line.flatMap((one, at) => {
      const y = (HIGH - ((HIGH - 6) * value(one)) / most).toFixed(1);
      return [`${x(one[0])},${y}`, `${x(line[at + 1]?.[0] ?? endMs)},${y}`];
    }).join(" ");
    const most = Math.max(0, ...line.map((one) => one[1]));
    const text = `From ${moment(startMs)} to ${moment(endMs)}: up to ${rounded(most)} of ${rounded(gpus)} GPUs in use, up to ${count(Math.max(0, ...line.map((one) => one[3])), "job")} waiting, ${count(marks.length + day.marksLeftOut, "event")}`;
    return html`<svg class="day-lines" role="img" aria-label=${text} viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none"><title>${text}</title>
      <polygon class="day-used" points=${`0,${HIGH} ${steps((one) => one[1], gpus)} ${WIDE},${HIGH}`} />
      <polyline class="day-waiting" points=${steps((one) => one[3], waiting)} />
      <path class="day-marks" d=${marks.map(([ms]) => `M${x(ms)} 0V6`).join("")} /></svg>`;
  }, [day]);
}

// The index of the last event up to a time.
function last(marks, ms) {
  let [low, high] = [0, marks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle][0] <= ms) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function toEvent(step) {
  const { marks } = film.day;
  const at = Math.round(clock.atMs);
  const found = step > 0 ? marks[last(marks, at) + 1] : marks[last(marks, at - 1)];
  if (found) seek(found[0]);
}

function key(event) {
  const unit = Math.max(1000, Math.round((film.day.endMs - film.day.startMs) / 1440000) * 1000);
  const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 60, PageDown: -60 }[event.key];
  if (event.key === " ") play(!clock.playing);
  else if (event.key === "Home") seek(film.day.startMs);
  else if (event.key === "End") seek(film.day.endMs);
  else if (step) seek(clock.atMs + step * unit * (event.shiftKey ? 10 : 1));
  else return;
  event.preventDefault();
}

function useKeys() {
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "range") || document.querySelector("dialog[open]")) return;
      if (event.key === "p") play(!clock.playing);
      else if (event.key === ".") toEvent(1);
      else if (event.key === ",") toEvent(-1);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Bar({ day }) {
  const [slider, time, facts, event] = [useRef(), useRef(), useRef(), useRef()];
  const [playing, setPlaying] = useState(clock.playing);
  const [elsewhere, setElsewhere] = useState(clock.elsewhere);
  useKeys();
  useEffect(renewed, [parameter("at")]);
  useEffect(() => {
    const shown = () => {
      const whole = `${moment(clock.atMs)}, ${span(clock.atMs - film.day.startMs)} after the start`;
      slider.current.value = String(clock.atMs);
      slider.current.setAttribute("aria-valuetext", whole);
      time.current.textContent = whole;
      let [all, used, free] = [0, 0, 0];
      for (const cells of film.cells) {
        if (!cells) continue;
        const found = counted(cells);
        [all, used, free] = [all + found[0], used + found[1], free + found[2]];
      }
      facts.current.textContent = film.missing ? "this time is being read" : `${rounded(used)} of ${rounded(all)} GPUs in use, ${rounded(free)} free`;
      const mark = film.day.marks[last(film.day.marks, clock.atMs)];
      event.current.textContent = mark ? `${span(clock.atMs - mark[0])} ago: ${mark[2]}` : "";
      setPlaying(clock.playing);
      setElsewhere(clock.elsewhere);
    };
    const end = onFrame(shown);
    draw();
    return end;
  }, []);
  return html`<section class="day" aria-label="Time">${elsewhere && html`<p class="old" role="status">${elsewhere}</p>`}
    <div class="bar"><button type="button" aria-pressed=${playing} onClick=${() => play(!clock.playing)}>${playing ? "Pause" : "Play"}</button>
      <label>Speed <select onChange=${(one) => { clock.speed = Number(one.target.value); }}>${SPEEDS.map(([speed, word]) => html`<option value=${speed} selected=${speed === clock.speed}>${word}</option>`)}</select></label>
      <button type="button" disabled=${!day.marks.length} onClick=${() => toEvent(-1)}>Event before</button><button type="button" disabled=${!day.marks.length} onClick=${() => toEvent(1)}>Next event</button>
      <strong class="day-time" ref=${time}></strong> <span class="day-facts" ref=${facts}></span></div>
    <div class="day-bar"><${Lines} day=${day} /><input type="range" ref=${slider} aria-label="Time of the recording" min=${day.startMs} max=${Math.max(day.endMs, day.startMs + 1)} step="1"
      onInput=${(one) => seek(Number(one.target.value))} onKeyDown=${key} /></div>
    <ul class="legend" aria-label="What the lines mean"><li><span class="key-used" aria-hidden="true">▇</span> GPUs in use</li><li><span class="key-waiting" aria-hidden="true">╌</span> jobs and pods that wait, up to ${Math.max(0, ...day.line.map((one) => one[3]))}</li>
      ${day.marks.length > 0 && html`<li><span class="key-marks" aria-hidden="true">❘</span> ${kinds(day)}</li>`}</ul>
    <p class="day-event"><small><bdi ref=${event}></bdi></small></p></section>`;
}

function kinds(day) {
  const found = new Map();
  for (const [, kind] of day.marks) found.set(kind, (found.get(kind) ?? 0) + 1);
  const words = [...found].map(([kind, number]) => `${number} ${WORDS[kind] ?? kind}`);
  return `${words.join(", ")}${day.marksLeftOut ? `, and ${day.marksLeftOut} later ones without a mark` : ""}`;
}

export function TimeBar() {
  const day = useDay();
  if (!day) return html`<p class="loading">${film.away ? "The dashboard does not answer." : "Loading"}</p>`;
  const ready = day.startMs && day.parts.length;
  return html`${film.away && html`<p class="old" role="alert">The dashboard does not answer. What is not read yet cannot be shown.</p>`}
    ${!day.whole && html`<p class="old" role="status">The recording is being read: <progress max="1000" value=${day.readPermille} aria-label="Read"></progress> ${Math.floor(day.readPermille / 10)}%${ready ? `. It is shown up to ${moment(day.endMs)}.` : ""}${ready && !clock.begun ? html` The time of the link is not read yet: <a href=${location.pathname}>show the beginning</a>.` : null}</p>`}
    ${day.problem && html`<p class="old" role="alert">${ready ? `Shown up to ${moment(day.endMs)}, and not further: ` : "Nothing can be shown: "}${day.problem}.</p>`}
    ${ready && clock.begun ? html`<${Bar} day=${day} />` : null}`;
}
