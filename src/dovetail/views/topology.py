# SPDX-License-Identifier: Apache-2.0
"""The topology of a node as an answer: the links between its GPUs, and the bandwidth of each set of them.

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
    """A NIC. `levels` has for each GPU the distance: BOARD, PIX, PXB, PHB, NODE or SYS. `speed_mbps` is the line rate
    in MB/s."""

    numa: int | None
    levels: tuple[str | None, ...]
    speed_mbps: int | None
    rdma: bool


class GpuSet(Struct, frozen=True):
    """A set of GPUs. `mbps` is the bandwidth of the best ring through them."""

    gpus: tuple[int, ...]
    mbps: int


class Topology(Struct, frozen=True):
    """A topology, read from `source`. `numa` has the NUMA node of each GPU, `pcie` the level between each two GPUs
    (None on the diagonal too), `nvlinks` their number of links. `nvlink_mbps` is the rate of one link, `pcie_mbps` of
    the slot of a GPU, `socket_mbps` between NUMA nodes. `assumed`: the wiring is the usual one of the product and was
    not read; `notes` name what else was missing. `sets` has all sets of 2, 4 and 8 GPUs, of each size the best
    first."""

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
    """The topology in a text: NCCL's XML, recognised by its content, or the output of `nvidia-smi topo -m`.

    Raises LayoutError if the text cannot be read or the product is not known."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("<"):
        return of_reading(NCCL, nccl_xml.read(text, product))
    return of_reading(NVIDIA_SMI, nvidia_smi.read(text, product))


def of_reading(source: str, reading: Reading) -> Topology:
    """The topology of a layout that was read from `source`."""
    layout, notes = reading.layout, reading.notes
    gpus = range(layout.gpus)
    if layout.gpus > MAX_LINKED_GPUS:
        notes = (*notes, f"sets: they are computed for at most {MAX_LINKED_GPUS} GPUs, and there are {layout.gpus}")
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
    """Sets of one size with the same bandwidth."""

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
    """The least distance between a NIC and a GPU, and the GPUs at that distance; None and [] if not known."""
    known = {LEVELS.index(level) for level in nic.levels if level is not None}
    if not known:
        return None, []
    level = LEVELS[min(known)]
    return level, [gpu for gpu, own in enumerate(nic.levels) if own == level]
