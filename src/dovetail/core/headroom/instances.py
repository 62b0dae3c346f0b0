# SPDX-License-Identifier: Apache-2.0
"""The pods that one more instance of a workload would have: those that its newest instance needs, as if they waited.

Rules: an instance is a gang with the gangs below it, by its least numbers, else a pod. It waits for nothing, and has
the volumes that any node reaches. What it would claim (devices by claim) does not exist yet, so no room for it can be
proven, and none is kept.
"""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core.headroom.table import HEADROOM_PREFIX
from dovetail.core.model import Pod
from dovetail.core.placing.gangs import Group
from dovetail.core.workloads.index import LONE, WorkloadIndex

CLAIMS = "its pods claim devices, and claims of instances to come do not exist yet"
INCOMPLETE = "its newest instance lacks pods"


def instance(index: WorkloadIndex, model: Pod, key: str, number: int) -> Group | str:
    """The group of one more instance like that of this pod; why it is not known, in words."""
    workload = index.workload_of(model)
    members = [model] if workload.startswith(LONE) else index.members(workload)
    if any(pod.device_claims or pod.by_claim for pod in members):
        return CLAIMS
    begins = f"{HEADROOM_PREFIX}{key}/{number}/"
    if workload.startswith(LONE) or workload not in index.gangs:
        return Group(pods=[_to_come(model, begins)], uniform=True)
    by_gang: dict[str, list[Pod]] = {}
    for pod in sorted(members, key=lambda pod: (-pod.priority, pod.created_ms, pod.uid)):
        by_gang.setdefault(pod.gang, []).append(pod)
    return _group(index, workload, by_gang, begins) or INCOMPLETE


def _group(index: WorkloadIndex, gang_id: str, by_gang: dict[str, list[Pod]], begins: str) -> Group | None:
    gang, top = index.gangs[gang_id], index.top(gang_id)
    below = [one for one in index.tree(top) if one in index.gangs and index.gangs[one].parent == gang_id]
    parts = [_group(index, one, by_gang, begins) for one in below if one != top]
    children = [part for part in parts if part is not None]
    own = by_gang.get(gang_id, [])
    least = gang.min_count if own or not parts else 0
    needed = gang.min_groups or len(parts)
    if len(own) < least or len(children) < needed:
        return None
    return Group(
        pods=[_to_come(pod, begins) for pod in own[:least]], missing=least, room=least, groups=children[:needed],
        min_groups=gang.min_groups, required=gang.required, preferred=gang.preferred,
    )  # fmt: skip


def _to_come(pod: Pod, begins: str) -> Pod:
    return replace(
        pod, uid=begins + pod.uid, node="", bound_ms=0, nominated_node="", gang="", gated=False, deleting=False,
        held=False, claims=(), own_volumes=(), own_device_claims=(), devices=None, instances=(), recorded=False,
    )  # fmt: skip
