# SPDX-License-Identifier: Apache-2.0
"""Descriptions of stand-in machines: a few lines of JSON each, and the details derived from them.

Rules: a host is a file in hosts/, or a dict with the same fields. With `like` it is that host with some fields
replaced. PCIe is a nested structure: a list is a switch, a name is a device, and each item of `below` has its own root
port. Facts from the product (products.json) or the core's MIG tables are not repeated. An unknown field is an error.
"""

from __future__ import annotations

import difflib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
from msgspec import Struct, field

from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS

_FOLDER = Path(__file__).with_name("hosts")
PRODUCTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("products.json").read_text())
DRIVERS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("drivers.json").read_text())
"""Branches of NVIDIA's driver: a version of each, the first ids of field values and GPM metrics that it does not know,
and the calls that the branch before does not have (`new`), as in the bindings that NVIDIA published for them."""
HOSTS = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))

_FIELDS = (
    "like", "name", "seed", "machine", "driver", "nvml", "cuda", "product", "threads", "numa", "pcie",
    "gpus", "gpu_memory_nodes", "nvlinks", "links_down", "fabric", "platform", "nics", "missing", "mig",
    "placements_need_mode", "branch",
)  # fmt: skip
_GPU_FIELDS = ("bus", "module", "minor", "serial", "product", "uuid")
_STATES = {"not-supported": 0, "not-started": 1, "in-progress": 2, "completed": 3}
_NAMESPACE = uuid.UUID("5d7cb2f6-3c1d-4b44-9a55-6a1f4a9f7a10")


class HostError(ValueError):
    """An invalid description. The message names the position."""


class Numa(Struct, frozen=True):
    """A NUMA node. A node without CPUs is the memory of a GPU."""

    cpus: tuple[int, ...]
    memory_mib: int
    socket: int
    hugepages_2mib: int = 0


class Device(Struct, frozen=True):
    """A PCI device. `bridges` is the path from the root down to it; `switch` names the switches above it."""

    name: str
    bdf: str
    root: str
    numa: int
    bridges: tuple[str, ...]
    switches: tuple[int, ...]

    @property
    def path(self) -> str:
        """The path below /sys/devices."""
        return "/".join((f"pci{self.root}", *self.bridges, self.bdf))


class Link(Struct, frozen=True):
    """The remote end of an NVLink: a GPU, a switch of the machine, or, if both are unset, an external switch."""

    gpu: int | None = None
    switch: str | None = None
    up: bool = True


class Gpu(Struct, frozen=True):
    index: int
    minor: int
    module: int
    uuid: str
    serial: str
    product: Mapping[str, Any]
    device: Device
    links: tuple[Link, ...]
    memory_node: int | None


class Nic(Struct, frozen=True):
    name: str
    device: Device
    gbps: int
    rdma: bool = True
    ethernet: bool = False
    down: bool = False


class Description(Struct, frozen=True):
    """A machine. `threads` is the number per core. `missing` are calls
    that the driver lacks, as older ones do; `fields` and `metrics` are the first ids of field values and of GPM metrics
    that it does not know.
    `placements_need_mode`: the driver reports the placements of MIG profiles only with MIG mode on, as older ones do.
    `mig` is the initial MIG layout: pairs of profile and start by GPU."""

    name: str
    machine: str
    driver: str
    nvml: str
    cuda: tuple[int, int]
    threads: int
    numa: tuple[Numa, ...]
    devices: tuple[Device, ...]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    fabric: Mapping[str, Any] = field(default_factory=dict)
    platform: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    placements_need_mode: bool = False
    fields: int = pynvml.NVML_FI_MAX
    metrics: int = pynvml.NVML_GPM_METRIC_MAX
    mig: Mapping[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    @property
    def bridges(self) -> Iterator[tuple[str, str, int]]:
        """The path, address and NUMA node of every bridge, outer bridges first."""
        seen = set()
        for device in self.devices:
            for depth, bdf in enumerate(device.bridges):
                if bdf not in seen:
                    seen.add(bdf)
                    yield "/".join((f"pci{device.root}", *device.bridges[: depth + 1])), bdf, device.numa


def level(one: Device, other: Device) -> int:
    """The topology level between two devices, as in NVML and `nvidia-smi topo -m`."""
    if one is other:
        return BOARD
    if one.root != other.root:
        return NODE if one.numa == other.numa >= 0 else SYS
    common = [a for a, b in zip(one.switches, other.switches, strict=False) if a == b]
    if not common:
        return PHB
    return PIX if common[-1] == one.switches[-1] == other.switches[-1] else PXB


def load(host: str | Mapping[str, Any]) -> Description:
    """The description for a host name or a dict. Raises HostError."""
    settings: dict[str, Any] = {"like": host} if isinstance(host, str) else dict(host)
    raw: dict[str, Any] = {**_file(settings["like"]), **settings} if "like" in settings else settings
    raw.setdefault("name", "custom")
    _known("host", raw, _FIELDS)
    numa = [
        Numa(cpus_of(each["cpus"]), each["memory_gib"] * 1024, each["socket"], each.get("hugepages_2mib", 0))
        for each in raw["numa"]
    ]
    gpus_raw = raw.get("gpus", [])
    for i, each in enumerate(gpus_raw):
        _known(f"gpus[{i}]", each, _GPU_FIELDS)
    fixed = {f"gpu{i}": each["bus"] for i, each in enumerate(gpus_raw) if "bus" in each}
    devices = _Tree(fixed).devices(raw["pcie"], len(numa))
    by_name = {device.name: device for device in devices}
    for name in (*(f"gpu{i}" for i in range(len(gpus_raw))), *raw.get("nics", {})):
        if name not in by_name:
            raise HostError(f"pcie: {name} is nowhere")
    memory_nodes = raw.get("gpu_memory_nodes", 0)
    gpus = []
    for i, each in enumerate(gpus_raw):
        product = PRODUCTS[_one_of(f"gpus[{i}].product", each.get("product", raw.get("product", "")), PRODUCTS)]
        device = by_name[f"gpu{i}"]
        node = len(numa) if memory_nodes else None
        if memory_nodes:
            socket = numa[device.numa].socket
            sizes = (product["memory_mib"], *[0] * (memory_nodes - 1))
            numa.extend(Numa((), size, socket) for size in sizes)
        seed = f"{raw.get('seed', raw['name'])}/{i}"
        gpus.append(
            Gpu(
                index=i,
                minor=each.get("minor", i),
                module=each.get("module", i + 1),
                uuid=each.get("uuid", f"GPU-{uuid.uuid5(_NAMESPACE, seed)}"),
                serial=each.get("serial", f"165{uuid.uuid5(_NAMESPACE, seed).int % 10**10:010}"),
                product=product,
                device=device,
                links=_links(raw, i, product, by_name),
                memory_node=node,
            )
        )
    branch, missing = _branch(raw)
    cuda = re.fullmatch(r"(\d+)\.(\d+)", raw["cuda"])
    if not cuda:
        raise HostError(f"cuda: {raw['cuda']!r} is no version")
    return Description(
        name=raw["name"],
        machine=raw["machine"],
        driver=raw["driver"],
        nvml=raw.get("nvml", f"{cuda[1]}.{raw['driver']}"),
        cuda=(int(cuda[1]), int(cuda[2])),
        threads=raw.get("threads", 2),
        numa=tuple(numa),
        devices=devices,
        gpus=tuple(gpus),
        nics=tuple(Nic(name, by_name[name], **each) for name, each in raw.get("nics", {}).items()),
        fabric=raw.get("fabric", {}),
        platform=raw.get("platform", {}),
        missing=(*raw.get("missing", ()), *missing),
        placements_need_mode=raw.get("placements_need_mode", False),
        fields=branch.get("fields", pynvml.NVML_FI_MAX),
        metrics=branch.get("metrics", pynvml.NVML_GPM_METRIC_MAX),
        mig={int(gpu): tuple((name, start) for name, start in layout) for gpu, layout in raw.get("mig", {}).items()},
    )


def cpus_of(text: str) -> tuple[int, ...]:
    """Parse a list such as `0-3,8`."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return tuple(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))


def fabric_state(fabric: Mapping[str, Any]) -> int:
    """NVML's number for the state of a fabric."""
    return _STATES[_one_of("fabric.state", fabric.get("state", "not-supported"), _STATES)]


def _branch(raw: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The branch of the driver with its version set, and the calls of later ones; nothing without `branch`."""
    if "branch" not in raw:
        return {}, []
    branches = list(DRIVERS)
    number = branches.index(_one_of("branch", raw["branch"], DRIVERS))
    branch = DRIVERS[branches[number]]
    raw.update(
        driver=branch["driver"], cuda=branch["cuda"], nvml=f"{branch['cuda'].partition('.')[0]}.{branch['driver']}"
    )
    return branch, [call for later in branches[number + 1 :] for call in DRIVERS[later]["new"]]


def _file(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((_FOLDER / f"{_one_of('host', name, HOSTS)}.json").read_text())
    return {"name": name, **raw}


def _links(
    raw: Mapping[str, Any], gpu: int, product: Mapping[str, Any], devices: Mapping[str, Device]
) -> tuple[Link, ...]:
    wiring, down = raw.get("nvlinks", {}), {tuple(pair) for pair in raw.get("links_down", ())}
    links: list[Link] = []
    if switches := wiring.get("switches"):
        outside = wiring.get("outside", False)
        names = [None if outside else devices[f"nvswitch{i % switches}"].bdf for i in range(product["links"])]
        links = [Link(switch=name) for name in names]
    for one, other, count in wiring.get("pairs", ()):
        if gpu in (one, other):
            links += [Link(gpu=other if gpu == one else one)] * count
    if len(links) > product["links"]:
        raise HostError(f"nvlinks: GPU {gpu} has {len(links)} of {product['links']}")
    return tuple(Link(link.gpu, link.switch, (gpu, number) not in down) for number, link in enumerate(links))


class _Tree:
    """Assigns bus numbers to bridges and devices as firmware does: depth first, each bus once."""

    def __init__(self, fixed: Mapping[str, str]) -> None:
        self._fixed = fixed
        self._taken = {bus.rpartition(":")[0] for bus in fixed.values()}
        self._found: list[Device] = []
        self._switch = 0

    def devices(self, roots: list[Mapping[str, Any]], numa_nodes: int) -> tuple[Device, ...]:
        self._taken |= {root["root"] for root in roots}
        for root in roots:
            if root["numa"] >= numa_nodes:
                raise HostError(f"pcie: root {root['root']}: there is no NUMA node {root['numa']}")
            for slot, below in enumerate(root["below"], start=1):
                port = f"{root['root']}:{slot:02x}.0"
                self._walk(below, root, (port,), ())
        names = [device.name for device in self._found]
        if len(set(names)) < len(names):
            raise HostError(f"pcie: {', '.join(sorted({name for name in names if names.count(name) > 1}))} twice")
        return tuple(self._found)

    def _walk(self, node: Any, root: Mapping[str, Any], bridges: tuple[str, ...], switches: tuple[int, ...]) -> None:
        if isinstance(node, str):
            bdf = f"{self._fixed.get(node) or self._bus(root['root']) + ':00'}.0"
            self._found.append(Device(node, bdf, root["root"], root["numa"], bridges, switches))
            return
        self._switch += 1
        inside = (*switches, self._switch)
        upstream, internal = f"{self._bus(root['root'])}:00.0", self._bus(root["root"])
        for slot, child in enumerate(node):
            self._walk(child, root, (*bridges, upstream, f"{internal}:{slot:02x}.0"), inside)

    def _bus(self, root: str) -> str:
        domain, _, first = root.partition(":")
        for number in range(int(first, 16) + 1, 256):
            bus = f"{domain}:{number:02x}"
            if bus not in self._taken:
                self._taken.add(bus)
                return bus
        raise HostError(f"pcie: no bus number is left below {root}")


def _known(where: str, settings: Mapping[str, Any], fields: tuple[str, ...]) -> None:
    for name in settings:
        _one_of(where, name, fields)


def _one_of(where: str, name: str, known: Any) -> str:
    if name not in known:
        near = difflib.get_close_matches(name, list(known), 1)
        raise HostError(f"{where}: {name!r} is not known" + (f"; did you mean {near[0]}?" if near else ""))
    return name
