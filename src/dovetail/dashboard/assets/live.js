// The data of the pages that are open, and one stream that reports which of them have changed.
//
// The stream is read by fetch, and not by EventSource, so that it can have a token; it comes back by itself, with the id
// of the last event. The time that is shown is that of the server, whatever the clock of the browser is.
//
// Of a recorded day the pages are those of the time at which the time bar rests, and no stream is needed.
import { useEffect, useRef, useState } from "/assets/core.js";
import { parameter } from "/assets/route.js";

const SILENT_MS = 15000;
const TOKEN = "dovetail-token";
const KEY = "dovetail-key";
const sheets = new Map();
const wanted = new Map();
const listeners = new Set();
let stream = null;
let lastId = "";
let streamed = "";
// Counts those that have looked: what one may see the next may not.
let viewer = 0;

export const live = {
  state: "connecting", sinceMs: Date.now(), source: "", silent: {}, offsetMs: 0, refused: "", status: 0, atMs: 0, restsMs: 0,
};
export const recorded = document.documentElement.hasAttribute("data-replay");
export const nowMs = () => (recorded ? live.atMs : Date.now() + live.offsetMs);
const RECORDED = new Set(["fleet", "queue", "jobs", "teams", "leases", "job", "node"]);
const MOST_RECORDED = 32;
// HTTP statuses after which the request is sent again soon.
const AWAY = new Set([429, 503]);
const NO_HISTORY = { document: { page: null, error: "A recording has no history." }, status: 404, tag: null };
const heard = () => listeners.forEach((one) => one());

function set(state) {
  if (live.state !== state) Object.assign(live, { state, sinceMs: Date.now() });
}

// The key for actions is a part of the address that the command prints. It stays in this tab, and not in the address.
const given = /^#key=([\w-]+)$/.exec(location.hash);
if (given) {
  sessionStorage.setItem(KEY, given[1]);
  history.replaceState(null, "", location.pathname + location.search);
}

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

const ofAction = () => ({ ...headers(), ...(sessionStorage.getItem(KEY) ? { "X-Dovetail-Key": sessionStorage.getItem(KEY) } : {}) });

// The actions that the viewer has the rights for; `query` is what they are about.
export async function possible(query) {
  // A recorded day is over.
  if (recorded) return [];
  const asked = new URLSearchParams({ ...query, ...(parameter("namespace") ? { namespace: parameter("namespace") } : {}) });
  try {
    const reply = await fetch(`/api/actions.json?${asked}`, { headers: ofAction(), cache: "no-store" });
    return reply.ok ? (await reply.json()).page.actions : [];
  } catch {
    return [];
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN));

export function useToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
  live.refused = "";
  viewer += 1;
  sheets.clear();
  restart();
}

export function dataLink(path, form) {
  const encoded = path.split("/").map(encodeURIComponent).join("/");
  if (recorded) return `/api/${encoded}.${form}?at=${live.restsMs}`;
  const namespace = parameter("namespace");
  return `/api/${encoded}.${form}${namespace ? `?namespace=${encodeURIComponent(namespace)}` : ""}`;
}

const keyOf = (path) => (recorded ? `${live.restsMs}|${path}` : `${parameter("namespace")}|${path}`);

// Of a page of which no stream tells: since when it is not answered, and why; "" for one that is.
function silence(path, why) {
  const { [path]: known, ...others } = live.silent;
  if (!why && !known) return;
  live.silent = why ? { ...others, [path]: { why, since_ms: known?.since_ms ?? nowMs() } } : others;
  heard();
}

// The page as it is now; null where it cannot be had.
export async function read(path) {
  const key = keyOf(path);
  const before = sheets.get(key);
  if (recorded && before) return before;
  if (recorded && sheets.size >= MOST_RECORDED) sheets.delete(sheets.keys().next().value);
  const asked = { ...headers(), ...(before?.tag ? { "If-None-Match": before.tag } : {}) };
  let reply;
  try {
    // A stream tells of the page again once what takes long is in it.
    const href = dataLink(path, "json");
    const soon = !before && wanted.has(path) ? `${href.includes("?") ? "&" : "?"}soon` : "";
    reply = await fetch(href + soon, { headers: asked, cache: "no-store" });
  } catch {
    if (!wanted.has(path)) silence(path, "the connection to the dashboard is lost");
    return before ?? null;
  }
  if (!wanted.has(path)) silence(path, "");
  if (reply.status === 304) return before;
  const document = await reply.json().catch(() => ({ page: null, error: `the server answers ${reply.status}` }));
  if (reply.status === 401) {
    Object.assign(live, { refused: document.error, status: reply.status });
  } else if (reply.status === 403) {
    // Of this page: the stream is refused where the user may see nothing at all.
    sheets.set(key, { document, status: reply.status, tag: null });
  } else if (reply.status === 503 && before?.document.page) {
    if (!wanted.has(path)) silence(path, document.error);
    return before;
  } else {
    live.refused = "";
    sheets.set(key, { document, status: reply.status, tag: reply.ok ? reply.headers.get("ETag") : null });
  }
  heard();
  return sheets.get(key) ?? null;
}

// The answer to a question with a body: {page, error}.
export async function ask(path, question) {
  try {
    const reply = await fetch(dataLink(path, "json"), {
      method: "POST", headers: { ...ofAction(), "Content-Type": "application/json" }, body: JSON.stringify(question), cache: "no-store",
    });
    return await reply.json();
  } catch {
    return { page: null, error: "The dashboard does not answer." };
  }
}

function hear(event) {
  if (event.id) lastId = event.id;
  if (event.name === "refused") {
    Object.assign(live, { refused: event.data, status: 401 });
    heard();
    return;
  }
  if (event.name !== "news") return;
  const news = JSON.parse(event.data);
  live.offsetMs = news.nowMs - Date.now();
  Object.assign(live, { source: news.source, silent: news.silent });
  set("live");
  for (const path of Object.keys(news.changed)) read(path);
  heard();
}

function parsed(block) {
  const event = { name: "message", data: "", id: "" };
  for (const line of block.split(/\r?\n/)) {
    const at = line.indexOf(":");
    if (at < 1) continue;
    const value = line.slice(at + 1).replace(/^ /, "");
    const field = line.slice(0, at);
    if (field === "data") event.data += value;
    else if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
  }
  return event;
}

async function follow(paths, signal) {
  const query = new URLSearchParams(paths.map((path) => ["on", path]));
  if (parameter("namespace")) query.set("namespace", parameter("namespace"));
  let silent;
  const limit = new AbortController();
  const wake = () => {
    clearTimeout(silent);
    silent = setTimeout(() => limit.abort(), SILENT_MS);
  };
  signal.addEventListener("abort", () => limit.abort());
  wake();
  try {
    const sent = { ...headers(), ...(lastId ? { "Last-Event-ID": lastId } : {}) };
    const reply = await fetch(`/api/stream?${query}`, { headers: sent, signal: limit.signal, cache: "no-store" });
    if (!reply.ok) {
      if (reply.status === 401 || reply.status === 403) {
        Object.assign(live, { refused: (await reply.json()).error, status: reply.status });
        heard();
      }
      return false;
    }
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return true;
      wake();
      const blocks = (text + value).split(/\r?\n\r?\n/);
      text = blocks.pop();
      for (const block of blocks) hear(parsed(block));
    }
  } finally {
    clearTimeout(silent);
  }
}

async function run(paths, signal) {
  let waitMs = 500;
  while (!signal.aborted) {
    try {
      if (await follow(paths, signal)) waitMs = 500;
    } catch {
      // The connection is lost, or this stream has ended: the next one begins below.
    }
    if (signal.aborted) return;
    set("lost");
    heard();
    await new Promise((resolve) => setTimeout(resolve, waitMs * (0.75 + Math.random() / 2)));
    waitMs = Math.min(10000, waitMs * 2);
  }
}

function restart() {
  stream?.abort();
  stream = new AbortController();
  lastId = "";
  const paths = [...wanted.keys()];
  streamed = paths.map(keyOf).join(" ");
  if (paths.length) run(paths, stream.signal);
}

function renew() {
  if ([...wanted.keys()].map(keyOf).join(" ") !== streamed) restart();
}

// Draw again when something was heard.
export function useLive() {
  const [, again] = useState(0);
  useEffect(() => {
    const draw = () => again((one) => one + 1);
    listeners.add(draw);
    return () => listeners.delete(draw);
  }, []);
  return live;
}

// A page that is read once, and not kept.
export async function readOnce(path) {
  const found = await read(path);
  if (!wanted.has(path) && !recorded) sheets.delete(keyOf(path));
  return found;
}

// The page at a path, kept up to date while it is shown: {document, status}, null until it is there. With `everyMs` no
// stream tells of it: it is read so often, or with 0 once. Of a window (`inWindow`) the one
// before stays until it is there.
export function useSheet(path, everyMs, inWindow = false) {
  useLive();
  const key = keyOf(path);
  const shown = useRef(null);
  const has = !recorded || RECORDED.has(path.split("/")[0]);
  useEffect(() => {
    if (recorded) {
      if (has) read(path);
      return undefined;
    }
    if (everyMs !== undefined) {
      read(path);
      const timer = everyMs && setInterval(() => read(path), everyMs);
      return () => clearInterval(timer);
    }
    wanted.set(path, (wanted.get(path) ?? 0) + 1);
    renew();
    read(path);
    return () => {
      const count = wanted.get(path) - 1;
      if (count) wanted.set(path, count);
      else wanted.delete(path);
      if (inWindow && !count) sheets.delete(key);
      setTimeout(renew);
    };
  }, [key]);
  if (!has) return NO_HISTORY;
  const found = sheets.get(key);
  if (!recorded && !inWindow) return found ?? null;
  // Until the page of another time is there, the one before stays. So it does while a window is not answered: without rows
  // the filter would lose its focus. The stream tells why the rows are old.
  const unanswered = !recorded && AWAY.has(found?.status) && shown.current?.viewer === viewer && shown.current.found.document.page;
  if (found && !unanswered) shown.current = { found, viewer };
  return shown.current?.viewer === viewer ? shown.current.found : null;
}

// A file of a page; by fetch where a token has to go with it.
export async function download(event, path, form) {
  if (!hasToken()) return;
  event.preventDefault();
  const reply = await fetch(dataLink(path, form), { headers: headers() });
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(await reply.blob());
  anchor.download = `${path.replaceAll("/", "-")}.${form}`;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}
