# SPDX-License-Identifier: Apache-2.0
"""The wiring of a node as an answer, and the inside of a node."""

from __future__ import annotations

from itertools import groupby

from msgspec import Struct

from dovetail.core.devices.layout import LEVELS


class PodGpus(Struct, frozen=True):
    """The GPUs of a pod; `gpus` is None if the indices are not known. `mbps` is the bandwidth between them,
    `ideal_mbps` the most that as many GPUs of the node can have; None for fewer than two, and if the wiring is not
    known."""

    pod: str
    count: int
    gpus: tuple[int, ...] | None
    mbps: int | None
    ideal_mbps: int | None


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


class Policies(Struct, frozen=True):
    """Policies of the kubelet's managers, as KubeletConfiguration names them."""

    topology_manager: str | None = None
    topology_manager_scope: str | None = None
    cpu_manager: str | None = None
    cpu_manager_options: tuple[str, ...] = ()
    memory_manager: str | None = None


OWNER = "owner"


class GpuProcess(Struct, frozen=True):
    """A process that uses a GPU, or MIG instance; `gpu` is the index, None where that is not known. `holder`: owner
    (its pod holds the GPU), other_pod (its pod does not), gone (its pod does not exist any more) or no_pod. `pod` is
    NAMESPACE/NAME, "" but for the first two. `memory_mib` is 0 where it is not known."""

    pid: int
    gpu: int | None
    uuid: str
    holder: str
    pod: str
    memory_mib: int


class NodeInside(Struct, frozen=True):
    """A node. It offers `gpus` GPUs, `free` of which no pod holds. `topology` is None if the wiring is not known.
    `findings` name contradictions between objects, and values that cannot be used. `pods` hold GPUs there.
    `processes` use its GPUs; `other_processes` is how many of them the asker may not see."""

    node: str
    gpus: int
    free: int
    topology: Topology | None
    findings: tuple[str, ...]
    policies: Policies
    pods: tuple[PodGpus, ...]
    processes: tuple[GpuProcess, ...] = ()
    other_processes: int = 0


class NodeQuestion(Struct, frozen=True):
    """The topology of a `node`, and with `nccl` the text of a file for NCCL: with all GPUs of the node, or with those
    of a `pod`, NAMESPACE/NAME."""

    node: str
    nccl: bool = False
    pod: str = ""


class NodeTopology(Struct, frozen=True):
    """The answer. `nccl` is the text of the file, "" unless it is asked for."""

    inside: NodeInside
    nccl: str = ""


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
