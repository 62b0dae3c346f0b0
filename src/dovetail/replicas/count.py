# SPDX-License-Identifier: Apache-2.0
"""The number of replicas that an autoscaler should set: what is needed, but no more than can be placed now.

Rules
- The running scheduler's core decides what can be placed: it is asked what would happen if so many further replicas
  were created now (`dovetail whatif submit`), as a user of the namespace. Those that start at once, without an
  eviction, can be placed.
- What was promised to other workloads in the same pass is taken into the question, so that two are not promised the
  same GPUs.
- No more are asked for than the ResourceQuotas of the namespace admit: pods beyond them are not created.
- While replicas wait for room, no more are asked for: they would wait behind those.
- A lack of room takes no replica away: those that wait stay, as a node autoscaler adds nodes for them.
- What is not known has no number, so that an autoscaler leaves the workload as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError
from dovetail.kube.manifests.documents import Document, ManifestError
from dovetail.kube.manifests.workloads import expanded
from dovetail.kube.objects.views import WHAT_IFS
from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, ViewRequest, ask_view
from dovetail.monitoring.engine_load import EngineLoad
from dovetail.replicas.need import NeedTarget, need
from dovetail.replicas.quotas import read_quotas, room_in
from dovetail.replicas.workload import ServedWorkload, WorkloadError
from dovetail.views.whatif_types import Submit, WhatIf, WhatIfQuestion

MOST_MORE = 64
"""Further replicas that are asked about at once."""


class ReplicaCount(Struct, frozen=True):
    """The replicas of a workload "namespace/name": those that it has (`current`), of which `waiting` are on no node;
    those that are `needed`, `placeable` (those that it has and those that could start now), and `desired`. None: not
    known, for the reason in `because`."""

    workload: str
    workload_kind: str
    current: int
    waiting: int
    needed: int | None
    placeable: int | None
    desired: int | None
    because: str


async def count_of(
    client: Client, workload: ServedWorkload, loads: Mapping[str, EngineLoad], target: NeedTarget,
    promised: list[Document],
) -> ReplicaCount:  # fmt: skip
    """The number of replicas. `promised` are the further replicas of other workloads, to which those of this one are
    added. Raises WorkloadError, KubeError."""
    current, waiting = workload.replicas, workload.waiting
    wanted = need(current, workload.running, loads, target)
    needed, placeable, because = wanted.replicas, None, wanted.because
    if needed is not None and needed > current:
        if waiting:
            placeable = current
            because += f"; no more now: {waiting} wait for room"
        else:
            asked = min(needed - current, MOST_MORE)
            more, bound = await placed_now(client, workload, asked, promised)
            placeable = current + more
            if bound or placeable < needed:
                at_once = asked < needed - current and more == asked
                because += f"; {MOST_MORE} at once" if at_once else f"; {placeable} can be placed now"
            because += bound
    desired = needed if placeable is None or needed is None else min(needed, placeable)
    return ReplicaCount(
        f"{workload.namespace}/{workload.name}", workload.resource.kind, current, waiting, needed, placeable, desired,
        because,
    )  # fmt: skip


async def placed_now(
    client: Client, workload: ServedWorkload, number: int, promised: list[Document]
) -> tuple[int, str]:
    """How many of so many further replicas would be admitted and start now beside the `promised` ones, to which they
    are added, and what ResourceQuotas have to do with it, in words. Raises WorkloadError, KubeError."""
    name, prefix = f"{workload.resource.kind} {workload.namespace}/{workload.name}", f"copy{len(promised)}-"
    objects, words = _objects(workload, number, promised, prefix), ""
    try:
        quotas = await read_quotas(client, workload.namespace)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        words = f"; whether a ResourceQuota admits them is not known: {error}"
        quotas = []
    if quotas:
        before = _objects(workload, 0, promised, prefix) if promised else ()
        room = room_in(quotas, objects[len(before) :], before, number)
        if room.replicas < number:
            number, words = room.replicas, f"; {room.because}"
            if not number:
                return 0, words
            objects = _objects(workload, number, promised, prefix)
    body = encode(WhatIfQuestion(Submit(objects)))
    try:
        document = await ask_view(client, ViewRequest(WHAT_IFS, workload.namespace, body=body, alone=True))
        answer = decode_json(document.answer, WhatIf)
    except NotServed as error:
        raise WorkloadError(
            f"{name}: what can be placed is not known: {error}; it is there with the option --views of the scheduler, "
            "which a GPUStack sets unless spec.scheduler.views is false"
        ) from error
    except (NoView, NoSuchObject, JsonError) as error:
        raise WorkloadError(f"{name}: the scheduler does not answer what can be placed: {error}") from error
    own = f"{workload.namespace}/{prefix}"
    placed = sum(one.job.startswith(own) and one.effect == "starts now" for one in answer.jobs)
    if placed:
        promised.append(Document(name, workload.copies(placed, prefix)))
    return placed, words


def _objects(
    workload: ServedWorkload, number: int, promised: Sequence[Document], prefix: str
) -> tuple[dict[str, Any], ...]:
    """What the API server would have of the promised replicas, and then of so many further ones. Raises
    WorkloadError."""
    name = f"{workload.resource.kind} {workload.namespace}/{workload.name}"
    own = [Document(name, workload.copies(number, prefix))] if number else []
    try:
        made = expanded([*promised, *own])
    except ManifestError as error:
        raise WorkloadError(f"{name}: its pods cannot be made: {error}") from error
    for fault in made.faults:
        raise WorkloadError(f"{name}: its pods cannot be made: {fault}")
    return tuple([one.value for one in made.documents if isinstance(one.value, dict)])
