# SPDX-License-Identifier: Apache-2.0
"""The pods that hold GPUs and devices: whole GPUs, MIG instances, shares of a GPU, devices by claim.

Rules: a MIG instance is written as GPU/PROFILE@START, a GPU as its index, a device by claim as DRIVER/POOL/DEVICE.
Instances and GPUs are those of the scheduler's state; they are certain only if the pod's annotation records them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from heapq import nsmallest
from operator import itemgetter

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement, indices
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.dra.types import Allocation, Grant
from dovetail.core.model import CPU, GPU, MEMORY, WHOLE_GPU_MILLI
from dovetail.core.placing.refusals import Verdict
from dovetail.core.quantities import display
from dovetail.core.reasons import Reason, When
from dovetail.kube.nodes.instances import shown
from dovetail.views.held_types import DEVICES, SHARE, DeviceHolder, HeldPart, HolderRefused
from dovetail.views.leased import key_of

SHOWN_HOLDERS = 8
_ORDER = {GPU: 0, CPU: 1, MEMORY: 2}


def parts_of(cluster: Cluster, placement: Placement) -> tuple[HeldPart, ...]:
    """What a placed pod holds besides whole GPUs."""
    instances = [HeldPart("instance", shown(one)) for one in cluster.slices.instances(placement)]
    known = placement.pod.devices is not None or not placement.pod.node
    gpus = indices(placement.share_bits)
    shares = [HeldPart("share", str(gpu) if known else "", placement.share_milli) for gpu in gpus]
    claimed = [
        HeldPart("claimed", device_of(one.driver, one.pool, one.device)) for one in grants_of(cluster, placement)
    ]
    return (*instances, *shares, *claimed)


def grants_of(cluster: Cluster, placement: Placement) -> Iterator[Grant]:
    """The devices that are allocated to the claims of a placed pod."""
    decided = {grant.claim: grant.allocation for grant in placement.grants}
    for key in dict.fromkeys((*placement.pod.device_claims, *decided)):
        claim = cluster.claims.claims.get(key)
        from_status: Allocation | None = claim.allocation if claim is not None else None
        allocation = from_status or decided.get(key)
        yield from allocation.grants if allocation is not None else ()


def device_of(driver: str, pool: str, device: str) -> str:
    return f"{driver}/{pool}/{device}"


def holders(
    cluster: Cluster, asked: Iterable[str], found: Iterable[Verdict], refused: Iterable[HolderRefused]
) -> tuple[DeviceHolder, ...]:
    """The pods that hold most of what a pod lacks, on nodes that could otherwise take it. `asked` are the resources
    that it requests. Of devices by claim, only the `refused` ones count."""
    lacking = {*asked, *(device for one in refused for device in one.devices)}
    amounts: list[tuple[tuple[int, int, str, str], Placement, Verdict]] = []
    for verdict in found:
        count_of = _COUNTS.get(verdict.reason)
        if count_of is None or verdict.when is When.NEVER:
            continue
        resource = _ONLY.get(verdict.reason, verdict.detail)
        if verdict.reason is Reason.INSUFFICIENT and resource not in lacking:
            continue
        order = _ORDER.get(resource, 3)
        for slot in verdict.slots.tolist():
            for uid in cluster.on_slot.get(slot, ()):
                placement = cluster.placements[uid]
                if count := count_of(cluster, placement, resource, lacking):
                    key = order, -count, key_of(placement.pod), cluster.nodes.names[slot]
                    amounts.append((key, placement, verdict))
    most = nsmallest(SHOWN_HOLDERS, amounts, key=itemgetter(0))
    return tuple(_holder(cluster, placement, verdict, -key[1], lacking) for key, placement, verdict in most)


def _requested(_cluster: Cluster, placement: Placement, resource: str, _lacking: Set[str]) -> int:
    for name, count in placement.shape.request.resources:
        if name == resource:
            return count
    return 0


def _shared(_cluster: Cluster, placement: Placement, _resource: str, _lacking: Set[str]) -> int:
    return placement.share_milli if placement.share_bits else 0


def _claimed(cluster: Cluster, placement: Placement, _resource: str, lacking: Set[str]) -> int:
    return len(_claimed_of(cluster, placement, lacking))


def _claimed_of(cluster: Cluster, placement: Placement, lacking: Set[str]) -> tuple[str, ...]:
    grants = [one for one in grants_of(cluster, placement) if not one.admin_access]
    held = (device_of(one.driver, one.pool, one.device) for one in grants)
    return tuple(device for device in held if device in lacking)


_COUNTS = {Reason.INSUFFICIENT: _requested, Reason.GPU_SHARE: _shared, Reason.DEVICES: _claimed}
"""How much a pod holds of what a verdict of this reason names."""
_ONLY = {Reason.GPU_SHARE: SHARE, Reason.DEVICES: DEVICES}
"""What a verdict of this reason is about; the others name it."""


def _holder(cluster: Cluster, placement: Placement, verdict: Verdict, count: int, lacking: Set[str]) -> DeviceHolder:
    """The holder of so much of what the verdict names."""
    resource, amount, which = _ONLY.get(verdict.reason, verdict.detail), str(count), tuple[str, ...]()
    if verdict.reason is Reason.INSUFFICIENT:
        amount = display(resource, count)
        if resource.startswith(RESOURCE_PREFIX):
            which = tuple(map(shown, cluster.slices.instances(placement)))
    elif verdict.reason is Reason.GPU_SHARE:
        amount, which = f"{count}/{WHOLE_GPU_MILLI}", tuple(map(str, indices(placement.share_bits)))
    else:
        which = _claimed_of(cluster, placement, lacking)
    node, waits = cluster.nodes.names[placement.slot], not placement.pod.node
    return DeviceHolder(key_of(placement.pod), node, resource, amount, which, waits)


def only(verdict: Verdict, slot: int) -> Verdict:
    """The verdict, only for the node in this slot."""
    return replace(verdict, slots=np.array([slot]))
