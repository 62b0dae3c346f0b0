// Where we are: the path and the query of the address, which is all of a page's state, so that each view has a link.
import { useEffect, useState } from "/assets/core.js";

const listeners = new Set();
const moved = () => listeners.forEach((one) => one());
addEventListener("popstate", moved);

export const parameter = (name) => new URLSearchParams(location.search).get(name) ?? "";

// The link to a path. The namespace that is shown stays, and the time of a recording.
export function link(path, query = {}) {
  const found = new URLSearchParams(query);
  for (const kept of ["namespace", "at"]) if (parameter(kept)) found.set(kept, parameter(kept));
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

// Jobs of several kinds can have one name.
export const jobLink = (name, kind) => link(`/job/${name.split("/").map(encodeURIComponent).join("/")}`, kind ? { kind } : {});
export const nodeLink = (name) => link(`/node/${encodeURIComponent(name)}`);

export function go(href) {
  history.pushState(null, "", href);
  scrollTo(0, 0);
  moved();
  document.querySelector("main")?.focus();
}

// A value of the query; "" removes it. It replaces the address: back leads to the page before.
export function setParameter(name, value) {
  const found = new URLSearchParams(location.search);
  if (value) found.set(name, value);
  else found.delete(name);
  const text = found.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  moved();
}

export function useRoute() {
  const [, again] = useState(0);
  useEffect(() => {
    const hear = () => again((one) => one + 1);
    listeners.add(hear);
    return () => listeners.delete(hear);
  }, []);
  return location.pathname;
}

// Links inside the page change the address without a new document.
addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!anchor || !plain || event.defaultPrevented || anchor.target || anchor.hasAttribute("download")) return;
  if (anchor.origin !== location.origin || /^\/(api|assets)\//.test(anchor.pathname)) return;
  if (anchor.pathname === location.pathname && anchor.search === location.search && anchor.hash) return;
  event.preventDefault();
  go(anchor.href);
});
