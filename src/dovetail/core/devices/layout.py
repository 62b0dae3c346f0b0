# SPDX-License-Identifier: Apache-2.0
"""The layout of a node: how its GPUs are wired by PCIe, NVLink, NUMA and NICs.

Rules: a layout names no node and no serial number, so all nodes of one kind share one layout and everything derived
from it. GPUs and NICs have the numbers of the node. A value that is not known is UNKNOWN, never a guess; a layout that
is derived from a table of products is marked `assumed`. A layout that contradicts itself cannot be made. Bandwidths are
one way, in MB/s (10^6 bytes), as collective communication reaches them, not as data sheets state them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.core.devices.contradiction import Contradiction

UNKNOWN = -1
BOARD, PIX, PXB, PHB, NODE, SYS = range(6)
"""The distance of two PCIe devices, in the terms of `nvidia-smi topo` (nvmlGpuTopologyLevel_t): on one board, across at
most one bridge, several bridges, the host bridge of a CPU, several host bridges of a NUMA node, between NUMA nodes."""
LEVELS = ("BOARD", "PIX", "PXB", "PHB", "NODE", "SYS")
MAX_NUMA = 64
MAX_GPUS = 62
"""GPUs of one node that fit the bits of a free mask."""
MAX_LINKED_GPUS = 16
"""All sets of up to so many GPUs of a node are compared (`bandwidth`); more GPUs are only counted."""
_MOST_LINKS, _MOST_MBPS = 36, 200_000

Matrix = tuple[tuple[int, ...], ...]


class LayoutError(Contradiction):
    """A layout that contradicts itself."""


class Nic(Struct, frozen=True):
    """`levels[i]` is the distance of GPU i; `speed_mbps` is the line rate, 0 unknown; `rdma`: it supports RDMA."""

    levels: tuple[int, ...]
    numa: int = UNKNOWN
    speed_mbps: int = 0
    rdma: bool = True


class Layout(Struct, frozen=True, cache_hash=True):
    """`numa[i]` is the NUMA node of GPU i. `pcie[i][j]` is one of the levels above, BOARD on the diagonal.
    `nvlinks[i][j]` is the number of links between two GPUs, through switches or not.

    `nvlink_mbps` is the rate of one link, `pcie_mbps` that of one GPU's slot, `socket_mbps` that between two NUMA
    nodes. Raises LayoutError where the parts contradict each other."""

    numa: tuple[int, ...]
    pcie: Matrix
    nvlinks: Matrix
    nics: tuple[Nic, ...] = ()
    nvlink_mbps: int = 20_000
    pcie_mbps: int = 12_000
    socket_mbps: int = 10_000
    assumed: bool = False

    def __post_init__(self) -> None:
        count = len(self.numa)
        _square("pcie", self.pcie, count, UNKNOWN, SYS)
        _square("nvlinks", self.nvlinks, count, 0, _MOST_LINKS)
        for i, numa in enumerate(self.numa):
            _within(f"numa[{i}]", numa, UNKNOWN, MAX_NUMA - 1)
            if self.pcie[i][i] != BOARD or self.nvlinks[i][i]:
                raise LayoutError(f"pcie[{i}][{i}]", "a GPU is at no distance from itself, and has no link to itself")
        for i, nic in enumerate(self.nics):
            if len(nic.levels) != count:
                raise LayoutError(f"nics[{i}].levels", f"names {len(nic.levels)} GPUs of {count}")
            for j, level in enumerate(nic.levels):
                _within(f"nics[{i}].levels[{j}]", level, UNKNOWN, SYS)
            _within(f"nics[{i}].numa", nic.numa, UNKNOWN, MAX_NUMA - 1)
        for name in ("nvlink_mbps", "pcie_mbps", "socket_mbps"):
            _within(name, getattr(self, name), 1, _MOST_MBPS)

    @property
    def gpus(self) -> int:
        return len(self.numa)

    def level(self, i: int, j: int) -> int:
        """The distance of two GPUs; where it is not known, the NUMA nodes decide."""
        level = self.pcie[i][j]
        if level == UNKNOWN:
            level = SYS if self.numa[i] != self.numa[j] or self.numa[i] == UNKNOWN else NODE
        return level

    def pair_mbps(self, i: int, j: int) -> int:
        """The bandwidth between two GPUs: by NVLink, else by PCIe, which host bridges and sockets slow down.

        The factor 5/6 is for peer-to-peer traffic through a host bridge; sockets have limits of their own (NCCL,
        src/graph/topo.h: INTEL_P2P_OVERHEAD and the inter-socket widths)."""
        if self.nvlinks[i][j]:
            return self.nvlinks[i][j] * self.nvlink_mbps
        level = self.level(i, j)
        if level <= PXB:
            return self.pcie_mbps
        through_host = self.pcie_mbps * 5 // 6
        return through_host if level <= NODE else min(through_host, self.socket_mbps)


def _square(field: str, matrix: Sequence[Sequence[int]], count: int, least: int, most: int) -> None:
    if len(matrix) != count or any(len(row) != count for row in matrix):
        raise LayoutError(field, f"must have a row and a column for each of {count} GPUs")
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            _within(f"{field}[{i}][{j}]", value, least, most)
            if value != matrix[j][i]:
                raise LayoutError(f"{field}[{i}][{j}]", f"is {value} one way and {matrix[j][i]} the other")


def _within(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise LayoutError(field, f"{value} is not from {least} to {most}")
