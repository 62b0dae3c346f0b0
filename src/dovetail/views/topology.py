# SPDX-License-Identifier: Apache-2.0
"""The topology of a node as an answer: the links between its GPUs, and the bandwidth of each set of them.

What is not known is None. Bandwidths are one way, in MB/s (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.layout import LEVELS, MAX_LINKED_GPUS, UNKNOWN, Layout
from dovetail.topology import nccl_xml, nvidia_smi
from dovetail.topology.reading import Reading
from dovetail.views.topology_types import SIZES, GpuSet, NicView, Topology

NVIDIA_SMI, NCCL = "nvidia-smi topo -m", "NCCL XML"


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
