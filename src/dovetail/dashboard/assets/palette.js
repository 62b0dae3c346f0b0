// The palette (Ctrl-K): go to any page, job or node by a part of its name. The keys of all pages (?).
import { html, useEffect, useLayoutEffect, useRef, useState } from "/assets/core.js";
import { read, readOnce, recorded } from "/assets/live.js";
import { namedPath } from "/assets/pages/jobs.js";
import { go, jobLink, link, nodeLink } from "/assets/route.js";
import { toggleTimes } from "/assets/times.js";

const SHOWN = 12;
const SETTLED_MS = 150;

async function nodes() {
  const fleet = await read("fleet");
  return (fleet?.document.page?.nodes ?? []).map((one) => ["node", one.node, nodeLink(one.node)]);
}

async function jobs(text) {
  // The word that stands before all of them is not in their names.
  const found = await readOnce(namedPath(text.toLowerCase().split(/\s+/).filter((word) => word && !"job".includes(word)).join(" "), SHOWN));
  return (found?.document.page?.jobs ?? []).map((one) => ["job", one.job, jobLink(one.job)]);
}

function matching(all, text) {
  const asked = text.toLowerCase().split(/\s+/).filter(Boolean);
  return all.filter(([kind, name]) => asked.every((word) => `${kind} ${name}`.toLowerCase().includes(word))).slice(0, SHOWN);
}

function Palette({ pages, close }) {
  const dialog = useRef();
  const [ofNodes, setNodes] = useState([]);
  const [ofJobs, setJobs] = useState([]);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  useLayoutEffect(() => dialog.current.showModal(), []);
  useEffect(() => {
    nodes().then(setNodes);
  }, []);
  useEffect(() => {
    let late = false;
    const timer = setTimeout(() => jobs(text).then((found) => late || setJobs(found)), text ? SETTLED_MS : 0);
    return () => {
      late = true;
      clearTimeout(timer);
    };
  }, [text]);
  const found = matching([...pages.map(([path, title]) => ["page", title, link(path)]), ...ofJobs, ...ofNodes], text);
  const chosen = Math.min(at, found.length - 1);
  const leave = (href) => {
    close();
    if (href) go(href);
  };
  const key = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt(Math.max(0, Math.min(found.length - 1, chosen + step)));
    } else if (event.key === "Enter" && found[chosen]) {
      event.preventDefault();
      leave(found[chosen][2]);
    }
  };
  return html`<dialog ref=${dialog} class="palette" aria-label="Go to" onClose=${() => close()} onClick=${(event) => event.target === dialog.current && close()}>
    <input type="text" role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${found[chosen] ? `found-${chosen}` : undefined}
      aria-label="Page, job or node" placeholder="Page, job or node" autofocus value=${text} onKeyDown=${key}
      onInput=${(event) => { setText(event.target.value); setAt(0); }} />
    <ul id="found" role="listbox" aria-label="Found">${found.map(([kind, name, href], index) => html`<li id=${`found-${index}`} role="option" aria-selected=${index === chosen}
      onClick=${() => leave(href)}><small>${kind}</small> <bdi>${name}</bdi></li>`)}</ul>
    ${!found.length && html`<p>Nothing is called so.</p>`}</dialog>`;
}

const KEYS = [["Ctrl-K", "go to a page, job or node"], ["/", "filter"], ["t", "times: relative or whole"], ["1 to 9", "the pages, in their order"],
  ["Arrow keys", "from node to node in the grid"], ...(recorded ? [["p", "play, pause"], [", and .", "the event before, the next one"]] : []), ["Esc", "close"], ["?", "these keys"]];

function Keys({ close }) {
  const dialog = useRef();
  useLayoutEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} class="palette" aria-label="Keys" onClose=${close}><h2>Keys</h2><dl class="facts">${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <button type="button" autofocus onClick=${close}>Close</button></dialog>`;
}

export function Keyboard({ pages }) {
  const [open, setOpen] = useState("");
  useEffect(() => {
    const key = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setOpen("palette");
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName) || document.querySelector("dialog[open]")) return;
      const page = pages[Number(event.key) - 1];
      if (page) go(link(page[0]));
      else if (event.key === "?") setOpen("keys");
      else if (event.key === "t") toggleTimes();
      else if (event.key === "/") {
        const filter = document.querySelector(".filter input");
        if (!filter) return;
        event.preventDefault();
        filter.focus();
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  const close = () => setOpen("");
  return html`<button type="button" class="quiet" onClick=${() => setOpen("palette")}>Go to <kbd>Ctrl-K</kbd></button>
    <button type="button" class="quiet" aria-label="Keys" onClick=${() => setOpen("keys")}>?</button>
    ${open === "palette" && html`<${Palette} pages=${pages} close=${close} />`}${open === "keys" && html`<${Keys} close=${close} />`}`;
}
