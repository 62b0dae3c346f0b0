# SPDX-License-Identifier: Apache-2.0
"""Placeholder pods: an alternative as the pods of a workload, and a lease as bound pods that hold its devices.

Rules: each placeholder asks for `per_node` devices of one node. Several of them are a gang, one is a pod on its own. A
bound placeholder holds what is left of its devices beside the pods that run in the lease: it is put again, smaller or
greater, when one of them comes or goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dovetail.core.bargaining.types import (
    PREFIX,
    GpuLease,
    Holding,
    LeaseAlternative,
    LeaseRequest,
    Plane,
    ServiceClass,
)
from dovetail.core.model import CPU, MEMORY, Gang, NodeTerm, Pod, Request, Requirement, Toleration, Work
from dovetail.core.placing.gangs import Group
from dovetail.core.queues.types import MODEL_LABEL

_PRIORITIES = {ServiceClass.GUARANTEED: 2, ServiceClass.BURST: 1, ServiceClass.SCAVENGER: 0}
_OF_A_CLASS = 10_000
"""Within the queue of one plane the class comes before the priority of the request."""
_TOLERATIONS = (Toleration("nvidia.com/gpu", "Exists"),)
"""The admission plugin ExtendedResourceToleration gives it to pods that ask for GPUs."""


def _counts(alternative: LeaseAlternative) -> tuple[int, int]:
    """How many placeholders an alternative has at least, and at most."""
    return (alternative.least or alternative.count) // alternative.per_node, alternative.count // alternative.per_node


def _alone(alternative: LeaseAlternative) -> bool:
    """Whether one pod is all of the alternative: then it has no gang."""
    return alternative.count == alternative.per_node and not alternative.within


def gang_of(plane: Plane, request: LeaseRequest, number: str, alternative: LeaseAlternative) -> Gang | None:
    """The gang of an alternative; None where one pod is all of it."""
    if _alone(alternative):
        return None
    least, pods = _counts(alternative)
    return Gang(
        f"{PREFIX}{request.id}/{number}", plane.namespace, request.name, least, pods,
        required=alternative.within, created_ms=request.created_ms,
    )  # fmt: skip


def pods_of(
    plane: Plane, request: LeaseRequest, number: str, alternative: LeaseAlternative, firm: bool, term_ms: int
) -> list[Pod]:
    """The waiting placeholders of an alternative, for this term. `number` distinguishes them from the placeholders
    of other alternatives."""
    (_, count), begins = _counts(alternative), f"{PREFIX}{request.id}/{number}"
    first = Pod(
        f"{begins}/0", plane.namespace, request.name, request_of(alternative, alternative.per_node),
        priority=_PRIORITIES[alternative.service] * _OF_A_CLASS + request.priority, created_ms=request.created_ms,
        gang="" if _alone(alternative) else begins, queue=plane.leaf,
        work=work_of(plane, request, alternative, firm, term_ms), lease=request.id, offered=not firm,
    )  # fmt: skip
    return [first, *[replace(first, uid=f"{begins}/{index}") for index in range(1, count)]]


def group_of(alternative: LeaseAlternative, pod: Pod) -> Group:
    """The group of an alternative of which that is a placeholder: good for asking what it wants."""
    if _alone(alternative):
        return Group(pods=[pod], uniform=True)
    least, pods = _counts(alternative)
    return Group(pods=[pod] * pods, missing=least, room=pods, required=alternative.within, uniform=True)


def work_of(plane: Plane, request: LeaseRequest, alternative: LeaseAlternative, firm: bool, term_ms: int) -> Work:
    """The term is the limit of the run time; a guaranteed lease must not be preempted. It is never moved."""
    return Work(
        max_runtime_ms=term_ms,
        checkpoint_interval_ms=request.checkpoint_interval_ms,
        startup_ms=request.startup_ms,
        preemptible=alternative.service is not ServiceClass.GUARANTEED,
        preempts=firm,
        grace_ms=grace_of(plane, request, term_ms),
        movable=False,
    )


def grace_of(plane: Plane, request: LeaseRequest, term_ms: int) -> int:
    """The time to save the work: as requested, at most that of the plane, and at most half of the term."""
    return min(request.grace_ms or plane.grace_ms, plane.grace_ms, term_ms // 2)


def request_of(alternative: LeaseAlternative, devices: int) -> Request:
    """What so many devices of one node are as a request."""
    amounts = {alternative.resource: devices}
    if alternative.cpu_milli:
        amounts[CPU] = alternative.cpu_milli * devices
    if alternative.memory_bytes:
        amounts[MEMORY] = alternative.memory_bytes * devices
    models = (Requirement(MODEL_LABEL, "In", alternative.models),)
    return Request(
        resources=tuple(sorted((name, amount) for name, amount in amounts.items() if amount)),
        gpu_milli=alternative.gpu_milli if devices else 0,
        gpu_memory_mib=alternative.gpu_memory_mib if devices else 0,
        node_terms=(NodeTerm(models),) if alternative.models else None,
        tolerations=_TOLERATIONS,
        nvlink_required=alternative.nvlink and devices > 1,
    )


def bound(pod: Pod, holding: Holding, lease: GpuLease) -> Pod:
    """The placeholder of a live lease, with all its devices."""
    return replace(
        pod, node=holding.node, bound_ms=lease.start_ms, devices=holding.devices, instances=holding.instances,
        recorded=True, offered=False, work=replace(pod.work, grace_ms=lease.grace_ms),
    )  # fmt: skip


def of_lease(plane: Plane, lease: GpuLease) -> tuple[Gang | None, list[Pod]]:
    """Gang and placeholders of a live lease, made from its record alone."""
    request = LeaseRequest(
        lease.id, lease.plane, lease.name, (lease.alternative,), created_ms=lease.start_ms, grace_ms=lease.grace_ms,
        checkpoint_interval_ms=lease.checkpoint_interval_ms, startup_ms=lease.startup_ms,
    )  # fmt: skip
    term_ms = lease.end_ms - lease.start_ms
    waiting = pods_of(plane, request, "0", lease.alternative, True, term_ms)
    pods = [
        bound(replace(pod, uid=holding.uid, gang=_gang(lease)), holding, lease)
        for pod, holding in zip(waiting, lease.holdings, strict=True)
    ]
    gang = gang_of(plane, request, "0", lease.alternative)
    return (replace(gang, id=_gang(lease)) if gang is not None else None), pods


def _gang(lease: GpuLease) -> str:
    """The id of the gang of a lease: the ids of its placeholders without the last part."""
    return "" if _alone(lease.alternative) else lease.holdings[0].uid.rpartition("/")[0]


def left(whole: Pod, alternative: LeaseAlternative, taken: Sequence[Holding]) -> Pod:
    """What a placeholder still holds beside these parts of its devices, which pods have."""
    gpus = {gpu for part in taken for gpu in part.devices}
    instances = [one for part in taken for one in part.instances]
    devices = tuple([gpu for gpu in whole.devices or () if gpu not in gpus])
    rest = tuple([one for one in whole.instances if one not in instances])
    return replace(
        whole, request=request_of(alternative, len(rest) if whole.instances else len(devices)),
        devices=devices, instances=rest,
    )  # fmt: skip
