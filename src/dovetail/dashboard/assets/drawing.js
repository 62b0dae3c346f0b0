// A node as a drawing: its NUMA nodes with their GPUs and NICs, the NVLinks between GPUs, and which of them are held.
import { html } from "/assets/core.js";
import { CELLS } from "/assets/cells.js";

const [WIDE, GAP, HIGH, TOP] = [46, 10, 34, 62];
const RANK = ["BOARD", "PIX", "PXB", "PHB", "NODE", "SYS"];
const speed = (mbps) => `${Math.round(mbps / 100) / 10} GB/s`;

// The GPUs of each NUMA node, in order; null stands for the unknown one.
function domains(numa) {
  const found = new Map();
  numa.forEach((one, gpu) => found.set(one, [...(found.get(one) ?? []), gpu]));
  return [...found].sort(([a], [b]) => (a ?? 1e9) - (b ?? 1e9));
}

function pairs(links) {
  const found = [];
  links.forEach((row, a) => row.forEach((number, b) => b > a && number > 0 && found.push([a, b, number])));
  return found;
}

// The number of links where each GPU has as many to each other: they meet in switches.
function switched(links, found) {
  const all = (links.length * (links.length - 1)) / 2;
  return links.length > 2 && found.length === all && found.every(([, , number]) => number === found[0][2]) ? found[0][2] : 0;
}

// The GPUs that are closest to a NIC, and how close.
function nearest(nic) {
  const ranks = nic.levels.map((one) => (one === null ? RANK.length : RANK.indexOf(one)));
  const best = Math.min(...ranks);
  return [RANK[best], best < RANK.length ? ranks.flatMap((one, gpu) => (one === best ? [gpu] : [])) : []];
}

function described(topology, number, found) {
  const parts = [`${topology.numa.length} GPUs`, domains(topology.numa).map(([one, gpus]) => `NUMA node ${one ?? "not known"}: GPUs ${gpus.join(", ")}`).join("; ")];
  if (number) parts.push(`NVLink switches between all of them, ${speed(number * topology.nvlink_mbps)} each`);
  else if (found.length) parts.push(`NVLinks: ${found.map(([a, b, links]) => `${a} to ${b}, ${links}`).join("; ")}`);
  for (const [at, nic] of topology.nics.entries()) {
    const [level, gpus] = nearest(nic);
    parts.push(`NIC ${at}${nic.speed_mbps ? `, ${speed(nic.speed_mbps)}` : ""}${gpus.length ? `: ${level} to GPUs ${gpus.join(", ")}` : ""}`);
  }
  return parts.join(". ");
}

// `own` are the GPUs to stress, of a job; `cells` what holds each GPU.
export function NodeDrawing({ topology, cells, own = [] }) {
  const { numa, nvlinks, nics } = topology;
  const found = pairs(nvlinks);
  const number = switched(nvlinks, found);
  const places = new Map();
  const boxes = [];
  let x = GAP;
  for (const [one, gpus] of domains(numa)) {
    boxes.push([one, x, gpus.length * (WIDE + GAP) + GAP]);
    gpus.forEach((gpu, at) => places.set(gpu, x + GAP + at * (WIDE + GAP) + WIDE / 2));
    x += gpus.length * (WIDE + GAP) + 2 * GAP;
  }
  const width = x;
  const below = TOP + HIGH + 44;
  const wires = nics.map((nic, at) => {
    const [level, gpus] = nearest(nic);
    const middle = gpus.length ? gpus.reduce((sum, gpu) => sum + places.get(gpu), 0) / gpus.length : ((at + 0.5) * width) / nics.length;
    return { nic, at, level, gpus, middle };
  }).sort((a, b) => a.middle - b.middle || a.at - b.at);
  // NICs of one place stand beside one another.
  let left = 0;
  for (const one of wires) {
    one.middle = Math.max(one.middle, left + 24);
    left = one.middle + 24;
  }
  const broad = Math.max(width, left + GAP);
  const held = new Set(own);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Drawing of the wiring"><svg class="wiring" role="img" aria-label=${described(topology, number, found)} viewBox=${`0 0 ${broad} ${nics.length ? below + HIGH : TOP + HIGH + 34}`}
      style=${{ width: `${broad}px` }}>
    ${number > 0 && html`<rect class="bus" x=${GAP} y="14" width=${width - 2 * GAP} height="20" rx="4" /><text x=${width / 2} y="28" text-anchor="middle">NVLink switches: ${speed(number * topology.nvlink_mbps)} from each GPU to each</text>
      ${[...places.values()].map((at) => html`<line class="link" x1=${at} y1="34" x2=${at} y2=${TOP} />`)}`}
    ${!number && found.map(([a, b, links]) => {
      const [from, to] = [places.get(a), places.get(b)];
      const high = Math.min(TOP - 6, 14 + Math.abs(from - to) / 9);
      return html`<path class="link" d=${`M${from} ${TOP} C${from} ${TOP - high} ${to} ${TOP - high} ${to} ${TOP}`} style=${{ strokeWidth: Math.min(4, links / 2 + 0.5) }}><title>GPU ${a} to GPU ${b}: NV${links}, ${speed(links * topology.nvlink_mbps)}</title></path>`;
    })}
    ${boxes.map(([one, at, wide]) => html`<rect class="numa" x=${at} y=${TOP - 12} width=${wide} height=${HIGH + 38} rx="6" /><text class="dim" x=${at + wide / 2} y=${TOP + HIGH + 19} text-anchor="middle">NUMA ${one ?? "?"}</text>`)}
    ${[...places].map(([gpu, at]) => {
      const letter = cells[gpu] ?? ".";
      const [colour, word] = CELLS[letter];
      return html`<g class=${`gpu ${colour} ${held.has(gpu) ? "own" : ""}`}><title>GPU ${gpu}: ${held.has(gpu) ? "held by this job" : word}</title>
        <rect x=${at - WIDE / 2} y=${TOP} width=${WIDE} height=${HIGH} rx="4" /><text x=${at} y=${TOP + 15} text-anchor="middle">GPU ${gpu}</text><text x=${at} y=${TOP + 29} text-anchor="middle">${held.has(gpu) ? "own" : letter}</text></g>`;
    })}
    ${wires.map(({ nic, at, level, gpus, middle }) => html`<g class="nic">${gpus.map((gpu) => html`<line class="pcie" x1=${middle} y1=${below - 8} x2=${places.get(gpu)} y2=${TOP + HIGH} />`)}
      <rect x=${middle - 22} y=${below - 8} width="44" height=${HIGH} rx="4" /><text x=${middle} y=${below + 6} text-anchor="middle">NIC ${at}</text>
      <text class="dim" x=${middle} y=${below + 20} text-anchor="middle">${nic.speed_mbps ? `${Math.round(nic.speed_mbps / 125)} Gb` : level ?? ""}</text>
      <title>NIC ${at}${nic.speed_mbps ? `, ${speed(nic.speed_mbps)}` : ""}${gpus.length ? `, ${level} to GPUs ${gpus.join(", ")}` : ""}${nic.rdma ? ", RDMA" : ""}</title></g>`)}
  </svg></div>`;
}
