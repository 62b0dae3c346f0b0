# SPDX-License-Identifier: Apache-2.0
"""Descriptions of a node's GPUs and their wiring, one for each object.

Rules
- A fact that the object does not have is UNKNOWN, None or "".
- An object that contradicts itself gives no description: a finding names the field, its value and what would be right.
- GPUs are numbered as NVML does it. GPUNode gives the numbers; ResourceSlices are put in the order of PCI bus ids, or,
  where one has none, in the order of the numbers in the devices' names.
- Devices of a ResourceSlice that share a PCIe root are PHB or closer, and count as PHB. MIG devices are no GPUs. A pool
  whose slices are not all there yet, or are of different generations, gives no description.
- Labels have the product and the number of GPUs; the wiring of such a node is assumed (`devices.products`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import Struct

from dovetail.core.devices import products
from dovetail.core.devices.layout import (
    BOARD,
    LEVELS,
    MAX_NUMA,
    PHB,
    UNKNOWN,
    Layout,
    LayoutError,
    Matrix,
    Nic,
)
from dovetail.core.model import Problem
from dovetail.kube.objects.claims import DeviceAttribute, ResourceSlice, SliceDevice
from dovetail.kube.objects.topology import GPUNode, ObservedRates
from dovetail.kube.translate.problems import nearest

DRIVER = "gpu.nvidia.com"
PRODUCT = "nvidia.com/gpu.product"
COUNT = "nvidia.com/gpu.count"
_HOSTS = ("nvidia.com/gpu.machine", "node.kubernetes.io/instance-type")
_NUMA = "resource.kubernetes.io/numaNode"
_OWN = "X"
_LEVEL_OF = {_OWN: BOARD, "UNKNOWN": UNKNOWN} | {name: level for level, name in enumerate(LEVELS)}
_BUS_ID = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_DEVICE_NUMBER = re.compile(r"\D*(\d{1,9})")
_NO_RATES = ObservedRates()
_MOST_GPUS = 64
"""As in the schema of GPUNode; a larger matrix is no description of a node."""
_FIELDS = (
    (re.compile(r"^numa\[(\d+)\]$"), r"gpus[\1].numaNode"),
    (re.compile(r"^pcie\b"), "pcieLevels"),
    (re.compile(r"^(nics\[\d+\])\.numa$"), r"\1.numaNode"),
    (re.compile(r"^(nvlink|pcie|socket)_mbps$"), r"rates.\1MBps"),
)
"""By field of a Layout its path in a GPUNode's status."""


class LayoutFinding(Struct, frozen=True):
    """A value about a node that cannot be used as it is written, or that differs between two objects. `kind` and `name`
    are the object that has `problem.field`."""

    kind: str
    name: str
    problem: Problem

    def __str__(self) -> str:
        problem = self.problem
        parts = (f"{self.kind} {self.name}", problem.field, repr(problem.value) if problem.value else "", problem.rule)
        return ": ".join(part for part in parts if part)


class Description(Struct, frozen=True):
    """The GPUs of a node as one object describes them. `product` is "" also where they are of several. `nvlinks` and
    `nics` are None where the object has none. `unhealthy` are the indices of GPUs that do not work."""

    kind: str
    name: str
    uuids: tuple[str, ...]
    numa: tuple[int, ...]
    pcie: Matrix
    product: str = ""
    nvlinks: Matrix | None = None
    nics: tuple[Nic, ...] | None = None
    rates: ObservedRates = _NO_RATES
    clique: str = ""
    unhealthy: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        return len(self.numa)


Read = tuple[Description | None, tuple[LayoutFinding, ...]]


def of_gpu_node(obj: GPUNode) -> Read:
    """None where the object describes no GPUs, or contradicts itself."""
    status, name = obj.status, obj.metadata.name
    if len(status.gpus) > _MOST_GPUS:
        return None, (LayoutFinding("GPUNode", name, _too_many("status.gpus", len(status.gpus))),)
    problems: list[Problem] = []
    for i, gpu in enumerate(status.gpus):
        if gpu.index != i:
            rule = f"must be {i}: GPUs are listed in the order of their indices, and rows of matrices likewise"
            problems.append(Problem(f"status.gpus[{i}].index", str(gpu.index), rule))
    count = len(status.gpus)
    nothing = tuple(tuple(BOARD if i == j else UNKNOWN for j in range(count)) for i in range(count))
    pcie = tuple(
        tuple(_level(word, f"status.pcieLevels[{i}][{j}]", i == j, problems) for j, word in enumerate(row))
        for i, row in enumerate(status.pcie_levels)
    )
    found = Description(
        kind="GPUNode",
        name=name,
        uuids=tuple(gpu.uuid for gpu in status.gpus),
        numa=tuple(UNKNOWN if gpu.numa_node is None else gpu.numa_node for gpu in status.gpus),
        pcie=pcie or nothing,
        product=_one(gpu.product for gpu in status.gpus),
        nvlinks=status.nvlinks or None,
        nics=_nics(obj, problems),
        rates=status.rates,
        clique=status.clique,
        unhealthy=tuple(i for i, gpu in enumerate(status.gpus) if not gpu.healthy),
    )
    if not problems:
        try:
            layout_of(found)
        except LayoutError as error:
            problems.append(Problem(f"status.{_field(error.field)}", "", error.message))
    findings = tuple(LayoutFinding("GPUNode", name, problem) for problem in problems)
    return found if count and not problems else None, findings


def layout_of(found: Description, assumed: bool = False) -> Layout:
    """The layout of a description; missing NVLinks count as none. Raises LayoutError."""
    product, rates, usual = products.find(found.product), found.rates, Layout((), (), ())
    nothing = tuple((0,) * found.gpus for _ in range(found.gpus))
    return Layout(
        numa=found.numa,
        pcie=found.pcie,
        nvlinks=found.nvlinks if found.nvlinks is not None else nothing,
        nics=found.nics or (),
        nvlink_mbps=_first(rates.nvlink_mbps, product.nvlink_mbps if product else None, usual.nvlink_mbps),
        pcie_mbps=_first(rates.pcie_mbps, product.pcie_mbps if product else None, usual.pcie_mbps),
        socket_mbps=_first(rates.socket_mbps, usual.socket_mbps),
        assumed=assumed,
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _level(word: str, path: str, own: bool, problems: list[Problem]) -> int:
    level = _LEVEL_OF.get(word)
    if level is None:
        words = ", ".join(known for known in _LEVEL_OF if known != _OWN)
        rule = f"must be one of {words}, and {_OWN} on the diagonal; nearest valid value: {nearest(word, _LEVEL_OF)}"
        problems.append(Problem(path, word, rule))
        return UNKNOWN
    if own != (word == _OWN):
        problems.append(
            Problem(path, word, f"must be {_OWN}" if own else f"is for a GPU and itself: {_OWN} is wrong here")
        )
    return level


def _nics(obj: GPUNode, problems: list[Problem]) -> tuple[Nic, ...] | None:
    if obj.status.nics is None:
        return None
    return tuple(
        Nic(
            levels=tuple(
                _level(word, f"status.nics[{i}].levels[{j}]", False, problems) for j, word in enumerate(nic.levels)
            ),
            numa=UNKNOWN if nic.numa_node is None else nic.numa_node,
            speed_mbps=nic.speed_mbps,
            rdma=nic.rdma,
        )
        for i, nic in enumerate(obj.status.nics)
    )


def _field(field: str) -> str:
    for pattern, wire in _FIELDS:
        field, times = pattern.subn(wire, field)
        if times:
            break
    return field


def _one(values: Iterable[str]) -> str:
    """The value that all have; "" where they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else ""


def _too_many(field: str, count: int) -> Problem:
    return Problem(field, str(count), f"are more than {_MOST_GPUS} GPUs: not used")


def of_slices(slices: Iterable[ResourceSlice]) -> Read:
    """The GPUs that the ResourceSlices of our driver list for one node, in whatever order they come."""
    pools: dict[str, list[ResourceSlice]] = {}
    for one in sorted(slices, key=lambda s: s.metadata.name):
        pools.setdefault(one.spec.pool.name, []).append(one)
    findings: list[LayoutFinding] = []
    gpus: list[_SliceGpu] = []
    for pool in pools.values():
        for one in _complete(pool, findings):
            for i, device in enumerate(one.spec.devices):
                if _text(device, "type") == "gpu":
                    gpus.append(_slice_gpu(device, f"spec.devices[{i}]", one.metadata.name, findings))
    name = min((gpu.slice for gpu in gpus), default="")
    if len(gpus) > _MOST_GPUS:
        findings.append(LayoutFinding("ResourceSlice", name, _too_many("spec.devices", len(gpus))))
        gpus = []
    if not gpus:
        return None, tuple(findings)
    ordered = all(gpu.bus_id for gpu in gpus)
    gpus.sort(key=lambda gpu: gpu.bus_id if ordered else (gpu.number,))
    found = Description(
        kind="ResourceSlice",
        name=name,
        uuids=tuple(gpu.uuid for gpu in gpus),
        numa=tuple(gpu.numa for gpu in gpus),
        pcie=tuple(
            tuple(BOARD if a is b else PHB if a.root and a.root == b.root else UNKNOWN for b in gpus) for a in gpus
        ),
        product=_one(gpu.product for gpu in gpus),
    )
    return found, tuple(findings)


def _complete(pool: list[ResourceSlice], findings: list[LayoutFinding]) -> list[ResourceSlice]:
    """The slices of a pool's newest generation; none while some of them are missing."""
    newest = max(one.spec.pool.generation for one in pool)
    pool = [one for one in pool if one.spec.pool.generation == newest]
    wanted = pool[0].spec.pool.resource_slice_count
    if len(pool) >= wanted:
        return pool
    rule = f"the pool has {len(pool)} of these slices in generation {newest}: not used until all are there"
    problem = Problem("spec.pool.resourceSliceCount", str(wanted), rule)
    findings.append(LayoutFinding("ResourceSlice", pool[0].metadata.name, problem))
    return []


class _SliceGpu(Struct, frozen=True, eq=False):
    slice: str
    uuid: str
    product: str
    numa: int
    root: str
    bus_id: tuple[int, ...]
    number: int


def _slice_gpu(device: SliceDevice, path: str, name: str, findings: list[LayoutFinding]) -> _SliceGpu:
    numa = _attribute(device, _NUMA)
    # Of a list the first is the GPU's own node, the others are near (dynamic-resource-allocation: ListAttribute).
    node = numa.numbers[0] if numa.numbers else numa.number
    if node is not None and not 0 <= node < MAX_NUMA:
        rule = f"must be a NUMA node from 0 to {MAX_NUMA - 1}: taken as not known"
        findings.append(LayoutFinding("ResourceSlice", name, Problem(f"{path}.attributes[{_NUMA}]", str(node), rule)))
        node = None
    bus_id = _BUS_ID.fullmatch(_text(device, "resource.kubernetes.io/pciBusID"))
    number = _DEVICE_NUMBER.match(device.name)
    return _SliceGpu(
        slice=name,
        uuid=_text(device, "uuid"),
        product=_text(device, "productName"),
        numa=UNKNOWN if node is None else node,
        root=_text(device, "resource.kubernetes.io/pcieRoot"),
        bus_id=tuple(int(part, 16) for part in bus_id.groups()) if bus_id else (),
        number=int(number[1]) if number else 0,
    )


def _attribute(device: SliceDevice, name: str) -> DeviceAttribute:
    """An attribute by its name; the driver's own may be written with its domain or without."""
    found = device.attributes
    return found.get(name) or found.get(f"{DRIVER}/{name}") or DeviceAttribute()


def _text(device: SliceDevice, name: str) -> str:
    return _attribute(device, name).text or ""


class Labels(Struct, frozen=True):
    """The labels of GPU feature discovery. `count` is None where it is missing or `unreadable`; `host` is the type of
    machine, where that is known to the table of products."""

    product: str = ""
    count: int | None = None
    host: str = ""
    unreadable: str = ""


def of_labels(labels: Mapping[str, str]) -> Labels:
    count = labels.get(COUNT, "")
    hosts = [labels[key] for key in _HOSTS if key in labels]
    known = (host for host in hosts if any(machine.names.fullmatch(host) for machine in products.HOSTS))
    readable = re.fullmatch(r"[0-9]{1,4}", count) is not None
    return Labels(labels.get(PRODUCT, ""), int(count) if readable else None, next(known, ""), "" if readable else count)


assumed = lru_cache(maxsize=1024)(products.assumed_layout)


@lru_cache(maxsize=1024)
def shared(layout: Layout) -> Layout:
    """One object for all equal layouts."""
    return layout
