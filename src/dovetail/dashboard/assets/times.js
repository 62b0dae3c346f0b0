// Times: how long ago, or until when; the whole time in a tooltip, on paper, and everywhere where that is chosen.
import { html, useEffect, useState } from "/assets/core.js";
import { nowMs } from "/assets/live.js";

const CHOICE = "dovetail-times";
const listeners = new Set();
setInterval(() => listeners.forEach((one) => one()), 10000);

export const absolute = () => localStorage.getItem(CHOICE) === "absolute";

export function toggleTimes() {
  localStorage.setItem(CHOICE, absolute() ? "relative" : "absolute");
  listeners.forEach((one) => one());
}

export function useTick() {
  const [, again] = useState(0);
  useEffect(() => {
    const draw = () => again((one) => one + 1);
    listeners.add(draw);
    return () => listeners.delete(draw);
  }, []);
}

const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "m"], [1000, "s"]];

// The two largest units: `2d 3h`, `45s`.
export function span(ms) {
  const at = UNITS.findIndex(([unit]) => ms >= unit);
  if (at < 0) return "0s";
  const [unit, name] = UNITS[at];
  const count = Math.floor(ms / unit);
  const rest = UNITS[at + 1] && count < 10 ? Math.floor((ms % unit) / UNITS[at + 1][0]) : 0;
  return `${count}${name}${rest ? ` ${rest}${UNITS[at + 1][1]}` : ""}`;
}

export function moment(ms) {
  const iso = new Date(ms).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

export function relative(ms) {
  const ago = nowMs() - ms;
  return ago >= 0 ? `${span(ago)} ago` : `in ${span(-ago)}`;
}

export function Time({ ms, none = "" }) {
  useTick();
  if (!ms) return none;
  const whole = moment(ms);
  return html`<time datetime=${new Date(ms).toISOString()} title=${whole}>${absolute() ? whole : relative(ms)}</time>`;
}
