# SPDX-License-Identifier: Apache-2.0
"""Parser of NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) into a node's layout.

Rules, as in NCCL (src/graph/topo.cc, topo.h, xml.cc, June 2026):

- `<cpu numaid>` is a NUMA node. Two devices directly below one bridge are PIX, deeper in its tree PXB, in one NUMA node
  PHB, else SYS. A NIC directly below a `<cpu>` is virtual, and PHB.
- A `<pci>` with a `<gpu>` or of class 0x03 is a GPU. One with a `<nic>` or of class 0x02 is a NIC, or one NIC per
  `<net>`. net="0" marks a NIC that is merged into another; it does not count.
- GPUs are numbered by `<gpu dev>`, NICs by `<net dev>`. If one has no number, all are numbered by bus id.
- `<nvlink>` counts links to another GPU. Links to NVSwitches are summed per GPU, and two GPUs have the lesser of their
  sums between them. Links to the GPU itself or to a device outside the file are not counted, and a note reports them.
- The rate of an NVLink follows from `<gpu sm>`, that of a slot from link_speed and link_width of the slowest GPU, that
  between NUMA nodes from the CPU model.
- A file without `<gpu>` has no information about NVLinks (NCCL then queries the driver). They come from the product,
  and the layout is marked as assumed.
- A NIC supports RDMA if `gdr` is 1; without `gdr`, if its class is InfiniBand, its vendor is NVIDIA or it is an EFA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from xml.parsers import expat

from msgspec import Struct, field

from dovetail.core.devices import products
from dovetail.core.devices.layout import BOARD, MAX_NUMA, PHB, PIX, PXB, SYS, UNKNOWN, Layout, LayoutError, Matrix, Nic
from dovetail.topology.reading import Reading

LANE_UNITS = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
"""GT/s to 100 Mbit/s per lane."""
_UNKNOWN_SPEEDS = ("", "Unknown", "Unknown speed")
BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])")
SWITCH_CLASS = "0x068000"
_GPU_CLASS, _NIC_CLASS, _INFINIBAND_CLASS, _CPU_CLASS = "0x03", "0x02", "0x0207", "0x068001"
_KNOWN_TAGS = {"system", "cpu", "pci", "gpu", "nvlink", "nic", "net", "c2c", "gin", "rma", "pcilink"}
"""A layout does not use the last four: GPU to CPU links, one-sided transfers of the same NICs, joined switches."""
_DEEPEST = 32
_DEFAULT = Layout((), (), ())


class _Element(Struct):
    tag: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def all(self, tag: str) -> list[_Element]:
        return [child for child in self.children if child.tag == tag]

    def get(self, name: str) -> str:
        return self.attributes.get(name, "")

    def number(self, name: str, least: int, most: int) -> int:
        """The attribute as an integer. Raises LayoutError if it is missing, not a whole number or out of range."""
        text = self.get(name)
        where = f"line {self.line}, <{self.tag} {name}>"
        if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
            raise LayoutError(where, f"{text!r} is not a whole number" if text else "is missing")
        if not least <= int(text) <= most:
            raise LayoutError(where, f"{text} is not from {least} to {most}")
        return int(text)


class _Device(Struct, frozen=True):
    """A GPU or NIC. `bridges` is the path from the NUMA node down, as id() of each bridge. `bus_id` is empty for a
    device directly below a `<cpu>`. `number` is None if the file has none. `inside` is the `<gpu>` or the `<net>`."""

    numa: int
    bridges: tuple[int, ...]
    bus_id: str
    number: int | None
    pci: _Element
    inside: _Element | None

    @property
    def place(self) -> tuple[bool, tuple[int, ...]]:
        found = BUS_ID.fullmatch(self.bus_id)
        return found is None, tuple(int(part, 16) for part in found.groups()) if found else ()


def parse(text: str, product: str | None = None) -> Layout:
    """The layout. `product` supplies NVLinks and rates that the file lacks.

    Raises LayoutError with the line if the text is no such file, names no GPU or contradicts itself."""
    return read(text, product).layout


def read(text: str, product: str | None = None) -> Reading:
    """Like `parse`, with notes about missing values."""
    system = _tree(text)
    devices = list(_devices(system))
    gpus = _in_order([device for device in devices if _is_gpu(device.pci)])
    nics = _in_order([device for device in devices if not _is_gpu(device.pci)])
    if not gpus:
        raise LayoutError("system", _no_gpu(system))
    notes = [f"<{tag}> is not known and not read" for tag in sorted({each.tag for each in _all(system)} - _KNOWN_TAGS)]
    found = products.named(product) if product else None
    nvlinks, wired = _nvlinks(gpus, found, notes)
    sms = {gpu.inside.number("sm", 10, 999) for gpu in gpus if gpu.inside and "sm" in gpu.inside.attributes}
    rates = products.rates(product, max(map(max, nvlinks)))
    slots = {mbps for gpu in gpus if (mbps := _slot_mbps(gpu.pci))}
    sockets = {mbps for cpu in system.all("cpu") if (mbps := _inter_cpu_mbps(cpu))}
    if len(slots) > 1:
        notes.append(f"slots differ, from {min(slots)} to {max(slots)} MB/s: the slowest counts for all")
    assumed = [rate for rate in rates.assumed if not (sms if rate.startswith("NVLink") else slots)]
    if len(system.all("cpu")) > 1 and not sockets:
        assumed.append(f"{_DEFAULT.socket_mbps} MB/s between NUMA nodes")
    if assumed:
        notes.append(f"not in the file, so assumed: {', '.join(assumed)}")
    layout = Layout(
        numa=tuple(gpu.numa for gpu in gpus),
        pcie=tuple(tuple(BOARD if a is b else _level(a, b) for b in gpus) for a in gpus),
        nvlinks=nvlinks,
        nics=tuple(
            Nic(tuple(_level(nic, gpu) for gpu in gpus), nic.numa, _speed_mbps(nic), _speaks_rdma(nic)) for nic in nics
        ),
        nvlink_mbps=min(map(products.nvlink_mbps, sms), default=rates.nvlink_mbps),
        pcie_mbps=min(slots, default=rates.pcie_mbps),
        socket_mbps=min(sockets, default=_DEFAULT.socket_mbps),
        assumed=wired,
    )
    return Reading(layout, tuple(notes))


def _tree(text: str) -> _Element:
    parser = expat.ParserCreate()
    top = _Element("", {}, 0)
    stack = [top]

    def begins(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise LayoutError(f"line {parser.CurrentLineNumber}", f"is nested more than {_DEEPEST} deep: no such node")
        element = _Element(tag, attributes, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def declares(*_: object) -> None:
        # Entity expansion is unbounded, and the format does not use entities.
        raise LayoutError(f"line {parser.CurrentLineNumber}", "declares a document type, which is not read: remove it")

    parser.StartElementHandler = begins
    parser.EndElementHandler = lambda _: stack.pop()
    parser.StartDoctypeDeclHandler = declares
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise LayoutError(f"line {error.lineno}", f"is not XML: {expat.ErrorString(error.code)}") from error
    system = top.children[0]
    if system.tag != "system" or system.get("version") not in ("1", ""):
        name = f"<{system.tag} version={system.get('version')!r}>"
        raise LayoutError(f"line {system.line}", f"{name} is not <system version='1'>, as NCCL's topology files begin")
    if len({cpu.get("host_hash") for cpu in system.all("cpu")}) > 1:
        raise LayoutError("system", "has the CPUs of several hosts (host_hash): keep those of one")
    return system


def _all(element: _Element) -> Iterator[_Element]:
    yield element
    for child in element.children:
        yield from _all(child)


def _devices(system: _Element) -> Iterator[_Device]:
    seen: dict[int, int] = {}
    for cpu in system.all("cpu"):
        numa = cpu.number("numaid", UNKNOWN, MAX_NUMA - 1)
        if numa in seen:
            raise LayoutError(f"line {cpu.line}, <cpu numaid>", f"{numa} is that of line {seen[numa]} too")
        seen[numa] = cpu.line
        for nic in cpu.all("nic"):
            yield from (_Device(numa, (), "", _number(net), nic, net) for net in nic.all("net") if _counts(net))
        yield from _below(cpu, numa, ())


def _below(parent: _Element, numa: int, bridges: tuple[int, ...]) -> Iterator[_Device]:
    for pci in parent.all("pci"):
        bus_id = pci.get("busid").lower()
        if not BUS_ID.fullmatch(bus_id):
            raise LayoutError(f"line {pci.line}, <pci busid>", f"{bus_id!r} is not such as 0000:3b:00.0")
        if _is_gpu(pci):
            gpus = pci.all("gpu")
            if len(gpus) > 1:
                raise LayoutError(f"line {pci.line}", "one PCI device with several <gpu> (MLOPart) is not read")
            gpu = gpus[0] if gpus else None
            yield _Device(numa, bridges, bus_id, _number(gpu), pci, gpu)
        elif pci.all("nic") or pci.get("class").startswith(_NIC_CLASS):
            nets = [net for nic in pci.all("nic") for net in nic.all("net")]
            yield from (_Device(numa, bridges, bus_id, _number(net), pci, net) for net in nets if _counts(net))
            if not nets:
                yield _Device(numa, bridges, bus_id, None, pci, None)
        else:
            yield from _below(pci, numa, (*bridges, id(pci)))


def _is_gpu(pci: _Element) -> bool:
    return bool(pci.all("gpu")) or pci.get("class").startswith(_GPU_CLASS)


def _counts(net: _Element) -> bool:
    return net.get("net") != "0"


def _number(inside: _Element | None) -> int | None:
    return None if inside is None or "dev" not in inside.attributes else inside.number("dev", 0, 1 << 20)


def _in_order(devices: list[_Device]) -> list[_Device]:
    """The devices sorted by number or bus id. Raises LayoutError if two GPUs, or two NICs, share a number or bus id."""
    numbered = all(device.number is not None for device in devices)
    for a, b in combinations(devices, 2):
        same = a.number if numbered and a.number == b.number else ""
        if a.pci is not b.pci and a.bus_id == b.bus_id:
            same = a.bus_id
        if same != "":
            raise LayoutError(f"line {b.pci.line}", f"{same} is that of line {a.pci.line} too")
    return sorted(devices, key=lambda device: ((device.number or 0) if numbered else 0, device.place))


def _no_gpu(system: _Element) -> str:
    plain = sum(1 for each in _all(system) if each.tag == "pci" and not each.children and not each.get("class"))
    if plain:
        return f"names no GPU: {plain} <pci> have neither a class nor a <gpu>; give those of GPUs class='0x030200'"
    return "names no GPU: no <pci> has a <gpu> or a class that begins with 0x03"


def _level(a: _Device, b: _Device) -> int:
    if a.numa != b.numa:
        return SYS
    common = 0
    while common < min(len(a.bridges), len(b.bridges)) and a.bridges[common] == b.bridges[common]:
        common += 1
    if not common:
        return PHB
    return PIX if len(a.bridges) == len(b.bridges) == common else PXB


def _nvlinks(gpus: list[_Device], product: products.Product | None, notes: list[str]) -> tuple[Matrix, bool]:
    none: Matrix = ((0,) * len(gpus),) * len(gpus)
    if all(gpu.inside is None for gpu in gpus):
        wired = products.wiring(product, len(gpus)) if product else None
        if product is None or wired is None:
            why = "no product is named" if product is None else f"{product.model} is wired in several ways"
            notes.append(f"the file does not speak of NVLinks, and {why}: none are assumed")
        else:
            notes.append(f"the file does not speak of NVLinks: what {product.model} has is assumed")
        return wired or none, bool(wired)
    index = {gpu.bus_id: i for i, gpu in enumerate(gpus)}
    direct = [[0] * len(gpus) for _ in gpus]
    to_switches = [0] * len(gpus)
    lost: dict[str, list[str]] = {}
    for i, gpu in enumerate(gpus):
        for link in gpu.inside.all("nvlink") if gpu.inside else ():
            target, kind, count = link.get("target").lower(), link.get("tclass"), link.number("count", 0, 36)
            if kind == SWITCH_CLASS:
                to_switches[i] += count
            elif not kind.startswith(_GPU_CLASS) and kind != _CPU_CLASS:
                message = f"{kind!r} is neither a GPU (0x03...), an NVSwitch ({SWITCH_CLASS}) nor a CPU ({_CPU_CLASS})"
                raise LayoutError(f"line {link.line}, <nvlink tclass>", message)
            elif index.get(target, i) != i:
                direct[i][index[target]] += count
            else:
                lost.setdefault("the GPU itself" if target == gpu.bus_id else "no GPU of the file", []).append(
                    f"GPU{i}"
                )
    for where, whose in lost.items():
        notes.append(f"NVLinks that lead to {where} are not counted: {', '.join(dict.fromkeys(whose))}")
    for i, j in combinations(range(len(gpus)), 2):
        if direct[i][j] != direct[j][i]:
            message = f"GPU{i} has {direct[i][j]} to GPU{j}, and GPU{j} {direct[j][i]} to GPU{i}"
            raise LayoutError(f"lines {gpus[i].pci.line} and {gpus[j].pci.line}, <nvlink>", message)
    switched = [
        [direct[i][j] + (min(to_switches[i], to_switches[j]) if i != j else 0) for j in range(len(gpus))]
        for i in range(len(gpus))
    ]
    return tuple(map(tuple, switched)), False


def _slot_mbps(pci: _Element) -> int:
    """The rate of the slot in MB/s, 0 if unknown. Width 0 means 16 lanes, as in NCCL."""
    text = pci.get("link_speed")
    if text in _UNKNOWN_SPEEDS:
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?) GT/s(?: PCIe)?", text)
    units = LANE_UNITS.get(float(found[1])) if found else None
    if units is None:
        valid = ", ".join(f"'{speed:g} GT/s'" for speed in LANE_UNITS)
        raise LayoutError(f"line {pci.line}, <pci link_speed>", f"{text!r} is not one of {valid}")
    width = pci.number("link_width", 0, 32) if pci.get("link_width") else 0
    return units * (width or 16) * 100 // 8


def _inter_cpu_mbps(cpu: _Element) -> int:
    """NCCL's bandwidth between two sockets of this CPU (ncclTopoGetInterCpuBw, ncclTopoAddCpu) in MB/s; 0 if
    unknown."""
    arch, vendor = cpu.get("arch"), cpu.get("vendor")
    if arch in ("ppc64", "arm64"):
        return 32_000 if arch == "ppc64" else 6_000
    if arch != "x86_64" or vendor not in ("GenuineIntel", "AuthenticAMD", "CentaurHauls", "  Shanghai  "):
        return 0
    family, model = (cpu.number(name, 0, 1 << 20) for name in ("familyid", "modelid"))
    if vendor == "AuthenticAMD":
        # Topology files of NCCL versions that did not distinguish Zen generations carry 0x8F and the like.
        return {26: 32_000, 0xBF: 32_000, 25: 24_000, 0xAF: 24_000}.get(family, 16_000)
    if vendor != "GenuineIntel":
        return 9_000 if (family, model) == (7, 0x5B) else 6_000
    if family != 6 or model < 0x55:
        return 6_000
    if model >= 0xCF or model in (0xAD, 0xAE, 0xAF):
        return 40_000
    return 22_000 if model >= 0x8F else 10_000


def _speed_mbps(nic: _Device) -> int:
    if nic.inside is None or not nic.inside.get("speed"):
        return 0
    return max(0, nic.inside.number("speed", -1, 10**8)) // 8


def _speaks_rdma(nic: _Device) -> bool:
    if nic.inside is not None and nic.inside.get("gdr"):
        return nic.inside.number("gdr", 0, 1) == 1
    vendor, device = nic.pci.get("vendor").lower(), nic.pci.get("device").lower()
    efa = vendor == "0x1d0f" and device.startswith("0xefa")
    return efa or vendor == "0x15b3" or nic.pci.get("class").startswith(_INFINIBAND_CLASS)
