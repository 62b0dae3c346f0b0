# SPDX-License-Identifier: Apache-2.0
"""The expected all-reduce of a job, from where its GPUs are.

Rules
- The GPUs of a node are an island, and so are those of several nodes in one domain of an NVLINK_LEVELS key, where
  NVLink joins the nodes.
- A node sends through the NICs that are nearest to the job's GPUs there. Where a layout or the rate of one of these
  NICs is not known, nothing is expected of a job that needs them.
- The network above the nodes is as fast as they are, unless the cluster's Fabric states what a node can send at a level
  and the latency there (`cluster.link_speeds`), or `percent` declares for a level what of it is left to traffic between
  the parts of one of its domains; "" is the key for jobs that no domain holds. Other jobs do not count, so this is the
  most that a job can expect.
- Nodes follow each other as in a walk through the fabric, in which ranks are assigned (`ranks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import Struct

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.placement import Placement
from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.collectives import (
    LEVEL_NS,
    NET_NS,
    NVLS_LINKS,
    NVLS_MILLI,
    AllReduce,
    Span,
    all_reduce,
    network_mbps,
)
from dovetail.core.devices.layout import SYS, UNKNOWN, Layout
from dovetail.core.fabric import NVLINK_LEVELS

_NO_PERCENT: Mapping[str, int] = {}
_ALL = 100


class _Part(Struct, frozen=True):
    """The GPUs of a job on one node. `ring_mbps` is the slowest link of the best ring through them, 0 for one GPU, and
    `nvlinked` whether it is of NVLinks; `reach_mbps` is what each has by NVLink at least. `line_mbps` is the line rate
    of the NICs next to them, `nvls_milli` one of NVLS_MILLI. 0 is what is not known or not there."""

    gpus: int
    ring_mbps: int
    nvlinked: bool
    reach_mbps: int
    line_mbps: int
    nvls_milli: int


def of_placements(cluster: Cluster, placements: Iterable[Placement]) -> AllReduce | None:
    """The all-reduce of the whole GPUs that these pods hold; None where it is not known, or there is none."""
    held: dict[int, int] = {}
    for one in placements:
        if one.gpu_bits:
            held[one.slot] = held.get(one.slot, 0) | one.gpu_bits
    return of_gpus(cluster, held)


def of_gpus(cluster: Cluster, held: Mapping[int, int], percent: Mapping[str, int] = _NO_PERCENT) -> AllReduce | None:
    """The all-reduce of these GPUs, as bits by node slot; None as above."""
    gpus = sum(bits.bit_count() for bits in held.values())
    if gpus < 2:
        return None
    fabric = cluster.fabric
    order = fabric.order()
    slots = sorted(held, key=order.__getitem__)
    parts: list[_Part] = []
    for slot in slots:
        layout = cluster.nodes.layout(slot)
        if layout is None:
            return None
        parts.append(_part(layout, held[slot]))
    numbers = _islands(cluster, slots)
    islands: dict[int, list[_Part]] = {}
    for number, part in zip(numbers, parts, strict=True):
        islands.setdefault(number, []).append(part)
    level = fabric.narrowest(slots)
    between = min(map(_line, islands.values())) if len(islands) > 1 else 0
    inside = [_inside(own) for own in islands.values() if sum(part.gpus for part in own) > 1]
    nvls = [part.nvls_milli for part in parts] if len(inside) == len(islands) else []
    speeds = cluster.link_speeds
    if between and (most := speeds.most_mbps(level)):
        # An island may be of several nodes, each with its own links.
        between = min(between, most * min(map(len, islands.values())))
    hops = [_hop_ns(cluster, slots[i], slots[i + 1]) for i in range(len(slots) - 1) if numbers[i] != numbers[i + 1]]
    span = Span(
        gpus=gpus,
        islands=len(islands),
        inside_mbps=min(inside, default=0),
        nvlinked=all(part.nvlinked for part in parts),
        between_mbps=network_mbps(between) * percent.get(level, _ALL) // _ALL,
        nvls_milli=min(nvls, default=0),
        hops_ns=sum(hops),
        widest_ns=max(hops, default=0),
    )
    return all_reduce(span, level=level)


def _hop_ns(cluster: Cluster, slot: int, other: int) -> int:
    fabric = cluster.fabric
    stated = cluster.link_speeds.hop_ns(fabric.narrowest([slot, other])) if cluster.link_speeds.record else None
    return NET_NS + LEVEL_NS * (len(fabric.levels) - fabric.shared(slot, other)) if stated is None else stated


def _islands(cluster: Cluster, slots: list[int]) -> list[int]:
    """Of each slot the first one of its island."""
    fabric, islands = cluster.fabric, list(slots)
    for key in NVLINK_LEVELS:
        if key in fabric.levels:
            domains, first = fabric.domains(key), dict[int, int]()
            for i, slot in enumerate(slots):
                domain = int(domains[slot])
                if domain != ABSENT:
                    islands[i] = first.setdefault(domain, islands[i])
    return islands


def _inside(island: list[_Part]) -> int:
    """The bandwidth between the GPUs of an island."""
    return island[0].ring_mbps if len(island) == 1 else min(part.reach_mbps for part in island)


def _line(island: list[_Part]) -> int:
    """The line rate of all NICs of an island; 0 where one is not known."""
    rates = [part.line_mbps for part in island]
    return sum(rates) if all(rates) else 0


@lru_cache(maxsize=4096)
def _part(layout: Layout, bits: int) -> _Part:
    gpus = [gpu for gpu in range(layout.gpus) if bits >> gpu & 1]
    sets = sets_of(layout)
    most = [max(layout.nvlinks[gpu]) for gpu in gpus]
    pairs = [layout.nvlinks[i][j] for i in gpus for j in gpus if i < j]
    switched = min(pairs or most) == NVLS_LINKS
    return _Part(
        len(gpus),
        int(sets.mbps[bits]),
        bool(sets.nvlinked[bits]),
        min(most) * layout.nvlink_mbps,
        _nearest_mbps(layout, gpus),
        NVLS_MILLI.get(layout.nvlink_mbps, 0) if switched else 0,
    )


def _nearest_mbps(layout: Layout, gpus: list[int]) -> int:
    """The line rate of the NICs that are nearest to one of the GPUs; 0 where one of them is not known."""
    nics, near = [nic for nic in layout.nics if nic.rdma], set[int]()
    for gpu in gpus if nics else ():
        levels = [SYS + 1 if nic.levels[gpu] == UNKNOWN else nic.levels[gpu] for nic in nics]
        near.update(i for i, level in enumerate(levels) if level == min(levels))
    rates = [nics[i].speed_mbps for i in near]
    return sum(rates) if all(rates) else 0
