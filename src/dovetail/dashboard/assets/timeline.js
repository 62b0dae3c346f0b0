// The times of a job as bars: how long each of its pods waited, started up and ran, how it ended, and what is expected.
import { html } from "/assets/core.js";
import { nowMs } from "/assets/live.js";
import { Time, moment, span, useTick } from "/assets/times.js";
import { Name, State } from "/assets/words.js";

const SHOWN = 40;
const AGAIN_MS = 60000;
const WORDS = { waited: "waited", startup: "started up", ran: "ran", expected: "is expected to run" };

function lane(pod) {
  let at = pod.submitted_ms;
  const parts = [];
  for (const [kind, ms] of [["waited", pod.waited_ms], ["startup", pod.startup_ms], ["ran", pod.ran_ms]]) {
    if (ms === null || ms === undefined) continue;
    parts.push([kind, at, at + ms]);
    at += ms;
  }
  return { name: pod.pod, outcome: pod.outcome, parts, note: [pod.code, pod.message].filter(Boolean).join(": "), restarts: pod.restarts };
}

// What is known without a history: one bar of the job itself.
function live(row) {
  if (!row.submitted_ms) return [];
  const now = nowMs();
  const started = row.state !== "Waiting" && row.start_ms ? row.start_ms : 0;
  const ended = row.end_ms && row.end_ms < now ? row.end_ms : 0;
  const parts = [["waited", row.submitted_ms, started || (ended || now)]];
  if (started) parts.push(["ran", started, ended || now]);
  return [{ name: row.job, outcome: row.state, parts, note: "", restarts: 0 }];
}

// Whether one of the runs is the job as it is now: the history may have earlier ones of this name alone.
function isKnown(row, runs) {
  return runs.some((run) => !run.ended_ms || [run, ...(run.steps ?? [])].some((one) => Math.abs(one.submitted_ms - row.submitted_ms) < AGAIN_MS));
}

// The steps of the job in words, the oldest first; those of now are those of a run where it is `known`.
function steps(row, runs, known) {
  const found = [];
  for (const run of runs) {
    found.push([run.submitted_ms, "submitted"]);
    if (run.bound_ms) found.push([run.bound_ms, `bound, after ${span(run.waited_ms)}`]);
    for (const pod of run.steps ?? []) {
      // A pod that came in place of another.
      if (pod.submitted_ms > run.submitted_ms + AGAIN_MS && pod.startup_ms !== null) {
        found.push([pod.submitted_ms + pod.waited_ms, `${pod.pod} bound, after ${span(pod.waited_ms)}`]);
      }
      if (["Preempted", "Evicted", "Failed", "Lost"].includes(pod.outcome) && pod.ended_ms) {
        found.push([pod.ended_ms, `${pod.pod} ${pod.outcome.toLowerCase()}${pod.message || pod.code ? `: ${pod.message || pod.code}` : ""}`]);
      } else if (pod.restarts) found.push([pod.ended_ms, `${pod.pod}: containers restarted ${pod.restarts} times`]);
    }
    if (run.ended_ms) found.push([run.ended_ms, run.outcome.toLowerCase()]);
  }
  if (!known && row?.submitted_ms) {
    found.push([row.submitted_ms, "submitted"]);
    if (row.start_ms && row.state !== "Waiting") found.push([row.start_ms, "bound"]);
  }
  if (row?.state === "Waiting" && row.start_ms) found.push([row.start_ms, `starts at the latest (${row.sure})`]);
  if (row?.end_ms && row.end_ms > nowMs()) found.push([row.end_ms, `ends (${row.end_sure || "expected"})`]);
  return found.filter(([at]) => at).sort(([a], [b]) => a - b);
}

export function Timeline({ row, runs }) {
  useTick();
  const own = row ? live(row) : [];
  const past = runs.flatMap((run) => run.steps ?? []).map(lane);
  const known = !own.length || isKnown(row, runs);
  const lanes = [...(past.length && known ? [] : own), ...past].slice(0, SHOWN);
  if (!lanes.length) return null;
  const now = nowMs();
  if (row && row.start_ms && row.end_ms > now) lanes.push({ name: "", outcome: "", parts: [["expected", Math.max(row.start_ms, now), row.end_ms]], note: row.end_sure, restarts: 0 });
  const from = Math.min(...lanes.map((one) => one.parts[0]?.[1] ?? now));
  const to = Math.max(now, ...lanes.map((one) => one.parts.at(-1)?.[2] ?? 0));
  const at = (ms) => `${(100 * (ms - from)) / Math.max(1, to - from)}%`;
  const words = (one) => one.parts.map(([kind, a, b]) => `${WORDS[kind]} ${span(b - a)}`).join(", ");
  return html`<section><h2>Timeline</h2>
    <ul class="legend" aria-label="What the parts of a bar mean">${Object.entries(WORDS).filter(([kind]) => lanes.some((one) => one.parts.some((part) => part[0] === kind)))
      .map(([kind, word]) => html`<li><span class=${`step step-${kind} key`} aria-hidden="true"></span> ${word}</li>`)}</ul>
    <div class="lanes">${lanes.map((one) => html`<div class="lane"><span class="lane-name">${one.name ? html`<${Name}>${one.name}<//>` : html`<small>expected</small>`}</span>
      <span class="track" role="img" aria-label=${words(one)} title=${`${words(one)}${one.note ? `; ${one.note}` : ""}`}>${one.parts.map(([kind, a, b]) => html`<span class=${`step step-${kind}`}
        style=${{ insetInlineStart: at(a), width: `max(2px, ${at(from + b - a)})` }}></span>`)}</span><span class="lane-end"><${State} name=${one.outcome} /></span></div>`)}</div>
    <p class="axis"><small>${moment(from)}</small><small>${moment(to)}</small></p>
    ${past.length > SHOWN && html`<p>The first ${SHOWN} of ${past.length} pods are shown; <code>dovetail history ${row?.job}</code> has all.</p>`}
    <ol class="steps">${steps(row, runs, known).map(([ms, word]) => html`<li><${Time} ms=${ms} /> <span>${word}</span></li>`)}</ol></section>`;
}
