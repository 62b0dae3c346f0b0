# SPDX-License-Identifier: Apache-2.0
"""Writer of NCCL's topology XML for a node's layout. `nccl_xml` parses the same layout from it.

The XML expresses NUMA nodes, PCIe trees, NVLinks and NICs. It cannot express: two GPUs on one board (written as PIX),
several host bridges of one NUMA node (NODE becomes PHB), unknown levels, levels that do not form a tree below one CPU
per NUMA node, two groups of GPUs with separate switches, rates that NCCL does not use, and assumed layouts. `coarse`
converts the first three; `write` raises an error for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from msgspec.structs import replace

from dovetail.core.devices import products
from dovetail.core.devices.layout import BOARD, LEVELS, NODE, PHB, PIX, PXB, SYS, UNKNOWN, Layout, LayoutError
from dovetail.topology.nccl_xml import BUS_ID, LANE_UNITS, SWITCH_CLASS

_LANES = (16, 8, 4, 2, 1)
_MOST_DIRECT = 18
"""The most NVLinks of a GPU without switches."""
_INTEL, _AMD, _ZHAOXIN = "GenuineIntel", "AuthenticAMD", "  Shanghai  "
_CPUS = {
    6_000: (_INTEL, 6, 79),
    9_000: (_ZHAOXIN, 7, 91),
    10_000: (_INTEL, 6, 85),
    16_000: (_AMD, 23, 49),
    22_000: (_INTEL, 6, 143),
    24_000: (_AMD, 25, 17),
    32_000: (_AMD, 26, 2),
    40_000: (_INTEL, 6, 207),
}
"""A CPU (vendor, family, model) for each bandwidth between sockets (MB/s) that NCCL uses."""
_SM_OF = {mbps: sm for sm, mbps in reversed(products.NVLINK_MBPS.items())} | {products.nvlink_mbps(80): 80}

Levels = dict[tuple[int, int], int]
"""The level of each pair of devices. GPUs come before NICs."""
Tree = dict[int, list[list[list[int]]]]
"""For each NUMA node the groups of devices that share a tree, and within them those that share a bridge."""


def coarse(layout: Layout) -> Layout:
    """The layout with only the levels that NCCL distinguishes: BOARD becomes PIX and NODE becomes PHB. An unknown level
    follows from the other levels if both devices are near the same third one, else from the NUMA nodes."""
    numa = _numa(layout)
    same = {BOARD: PIX, NODE: PHB}
    known = {pair: same.get(level, level) for pair, level in _levels(layout).items()}
    implied = _implied(numa, known)
    known = {pair: implied[pair] if level == UNKNOWN else level for pair, level in known.items()}
    gpus = range(layout.gpus)
    return replace(
        layout,
        pcie=tuple(tuple(BOARD if i == j else known[min(i, j), max(i, j)] for j in gpus) for i in gpus),
        nics=tuple(
            replace(nic, levels=tuple(known[i, at] for i in gpus)) for at, nic in enumerate(layout.nics, layout.gpus)
        ),
    )


def write(
    layout: Layout,
    product: str | None = None,
    gpu_bus_ids: Sequence[str] = (),
    nic_bus_ids: Sequence[str] = (),
    nic_names: Sequence[str] = (),
) -> str:
    """The layout as XML. NCCL finds the GPUs of a node by their bus ids, and its NICs by the names of their devices
    (ncclTopoFillGpu and ncclTopoFillNet in src/graph/xml.cc). Without real ones the file is only useful to `nccl_xml`.

    `product` selects the compute capability where several have equal NVLinks. Raises LayoutError with the field of the
    layout for a value that the XML cannot express."""
    if layout.assumed or not layout.gpus:
        what = (
            "was assumed, and NCCL would take it for true" if layout.assumed else "has no GPU, and cannot be read back"
        )
        raise LayoutError("layout", what)
    found = products.named(product) if product else None
    slot = _slot(layout.pcie_mbps)
    gpu_ids = _bus_ids("gpu_bus_ids", gpu_bus_ids, layout.gpus, "0000")
    nic_ids = _bus_ids("nic_bus_ids", nic_bus_ids, len(layout.nics), "0001")
    names = nic_names or [f"net{i}" for i in range(len(layout.nics))]
    if len(names) != len(layout.nics):
        raise LayoutError("nic_names", f"names {len(names)} NICs of {len(layout.nics)}")
    devices = [Element("pci", {"busid": bus_id, "class": "0x030200"} | slot) for bus_id in gpu_ids]
    for i, (device, links) in enumerate(zip(devices, _links(layout, gpu_ids), strict=True)):
        gpu = SubElement(device, "gpu", {"dev": str(i), "sm": str(_sm(layout, found)), "rank": str(i), "gdr": "1"})
        gpu.extend(links)
    for i, (bus_id, nic) in enumerate(zip(nic_ids, layout.nics, strict=True)):
        device = Element("pci", {"busid": bus_id, "class": "0x020000"} | slot)
        speed = {"speed": str(nic.speed_mbps * 8)} if nic.speed_mbps else {}
        net = {"name": names[i], "dev": str(i)} | speed | {"port": "1", "gdr": str(int(nic.rdma))}
        SubElement(SubElement(device, "nic"), "net", net)
        devices.append(device)
    system = Element("system", {"version": "1"})
    bridges = (
        Element("pci", {"busid": f"ffff:{number >> 5:02x}:{number & 31:02x}.0", "class": "0x060400"} | slot)
        for number in range(1 << 13)
    )
    for numa, trees in sorted(_tree(layout).items()):
        cpu = SubElement(system, "cpu", {"numaid": str(numa)} | _cpu(layout, found))
        for groups in trees:
            inside = [[devices[at] for at in group] for group in groups]
            if len(groups) > 1:
                inside = [[_filled(next(bridges), [_filled(next(bridges), group) for group in inside])]]
            elif len(groups[0]) > 1:
                inside = [[_filled(next(bridges), inside[0])]]
            cpu.extend(inside[0])
    ElementTree.indent(system)
    return ElementTree.tostring(system, encoding="unicode") + "\n"


def _filled(bridge: Element, children: Iterable[Element]) -> Element:
    bridge.extend(children)
    return bridge


def _bus_ids(name: str, bus_ids: Sequence[str], count: int, domain: str) -> list[str]:
    ids = [bus_id.lower() for bus_id in bus_ids] or [f"{domain}:{i + 1:02x}:00.0" for i in range(count)]
    wrong = [bus_id for bus_id in ids if not BUS_ID.fullmatch(bus_id)]
    if wrong or len(set(ids)) != count or len(ids) != count:
        what = f"{wrong[0]!r} is not such as 0000:3b:00.0" if wrong else f"must be {count} different ones"
        raise LayoutError(name, what)
    return ids


def _slot(mbps: int) -> dict[str, str]:
    for lanes in _LANES:
        for speed, units in LANE_UNITS.items():
            if units * lanes * 100 // 8 == mbps:
                return {"link_speed": f"{speed:g} GT/s", "link_width": str(lanes)}
    raise LayoutError("pcie_mbps", f"{mbps} is no PCIe rate of 1 to 16 lanes as NCCL reckons, such as 12000 or 48000")


def _sm(layout: Layout, product: products.Product | None) -> int:
    sm = product.sm if product else _SM_OF.get(layout.nvlink_mbps)
    if sm is None or products.nvlink_mbps(sm) != layout.nvlink_mbps:
        whose = f"not what {product.model} has" if product else f"none of NCCL's: {', '.join(map(str, _SM_OF))}"
        raise LayoutError("nvlink_mbps", f"{layout.nvlink_mbps} is {whose}")
    return sm


def _cpu(layout: Layout, product: products.Product | None) -> dict[str, str]:
    if product and product.reach == products.TRAY and layout.socket_mbps == products.ARM_SOCKET_MBPS:
        return {"arch": "arm64"}
    if layout.socket_mbps not in _CPUS:
        raise LayoutError("socket_mbps", f"{layout.socket_mbps} is none of NCCL's: {', '.join(map(str, _CPUS))}")
    vendor, family, model = _CPUS[layout.socket_mbps]
    return {"arch": "x86_64", "vendor": vendor, "familyid": str(family), "modelid": str(model)}


def _links(layout: Layout, bus_ids: list[str]) -> list[list[Element]]:
    """The `<nvlink>` elements of each GPU: direct links if no GPU has more than `_MOST_DIRECT`, else through
    switches."""
    gpus = range(layout.gpus)
    if max(map(sum, layout.nvlinks)) <= _MOST_DIRECT:
        return [
            [_nvlink(bus_ids[j], count, "0x030200") for j, count in enumerate(row) if count] for row in layout.nvlinks
        ]
    most = [max(row) for row in layout.nvlinks]
    for i, j in combinations(gpus, 2):
        if layout.nvlinks[i][j] != min(most[i], most[j]):
            message = f"{layout.nvlinks[i][j]} links: too many in all without switches, and one switch joins more"
            raise LayoutError(f"nvlinks[{i}][{j}]", message)
    return [[_nvlink("ffff:ff:1f.0", count, SWITCH_CLASS)] if count else [] for count in most]


def _nvlink(target: str, count: int, target_class: str) -> Element:
    return Element("nvlink", {"target": target, "count": str(count), "tclass": target_class})


def _numa(layout: Layout) -> list[int]:
    return [*layout.numa, *(nic.numa for nic in layout.nics)]


def _levels(layout: Layout) -> Levels:
    known = {(i, j): layout.pcie[i][j] for i, j in combinations(range(layout.gpus), 2)}
    nics = enumerate(layout.nics, layout.gpus)
    return known | {(i, at): level for at, nic in nics for i, level in enumerate(nic.levels)}


def _implied(numa: list[int], known: Levels) -> Levels:
    """The level of each pair in the tree that these levels imply."""
    trees, groups = _trees(len(numa), known), _groups(len(numa), known)
    return {
        (i, j): SYS if numa[i] != numa[j] else PIX if groups[i] == groups[j] else PXB if trees[i] == trees[j] else PHB
        for i, j in known
    }


def _tree(layout: Layout) -> Tree:
    numa, known = _numa(layout), _levels(layout)
    for (i, j), implied in _implied(numa, known).items():
        if known[i, j] != implied:
            field = f"pcie[{i}][{j}]" if j < layout.gpus else f"nics[{j - layout.gpus}].levels[{i}]"
            name = "UNKNOWN" if known[i, j] == UNKNOWN else LEVELS[known[i, j]]
            raise LayoutError(field, f"is {name}; the other levels and the NUMA nodes imply {LEVELS[implied]}")
    trees, groups = _trees(len(numa), known), _groups(len(numa), known)
    tree: Tree = {}
    for root in sorted(set(trees)):
        inside = [at for at, own in enumerate(trees) if own == root]
        shared = [[at for at in inside if groups[at] == group] for group in sorted({groups[at] for at in inside})]
        tree.setdefault(numa[root], []).append(shared)
    return tree


def _trees(count: int, known: Levels) -> list[int]:
    return _joined(count, [pair for pair, level in known.items() if level in (PIX, PXB)])


def _groups(count: int, known: Levels) -> list[int]:
    return _joined(count, [pair for pair, level in known.items() if level == PIX])


def _joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """For each of `count` devices the lowest index of its connected component, where `pairs` are the edges."""
    first = list(range(count))
    for i, j in pairs:
        low, high = sorted((first[i], first[j]))
        first = [low if own == high else own for own in first]
    return first
