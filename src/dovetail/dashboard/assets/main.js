// The pages: which one is shown at which path, what is around it, and what is shown where there is no data.
import { html, render, useEffect, useState } from "/assets/core.js";
import { hasToken, live, recorded, useLive, useSheet, useToken } from "/assets/live.js";
import { Cost, costPath } from "/assets/pages/cost.js";
import { Decision } from "/assets/pages/decision.js";
import { Fleet } from "/assets/pages/fleet.js";
import { Job } from "/assets/pages/job.js";
import { Jobs, jobsPath } from "/assets/pages/jobs.js";
import { Leases } from "/assets/pages/leases.js";
import { Node } from "/assets/pages/node.js";
import { Queue } from "/assets/pages/queue.js";
import { Scheduler } from "/assets/pages/scheduler.js";
import { Teams } from "/assets/pages/teams.js";
import { Waste } from "/assets/pages/waste.js";
import { WhatIf } from "/assets/pages/whatif.js";
import { Keyboard } from "/assets/palette.js";
import { go, link, parameter, useRoute } from "/assets/route.js";
import { Time, toggleTimes } from "/assets/times.js";

const OF_A_STATE = [["/", "Fleet"], ["/queue", "Queue"], ["/jobs", "Jobs"], ["/teams", "Teams"], ["/leases", "Leases"]];
const PAGES = recorded ? OF_A_STATE : [...OF_A_STATE, ["/waste", "Waste"], ["/cost", "Cost"], ["/whatif", "What-if"], ["/scheduler", "Scheduler"]];
// Only a recorded day has a time bar.
const [{ TimeBar, useDay }, { FilmGrid }] = recorded ? await Promise.all([import("/assets/replay.js"), import("/assets/filmgrid.js")]) : [{}, {}];
const SHOWN = { fleet: Fleet, queue: Queue, jobs: Jobs, teams: Teams, leases: Leases, job: Job, node: Node, waste: Waste, cost: Cost,
  whatif: WhatIf, scheduler: Scheduler, decision: Decision };
// The pages whose data have another name than they. What-if asks; what it offers for a choice is in the queues.
const DATA = { "/jobs": jobsPath, "/cost": costPath, "/waste": () => "idle", "/whatif": () => "teams" };
const PAST = new Set(["/cost", "/waste"]);
// The pages of which the rows that are shown are asked for, once nobody types for a moment.
const WINDOWS = new Set(["jobs"]);
const SETTLED_MS = 150;
const TITLES = { 403: "You may not see this.", 404: "It is not there." };
// Pages about one thing, which may not exist.
const OF_ONE = new Set(["job", "node", "decision"]);
// These are read again and again: no stream tells of them.
const POLLED = { scheduler: 5000, decision: 0 };

// The page of a path, its title and its data; null where there is none.
function placeOf(path) {
  const steps = path.split("/").slice(1);
  let names;
  try {
    names = steps.map(decodeURIComponent);
  } catch {
    return null;
  }
  const listed = PAGES.find(([one]) => one === path);
  if (listed) return { page: path.slice(1) || "fleet", title: listed[1], data: DATA[path]?.() ?? (path.slice(1) || "fleet"), past: PAST.has(path) };
  if (names[0] === "job" && names.length === 3) return { page: "job", title: names.slice(1).join("/"), data: [...names, parameter("kind")].filter(Boolean).join("/") };
  if (names[0] === "decision" && names.length === 2) return { page: "decision", title: `Decision ${names[1]}`, data: names.join("/") };
  if (names[0] === "node" && names.length === 2) return { page: "node", title: names[1], data: names.join("/") };
  return null;
}

function Status({ data, polled }) {
  useLive();
  if (recorded) return html`<span class="status ok" role="status"><span aria-hidden="true">●</span> as recorded</span>`;
  if (polled !== undefined && !live.silent[data]) return html`<span class="status ok" role="status"><span aria-hidden="true">●</span> ${polled ? `read every ${polled / 1000} s` : "as recorded"}</span>`;
  if (live.state === "live" && !live.silent[data]) return html`<span class="status ok" role="status"><span aria-hidden="true">●</span> live</span>`;
  if (live.state === "connecting") return html`<span class="status" role="status">connecting</span>`;
  return html`<span class="status wait" role="status"><span aria-hidden="true">▲</span> not up to date</span>`;
}

function Old({ data, polled }) {
  useLive();
  const silence = live.silent[data];
  if (recorded && !silence) return null;
  if (live.state === "lost" && polled === undefined) {
    return html`<p class="old" role="alert">The connection to the dashboard is lost since <${Time} ms=${live.sinceMs + live.offsetMs} />. What is shown is as old as that; it is tried again.</p>`;
  }
  if (silence && polled !== undefined) {
    return html`<p class="old" role="alert">This page is not answered since <${Time} ms=${silence.since_ms} />: ${silence.why}. What is shown is as old as that.</p>`;
  }
  if (silence) {
    return html`<p class="old" role="alert">${live.source} does not answer this page since <${Time} ms=${silence.since_ms} />: ${silence.why}. What is shown is as old as that.</p>`;
  }
  return null;
}

function Access() {
  const [token, setToken] = useState("");
  const [namespace, setNamespace] = useState(parameter("namespace"));
  const enter = (event) => {
    event.preventDefault();
    if (namespace !== parameter("namespace")) go(`${location.pathname}${namespace ? `?namespace=${encodeURIComponent(namespace)}` : ""}`);
    useToken(token.trim());
  };
  return html`<form class="access" onSubmit=${enter}><h2>${live.status === 403 ? "You may not see this" : "A token is needed"}</h2><p>${live.refused}</p>
    <p>With rights in one namespace, name it. <code>kubectl create token NAME</code> makes a token of a service account; it stays in this tab alone.</p>
    <label>Token <input type="password" autocomplete="off" value=${token} onInput=${(event) => setToken(event.target.value)} /></label>
    <label>Namespace <input type="text" autocomplete="off" placeholder="all" value=${namespace} onInput=${(event) => setNamespace(event.target.value)} /></label>
    <button type="submit">Show</button></form>`;
}

// The value once it has not changed for a moment; the first one at once.
function useSettled(value) {
  const [settled, settle] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => settle(value), SETTLED_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

function Page({ place }) {
  const inWindow = WINDOWS.has(place.page);
  const settled = useSettled(place.data);
  const sheet = useSheet(inWindow ? settled : place.data, POLLED[place.page], inWindow);
  if (live.refused) return html`<${Access} />`;
  const Shown = SHOWN[place.page];
  if (recorded && place.page === "fleet" && parameter("view") !== "table") return html`<${Fleet} page=${sheet?.document.page} grid=${html`<${FilmGrid} />`} />`;
  if (place.past) return html`<${Shown} page=${sheet?.document.page} error=${sheet?.document.error} />`;
  if (!sheet) return html`<p class="loading">Loading</p>`;
  const { page, error } = sheet.document;
  if (!page) {
    return html`<div class="empty"><p><strong>${(sheet.status !== 404 || OF_ONE.has(place.page)) && TITLES[sheet.status] || "There is no answer yet."}</strong></p><p>${error}</p>
      ${sheet.status === 404 && OF_ONE.has(place.page) && html`<p><a href=${link("/jobs")}>All jobs</a>, <a href=${link("/")}>all nodes</a></p>`}</div>`;
  }
  return html`<${Shown} page=${page} />`;
}

// A page of a recorded day, below its time bar.
function Recorded({ children }) {
  const day = useDay();
  return html`<${TimeBar} />${day?.startMs && day.parts.length && live.restsMs ? children : null}`;
}

function App() {
  const path = useRoute();
  useLive();
  const place = placeOf(path);
  const title = place?.title ?? "No such page";
  useEffect(() => {
    document.title = `${title} – Dovetail`;
  }, [title]);
  const namespace = parameter("namespace");
  const content = place ? html`<${Page} place=${place} key=${`${namespace}|${place.past || WINDOWS.has(place.page) ? place.page : `${place.page} ${place.data}`}`} />` : html`<div class="empty"><p>There is no page at this address. <a href=${link("/")}>Fleet</a></p></div>`;
  return html`<a class="skip" href="#main">To the content</a>
    <header><a class="home" href=${link("/")}>Dovetail</a>
      <nav aria-label="Pages">${PAGES.map(([one, name]) => html`<a href=${link(one)} aria-current=${one === path ? "page" : undefined}>${name}</a>`)}</nav>
      <span class="tools">${namespace && html`<span class="tag">namespace ${namespace}</span>`}
        ${hasToken() && html`<button type="button" class="quiet" onClick=${() => useToken("")}>Forget token</button>`}
        <button type="button" class="quiet" onClick=${toggleTimes}>Times</button><${Keyboard} pages=${PAGES} /><${Status} data=${place?.data} polled=${POLLED[place?.page]} /></span></header>
    <main id="main" tabindex="-1"><h1><bdi>${title}</bdi></h1><${Old} data=${place?.data} polled=${POLLED[place?.page]} />
      ${recorded ? html`<${Recorded}>${content}<//>` : content}</main>
    <footer>${live.source && html`<bdi>${live.source}</bdi>`}</footer>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
