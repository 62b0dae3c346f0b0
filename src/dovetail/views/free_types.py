# SPDX-License-Identifier: Apache-2.0
"""What still fits, what blocks the next size, and which free GPUs are stranded, as answers have it."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.devices.gpu_sharing import Isolation
from dovetail.core.reasons import Repartition
from dovetail.views.held_types import DeviceHolder, HolderRefused
from dovetail.views.priced_types import PricedNode


class Beside(Struct, frozen=True):
    """CPU and memory that a pod requests for each of its GPUs, instances, shares or devices."""

    cpu_milli: int = 0
    memory_bytes: int = 0


class Blocked(Struct, frozen=True):
    """Why no pod of a size can start: the `rule` that refuses it. On `node`, the closest to fitting, `missing` of
    `lacking` (a resource, a share of a GPU, devices) is missing, which `holders` hold. `devices` are the GPUs and
    devices of that node, or the closest ones; a `repartition` of idle GPUs would make room."""

    rule: str
    node: str = ""
    lacking: str = ""
    missing: str = ""
    holders: tuple[DeviceHolder, ...] = ()
    devices: tuple[HolderRefused, ...] = ()
    repartition: Repartition | None = None


FRAGMENTED, TOPOLOGY, RULE, MIG = "fragmented", "topology", "rule", "mig"


class StrandedPart(Struct, frozen=True):
    """Nodes of one kind, on each of which `gpus_milli` thousandths of a GPU are stranded by a `cause`. `detail` is the
    rule, where that is the cause. `gpus` is the size of pod that they cannot take."""

    kind: PricedNode
    nodes: tuple[str, ...]
    gpus_milli: int
    cause: str
    detail: str
    gpus: int


class StrandedGpus(Struct, frozen=True):
    """Of `free_milli` on nodes that one of the shapes admits. `shapes` are the sizes of pods in GPUs, the smallest
    first; `left_out` the number of shapes of waiting pods beyond the bound."""

    free_milli: int
    stranded_milli: int
    shapes: tuple[int, ...]
    parts: tuple[StrandedPart, ...]
    left_out: int = 0


class Domain(Struct, frozen=True):
    """The domain of a fabric level in which most such pods fit."""

    level: str
    name: str
    pods: int


class FreeSize(Struct, frozen=True):
    """The number of `pods` with `gpus` GPUs each that can start now, one after another."""

    gpus: int
    pods: int
    domains: tuple[Domain, ...]
    blocked: Blocked | None


class FreeGpus(Struct, frozen=True):
    """Whole GPUs of one model: GPUs of open nodes are `free`, held, or idle on spare nodes (`spare`), GPUs of closed
    nodes are `closed`. `largest` is the most that one pod can get now, `largest_when_empty` the most if no pod held
    any."""

    model: str
    nodes: int
    gpus: int
    free: int
    closed: int
    largest: int
    largest_when_empty: int
    sizes: tuple[FreeSize, ...]
    spare: int = 0


class Instances(Struct, frozen=True):
    """MIG instances of one profile on open nodes. `compute` and `memory` are the slices of one instance, None if the
    GPUs are not known."""

    profile: str
    compute: int | None
    memory: int | None
    resource: str
    instances: int
    free: int
    most_on_one_node: int
    blocked: Blocked | None


class MigCards(Struct, frozen=True):
    """GPUs in MIG mode. Slices are those of the GPUs of open nodes; held slices are those of instances with a pod.
    `model` is the geometry. If the GPUs are not known, it is the node's label, and the numbers are 0."""

    model: str
    nodes: int
    cards: int
    closed: int
    compute: int
    compute_held: int
    memory: int
    memory_held: int
    profiles: tuple[Instances, ...]


class FreeShare(Struct, frozen=True):
    """The number of `pods` with `milli` thousandths of a GPU each that can start now."""

    milli: int
    pods: int
    blocked: Blocked | None


class SharedCards(Struct, frozen=True):
    """Shared GPUs of one model and isolation. `largest_milli` and `largest_mib` are the largest share that one pod can
    get now. If it is not known how the GPUs are shared, `cards` is 0 and only the number of replicas is known."""

    model: str
    isolation: Isolation
    resource: str
    nodes: int
    cards: int
    closed: int
    replicas: int
    replicas_free: int
    largest_milli: int
    largest_mib: int
    shares: tuple[FreeShare, ...]


class ClassDevices(Struct, frozen=True):
    """The devices that a DeviceClass selects on open nodes. `most_on_one_node` is the most that one claim can get now;
    `blocked` is why not one more, if a node has more. `problem` is why the class cannot be used."""

    name: str
    nodes: int
    devices: int
    free: int
    most_on_one_node: int
    blocked: Blocked | None
    problem: str = ""


class Free(Struct, frozen=True):
    """What fits now, by kind of device. `stranded` are free GPUs that no waiting pod can use, None of an older
    scheduler."""

    gpus: tuple[FreeGpus, ...]
    mig: tuple[MigCards, ...]
    shared: tuple[SharedCards, ...]
    classes: tuple[ClassDevices, ...]
    stranded: StrandedGpus | None = None
