# SPDX-License-Identifier: Apache-2.0
"""A node's topology for people and programs: how its GPUs are wired, and how well every set of them works together.

What is not known is None. Bandwidths are one way, in MB/s (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct

from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.layout import LEVELS, MAX_LINKED_GPUS, UNKNOWN, Layout
from dovetail.topology import nccl_xml, nvidia_smi
from dovetail.topology.reading import Reading

NVIDIA_SMI, NCCL = "nvidia-smi topo -m", "NCCL XML"
SIZES = (2, 4, 8)


class NicView(Struct, frozen=True):
    """`levels` says for each GPU how far it is: BOARD, PIX, PXB, PHB, NODE or SYS. `speed_mbps` is the line rate."""

    numa: int | None
    levels: tuple[str | None, ...]
    speed_mbps: int | None
    rdma: bool


class GpuSet(Struct, frozen=True):
    """`mbps` is the bandwidth of the best ring through these GPUs."""

    gpus: tuple[int, ...]
    mbps: int


class Topology(Struct, frozen=True):
    """`source` says what was read. `numa` has the NUMA node of each GPU, `pcie` the level between any two (None on the
    diagonal too), `nvlinks` how many links they have. `nvlink_mbps` is what one link gives, `pcie_mbps` one GPU's
    slot, `socket_mbps` is between NUMA nodes. `assumed` is true where the wiring was not read but is that of the
    product; `notes` say what else was not there to be read. `sets` has all sets of 2, 4 and 8 GPUs, of each size the
    best first."""

    source: str
    numa: tuple[int | None, ...]
    pcie: tuple[tuple[str | None, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    nics: tuple[NicView, ...]
    nvlink_mbps: int
    pcie_mbps: int
    socket_mbps: int
    assumed: bool
    notes: tuple[str, ...]
    sets: tuple[GpuSet, ...]


def topology(text: str, product: str | None = None) -> Topology:
    """Of a description of a node, recognised by its content: NCCL's XML, else what `nvidia-smi topo -m` prints.

    Raises LayoutError where it cannot be read, or the product is not known."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("<"):
        return of_reading(NCCL, nccl_xml.read(text, product))
    return of_reading(NVIDIA_SMI, nvidia_smi.read(text, product))


def of_reading(source: str, reading: Reading) -> Topology:
    """Of a layout that was read somewhere."""
    layout, notes = reading.layout, reading.notes
    gpus = range(layout.gpus)
    if layout.gpus > MAX_LINKED_GPUS:
        notes = (*notes, f"sets: {layout.gpus} GPUs are more than the {MAX_LINKED_GPUS} whose sets are worked out")
    return Topology(
        source=source,
        numa=tuple(map(_known, layout.numa)),
        pcie=tuple(tuple(None if i == j else _level(layout.pcie[i][j]) for j in gpus) for i in gpus),
        nvlinks=layout.nvlinks,
        nics=tuple(
            NicView(_known(nic.numa), tuple(map(_level, nic.levels)), nic.speed_mbps or None, nic.rdma)
            for nic in layout.nics
        ),
        nvlink_mbps=layout.nvlink_mbps,
        pcie_mbps=layout.pcie_mbps,
        socket_mbps=layout.socket_mbps,
        assumed=layout.assumed,
        notes=notes,
        sets=tuple(_sets(layout)),
    )


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _level(level: int) -> str | None:
    return None if level == UNKNOWN else LEVELS[level]


def _sets(layout: Layout) -> Iterator[GpuSet]:
    if layout.gpus > MAX_LINKED_GPUS:
        return
    sets = sets_of(layout)
    for size in SIZES:
        found = [
            GpuSet(tuple(gpu for gpu in range(layout.gpus) if mask >> gpu & 1), int(sets.mbps[mask]))
            for mask in map(int, sets.masks[sets.size == size])
        ]
        yield from sorted(found, key=lambda each: (-each.mbps, each.gpus))


class EqualSets(Struct, frozen=True):
    """Sets of one size that are equally good."""

    size: int
    mbps: int
    sets: tuple[tuple[int, ...], ...]


def equal_sets(topology: Topology) -> list[EqualSets]:
    """The sets by size and bandwidth, of each size the best first."""
    return [
        EqualSets(size, mbps, tuple(each.gpus for each in equal))
        for (size, mbps), equal in groupby(topology.sets, key=lambda each: (len(each.gpus), each.mbps))
    ]


def numa_groups(topology: Topology) -> dict[int | None, list[int]]:
    """The GPUs of each NUMA node, the unknown one last."""
    nodes = sorted(set(topology.numa), key=lambda node: (node is None, node or 0))
    return {node: [gpu for gpu, own in enumerate(topology.numa) if own == node] for node in nodes}


def nearest(nic: NicView) -> tuple[str | None, list[int]]:
    """The GPUs that are nearest to a NIC, and how near; None and nobody where nothing is known."""
    known = {LEVELS.index(level) for level in nic.levels if level is not None}
    if not known:
        return None, []
    level = LEVELS[min(known)]
    return level, [gpu for gpu, own in enumerate(nic.levels) if own == level]
