# SPDX-License-Identifier: Apache-2.0
"""Objects that are longer than any that somebody needs, read with little work.

Rules
- Of a pod everything counts that says what it holds: where it is, and what its containers ask for of CPU, memory and
  GPUs. Any other part that is longer than LONGEST_PART is not read, and named in `Pod.unread`: then a pod of this
  scheduler waits (see `limits`). Of more containers than the limit those with GPUs come first.
- Of a claim the parameters that are only handed on stay as they are written.
- Other objects of the table are not read at all: whoever needs them waits, and the reflector reports it.
What is not in the table is written by nobody but administrators, or its length is bounded by the API server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.json import decode
from msgspec.structs import fields

from dovetail.core.model import GPU, SHARED_GPU
from dovetail.kube.limits import MOST_CONTAINERS, MOST_RESOURCES
from dovetail.kube.objects import ObjectMeta, OwnerReference, PodDisruptionBudget, Quantities, Quantity, Wire
from dovetail.kube.objects_claims import (
    ClaimConfiguration,
    ClaimMeta,
    DeviceClaim,
    OpaqueConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from dovetail.kube.objects_group import CompositePodGroup, CoschedulingPodGroup, PodGroup, VolcanoPodGroup
from dovetail.kube.objects_pod import (
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
from dovetail.kube.objects_storage import PersistentVolumeClaim

LONGEST = 256 * 1024
"""Bytes of the JSON of an object that is read like any other."""
LONGEST_PART = 64 * 1024
_MOST_CONTAINERS = MOST_CONTAINERS + 1
_NOTHING = Raw(b"null")
_GPUS = b'"nvidia.com/'
_SLICES = re.compile(rb'"(nvidia\.com/mig-[A-Za-z0-9._+-]{1,63})"\s*:\s*(?:"([^"\\]{1,64})"|([0-9.]{1,64}))')
"""Amounts of MIG slices. Every name that the API server takes is found, so that no more are looked at than are read."""
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
    """What counts always of the amounts that a container asks for, but slices."""

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
        return decode(raw, type=kind)

    meta, spec = long.metadata, long.spec
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
            "containers": tuple(_containers(spec.containers, unread)),
            "init_containers": tuple(_containers(spec.init_containers, unread)),
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
        _status(long.status),
        tuple(unread),
    )  # fmt: skip


def _absent(raw: Raw) -> bool:
    return len(raw) == len(_NOTHING) and bytes(raw) == b"null"


def _fields(obj: Wire) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in obj.__struct_fields__}


def _status(raw: Raw) -> PodStatus:
    """Without what it says of each container, where that is long."""
    if _absent(raw):
        return PodStatus()
    if len(raw) <= LONGEST_PART:
        return decode(raw, type=PodStatus)
    short = decode(raw, type=_Status)
    return PodStatus(short.phase, short.reason, short.start_time, short.conditions, short.nominated_node_name)


def _containers(every: tuple[Raw, ...], unread: list[str]) -> Iterable[Container]:
    some = every
    if len(every) > _MOST_CONTAINERS:
        first = tuple[Raw, ...]()
        if _GPUS in b"".join(every):
            first = tuple(islice((one for one in every if _GPUS in bytes(one)), _MOST_CONTAINERS))
        some = (*first, *every[: _MOST_CONTAINERS - len(first)])
    for raw in some:
        if len(raw) <= LONGEST_PART:
            yield decode(raw, type=Container)
            continue
        long = decode(raw, type=_Container)
        asked, ports = long.resources, tuple[ContainerPort, ...]()
        if len(long.ports) > LONGEST_PART:
            unread.append(_PORTS)
        elif not _absent(long.ports):
            ports = decode(long.ports, type=tuple[ContainerPort, ...])
        if len(asked.requests) + len(asked.limits) > LONGEST_PART:
            unread.append(_AMOUNTS)
            read = ResourceRequirements(_counted(asked.requests), _counted(asked.limits))
        else:
            read = ResourceRequirements(
                *[{} if _absent(one) else decode(one, type=Quantities) for one in (asked.requests, asked.limits)]
            )
        yield Container(long.name, long.image, read, ports, long.restart_policy)


def _counted(raw: Raw) -> Quantities:
    if _absent(raw):
        return {}
    said = decode(raw, type=_Counted)
    found: Quantities = {
        field.encode_name: value
        for field in fields(_Counted)
        if (value := getattr(said, field.name)) is not None and len(str(value)) <= _LONGEST_QUANTITY
    }
    for name, text, number in islice((one.groups() for one in _SLICES.finditer(raw)), MOST_RESOURCES):
        found[name.decode()] = (text or number).decode()
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
    msgspec.DecodeError, of which ValidationError; with `wire` None they are not read at all."""

    most: int
    wire: type[Any] | None = None
    short: Callable[[Any], Any] = _whole


_UNREAD = Long(LONGEST)
LONG: dict[type, Long] = {
    Pod: Long(LONGEST, _Long, _long_pod),
    ResourceClaim: Long(16 * 1024, _Claim, _long_claim),
    PersistentVolumeClaim: _UNREAD,
    PodDisruptionBudget: _UNREAD,
    PodGroup: _UNREAD,
    CompositePodGroup: _UNREAD,
    CoschedulingPodGroup: _UNREAD,
    VolcanoPodGroup: _UNREAD,
}
"""By what they are read as."""
