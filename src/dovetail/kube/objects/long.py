# SPDX-License-Identifier: Apache-2.0
"""Objects that are longer than any useful one, read with little work.

Rules
- Of a pod all parts count that decide what it holds: its node, and the CPU, memory and GPUs that its containers
  request. Any other part that is longer than LONGEST_PART is not read, and named in `Pod.unread`: then a pod of this
  scheduler waits (see `limits`). Where a pod has more containers than `limits` adds up, those with GPUs come first; of
  a pod without a node only as many are read as show that there are too many.
- Of a claim the parameters that are only passed on stay as they are written.
- Other objects of the table are not read at all: the pods that need them wait, and the reflector reports it.
Kinds that are not in the table are written only by administrators, or the API server bounds their length.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate, islice
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.structs import fields

from dovetail.core.json_text import decode_json
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.kube.objects.base import ObjectMeta, OwnerReference, PodDisruptionBudget, Quantities, Quantity, Wire
from dovetail.kube.objects.claims import (
    ClaimConfiguration,
    ClaimMeta,
    DeviceClaim,
    OpaqueConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from dovetail.kube.objects.groups import CompositePodGroup, CoschedulingPodGroup, PodGroup, VolcanoPodGroup
from dovetail.kube.objects.leases import LeaseRequest
from dovetail.kube.objects.pods import (
    Affinity,
    Container,
    ContainerPort,
    Pod,
    PodCondition,
    PodResourceClaim,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGate,
    Toleration,
    TopologySpreadConstraint,
    Volume,
)
from dovetail.kube.objects.pods_on_node import ContainerOnNode, PodOnNode, PodSpecOnNode, ResourcesOnNode
from dovetail.kube.objects.storage import PersistentVolumeClaim
from dovetail.kube.translate.limits import MOST_CONTAINERS, MOST_RESOURCES, MOST_SUMMED

LONGEST = 256 * 1024
"""Bytes of the JSON of a pod that is read like any other."""
LONGEST_PART = 64 * 1024
_LONGEST_AMOUNTS = 16 * 1024
"""Bytes of what all containers ask for that is read whole."""
_SHORT = 1024
"""Bytes of a container, or of what it asks for, that is read like any other."""
_NOTHING = Raw(b"null")
_GPUS = re.compile(rb'"nvidia\.com/(?:gpu|gpu\.shared|mig-[A-Za-z0-9._+-]{1,63})"\s*:\s*"?[1-9]')
"""An amount of GPUs, or of parts of one, that is not zero."""
_OURS = b'"nvidia.com/'
_MIG = b'"nvidia.com/mig-'
_SLICES = re.compile(rb'"(nvidia\.com/mig-[A-Za-z0-9._+-]{1,63})"\s*:\s*(?:"([^"\\]{1,64})"|([0-9.]{1,64}))')
"""Amounts of MIG slices. Every name that the API server takes is found, so that no more are examined than are read."""
_LONGEST_QUANTITY = 64
_AMOUNTS, _PORTS = "spec.containers[*].resources", "spec.containers[*].ports"


class _Identity(ObjectMeta, frozen=True):
    """All but what may be long."""

    labels: Raw = _NOTHING  # type: ignore[assignment]
    owner_references: Raw = _NOTHING  # type: ignore[assignment]


class _Spec(PodSpec, frozen=True):
    containers: tuple[Raw, ...] = ()  # type: ignore[assignment]
    init_containers: tuple[Raw, ...] = ()  # type: ignore[assignment]
    node_selector: Raw = _NOTHING  # type: ignore[assignment]
    affinity: Raw = _NOTHING  # type: ignore[assignment]
    tolerations: Raw = _NOTHING  # type: ignore[assignment]
    topology_spread_constraints: Raw = _NOTHING  # type: ignore[assignment]
    scheduling_gates: Raw = _NOTHING  # type: ignore[assignment]
    resource_claims: Raw = _NOTHING  # type: ignore[assignment]
    volumes: Raw = _NOTHING  # type: ignore[assignment]


class _Status(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    start_time: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""


class _Long(Wire, frozen=True):
    metadata: _Identity = _Identity()
    spec: _Spec = _Spec()
    status: Raw = _NOTHING


class _Resources(Wire, frozen=True):
    requests: Raw = _NOTHING
    limits: Raw = _NOTHING


class _Counted(Struct, frozen=True):
    """The amounts of a container's requests that always count, without slices."""

    cpu: Quantity | None = None
    memory: Quantity | None = None
    storage: Quantity | None = field(default=None, name="ephemeral-storage")
    gpu: Quantity | None = field(default=None, name=GPU)
    shared_gpu: Quantity | None = field(default=None, name=SHARED_GPU)


class _Container(Wire, frozen=True):
    name: str = ""
    image: str = ""
    restart_policy: str = ""
    resources: _Resources = field(default_factory=_Resources)
    ports: Raw = _NOTHING


def _long_pod(long: _Long) -> Pod:
    unread = list[str]()

    def part(raw: Raw, path: str, kind: Any, instead: Any) -> Any:
        if _absent(raw):
            return instead
        if len(raw) > LONGEST_PART:
            unread.append(path)
            return instead
        return decode_json(raw, kind)

    meta, spec, status = long.metadata, long.spec, _status(long.status)
    init, main = _containers(spec, bool(spec.node_name or status.nominated_node_name), unread)
    gates: tuple[SchedulingGate, ...] = part(
        spec.scheduling_gates, "spec.schedulingGates", tuple[SchedulingGate, ...], (SchedulingGate("..."),)
    )
    return Pod(
        ObjectMeta(**_fields(meta) | {
            "labels": part(meta.labels, "metadata.labels", dict[str, str], {}),
            "owner_references": part(
                meta.owner_references, "metadata.ownerReferences", tuple[OwnerReference, ...], ()
            ),
        }),
        PodSpec(**_fields(spec) | {
            "containers": main,
            "init_containers": init,
            "node_selector": part(spec.node_selector, "spec.nodeSelector", dict[str, str], {}),
            "affinity": part(spec.affinity, "spec.affinity", Affinity, None),
            "tolerations": part(spec.tolerations, "spec.tolerations", tuple[Toleration, ...], ()),
            "topology_spread_constraints": part(
                spec.topology_spread_constraints, "spec.topologySpreadConstraints",
                tuple[TopologySpreadConstraint, ...], (),
            ),
            "scheduling_gates": gates if not _absent(spec.scheduling_gates) else (),
            "resource_claims": part(spec.resource_claims, "spec.resourceClaims", tuple[PodResourceClaim, ...], ()),
            "volumes": part(spec.volumes, "spec.volumes", tuple[Volume, ...], ()),
        }),
        status,
        tuple(unread),
    )  # fmt: skip


def _on_node(container: Container) -> ContainerOnNode:
    amounts = container.resources
    return ContainerOnNode(**_fields(container) | {"resources": ResourcesOnNode(amounts.requests, amounts.limits)})


def _long_pod_on_node(long: _Long) -> PodOnNode:
    """Without the variables of its containers."""
    pod = _long_pod(long)
    containers, init = (
        tuple(_on_node(one) for one in some) for some in (pod.spec.containers, pod.spec.init_containers)
    )
    spec = PodSpecOnNode(**_fields(pod.spec) | {"containers": containers, "init_containers": init})
    return PodOnNode(pod.metadata, spec, pod.status, (*pod.unread, "spec.containers[].env"))


def _absent(raw: Raw) -> bool:
    return len(raw) == len(_NOTHING) and bytes(raw) == b"null"


def _fields(obj: Wire) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in obj.__struct_fields__}


def _status(raw: Raw) -> PodStatus:
    """The status, without the part of each container where that is long."""
    if _absent(raw):
        return PodStatus()
    if len(raw) <= LONGEST_PART:
        return decode_json(raw, PodStatus)
    short = decode_json(raw, _Status)
    return PodStatus(short.phase, short.reason, short.start_time, short.conditions, short.nominated_node_name)


def _containers(spec: _Spec, placed: bool, unread: list[str]) -> tuple[tuple[Container, ...], tuple[Container, ...]]:
    """The init containers and the containers, as many as are read."""
    every = (*spec.init_containers, *spec.containers)
    some: Iterable[int] = range(len(every))
    if len(every) > MOST_CONTAINERS:
        some = _first(every) if placed else range(MOST_CONTAINERS + 1)
    chosen = [every[i] for i in some]
    if max(map(len, chosen), default=0) <= _SHORT:
        read = decode_json(b"[%b]" % b",".join(chosen), tuple[Container, ...])
    else:
        read = _one_by_one(chosen, unread)
    inits = sum([i < len(spec.init_containers) for i in some])
    return read[:inits], read[inits:]


def _one_by_one(chosen: list[Raw], unread: list[str]) -> tuple[Container, ...]:
    found = list[Container]()
    left = _LONGEST_AMOUNTS
    for raw in chosen:
        container, size = _container(raw, left, unread)
        left -= size
        found.append(container)
    return tuple(found)


def _first(every: tuple[Raw, ...]) -> Iterable[int]:
    """The places of the first ones, those with GPUs before others, in their order."""
    ends = list(accumulate(map(len, every)))
    joined = b"".join(every)
    found = set[int]()
    match = _GPUS.search(joined) if _OURS in joined else None
    while match is not None and len(found) < MOST_SUMMED:
        place = bisect_right(ends, match.start())
        found.add(place)
        match = _GPUS.search(joined, ends[place])
    for place in range(len(every)):
        if len(found) > MOST_SUMMED:
            break
        found.add(place)
    return sorted(found)


def _container(raw: Raw, left: int, unread: list[str]) -> tuple[Container, int]:
    """A container with its request's bytes, of which so many are left to be read whole."""
    if len(raw) <= _SHORT:
        return decode_json(raw, Container), len(raw)
    long = decode_json(raw, _Container)
    requested, ports = long.resources, tuple[ContainerPort, ...]()
    if len(long.ports) > LONGEST_PART:
        unread.append(_PORTS)
    elif not _absent(long.ports):
        ports = decode_json(long.ports, tuple[ContainerPort, ...])
    size = len(requested.requests) + len(requested.limits)
    if size > max(left, _SHORT):
        unread.append(_AMOUNTS)
        read = ResourceRequirements(_counted(requested.requests), _counted(requested.limits))
    else:
        read = ResourceRequirements(
            *[{} if _absent(one) else decode_json(one, Quantities) for one in (requested.requests, requested.limits)]
        )
    return Container(long.name, long.image, read, ports, long.restart_policy), size


def _counted(raw: Raw) -> Quantities:
    if _absent(raw):
        return {}
    counted = decode_json(raw, _Counted)
    found: Quantities = {
        field.encode_name: value
        for field in fields(_Counted)
        if (value := getattr(counted, field.name)) is not None and len(str(value)) <= _LONGEST_QUANTITY
    }
    if _MIG in bytes(raw):
        for name, text, number in islice((one.groups() for one in _SLICES.finditer(raw)), MOST_RESOURCES):
            found[name.decode()] = (text or number).decode(errors="replace")
    return found


class _Opaque(OpaqueConfiguration, frozen=True):
    parameters: Raw = _NOTHING


class _Configuration(ClaimConfiguration, frozen=True):
    opaque: _Opaque | None = None


class _Devices(DeviceClaim, frozen=True):
    config: tuple[_Configuration, ...] = ()


class _ClaimSpec(Wire, frozen=True):
    devices: _Devices = _Devices()


class _Claim(Wire, frozen=True):
    metadata: ClaimMeta = ClaimMeta()
    spec: _ClaimSpec = _ClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


def _long_claim(long: _Claim) -> ResourceClaim:
    config = tuple([ClaimConfiguration(one.requests, _opaque(one.opaque)) for one in long.spec.devices.config])
    devices = DeviceClaim(long.spec.devices.requests, long.spec.devices.constraints, config)
    return ResourceClaim(long.metadata, ResourceClaimSpec(devices), long.status)


def _opaque(raw: _Opaque | None) -> OpaqueConfiguration | None:
    # A copy: else all that came with it would stay in memory.
    return OpaqueConfiguration(raw.driver, raw.parameters.copy()) if raw is not None else None


def _whole(obj: Any) -> Any:
    return obj


class Long(Struct, frozen=True):
    """How objects of more than so many bytes are read: as `wire`, of which `short` makes what is read. `short` raises
    JsonError; with `wire` None they are not read at all."""

    most: int
    wire: type[Any] | None = None
    short: Callable[[Any], Any] = _whole


_UNREAD = Long(LONGEST_PART)
LONG: dict[type, Long] = {
    Pod: Long(LONGEST, _Long, _long_pod),
    PodOnNode: Long(LONGEST, _Long, _long_pod_on_node),
    ResourceClaim: Long(16 * 1024, _Claim, _long_claim),
    LeaseRequest: _UNREAD,
    PersistentVolumeClaim: _UNREAD,
    PodDisruptionBudget: _UNREAD,
    PodGroup: _UNREAD,
    CompositePodGroup: _UNREAD,
    CoschedulingPodGroup: _UNREAD,
    VolcanoPodGroup: _UNREAD,
}
"""By what they are read as."""
