# SPDX-License-Identifier: Apache-2.0
"""Has the node agents repartition idle MIG GPUs for pods that wait for instances which do not exist.

Rules: the core proposes a layout (`placing.repartition`); the scheduler writes it to the spec of the GPUNode; the agent
applies it to idle GPUs and reports the result in the status. A pod must have waited for ten seconds first, as instances
are often freed in that time. A node applies one layout at a time. After a refusal a node gets no request for ten
minutes. Nodes without an agent are skipped. The patch carries the resourceVersion that was read: a layout that another
component has set since is not overwritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Struct

from dovetail.core.devices.mig.plan import InstanceChange
from dovetail.core.reasons import Repartition
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import Conflict, KubeError
from dovetail.kube.api.resources import GPU_NODES
from dovetail.kube.objects.topology import GPUNode, GpuStatus, MigInstance
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import metrics
from dovetail.scheduler.clock import Clock

_LOOK_EVERY_S = 5.0
_PATIENCE_MS = 10_000
_REFUSED_MS = 600_000
_encode = msgspec.json.Encoder().encode


class _PendingLayout(Struct):
    """A layout that a pod waits for. `since_ms`: since when; `layout_id`: the last request for it, "" for none."""

    proposal: Repartition
    since_ms: int
    layout_id: str = ""


class MigRepartitioner:
    """`propose` takes the core's proposal for a waiting pod; `run` requests the layouts that are due."""

    def __init__(self, client: Client, feed: Translator, clock: Clock, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._feed = feed
        self._clock = clock
        self._may_write = may_write
        self._pending: dict[str, _PendingLayout] = {}
        self._refused: dict[str, int] = {}
        """The time (ms) until which a node gets no request."""

    def propose(self, uid: str, proposal: Repartition | None) -> None:
        """Record the proposal for a pod; None: the pod no longer waits for instances."""
        if proposal is None:
            self._pending.pop(uid, None)
        elif uid in self._pending:
            self._pending[uid].proposal = proposal
        else:
            self._pending[uid] = _PendingLayout(proposal, self._clock.now_ms())

    async def run(self) -> None:
        """Request due layouts until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._may_write():
                await self.look()

    async def look(self) -> None:
        """Request all layouts that are due now."""
        now_ms = self._clock.now_ms()
        for uid, pending in list(self._pending.items()):
            if self._feed.reported(uid) is None:
                del self._pending[uid]
                continue
            node = self._feed.node_records.gpu_node(pending.proposal.node)
            if node is None or node.status.agent is None:
                continue
            self._note_refusal(node, pending, now_ms)
            patient = now_ms - pending.since_ms >= _PATIENCE_MS
            if patient and not _under_way(node) and now_ms >= self._refused.get(node.metadata.name, 0):
                await self._ask(node, pending, f"{uid}-{now_ms}")

    def _note_refusal(self, node: GPUNode, pending: _PendingLayout, now_ms: int) -> None:
        state = node.status.mig
        if state is not None and state.state == "refused" and state.id == pending.layout_id:
            pending.layout_id = ""
            self._refused[node.metadata.name] = now_ms + _REFUSED_MS
            metrics.log.warning("%s is not divided anew: %s", node.metadata.name, state.message)

    async def _ask(self, node: GPUNode, pending: _PendingLayout, layout_id: str) -> None:
        gpus = {gpu.index: gpu for gpu in node.status.gpus}
        changes = pending.proposal.changes
        wanted = [{"uuid": gpus[c.gpu].uuid, "instances": divided(gpus[c.gpu], c)} for c in changes if c.gpu in gpus]
        version = node.metadata.resource_version
        body = _encode({"metadata": {"resourceVersion": version}, "spec": {"mig": {"id": layout_id, "gpus": wanted}}})
        path = GPU_NODES.path(name=node.metadata.name)
        try:
            await self._client.request("PATCH", path, body, content_type=MERGE_PATCH)
        except KubeError as error:
            if not isinstance(error, Conflict):
                metrics.log.warning("%s cannot be divided anew: %s", node.metadata.name, error)
            return
        pending.layout_id, pending.since_ms = layout_id, self._clock.now_ms()
        metrics.LAYOUTS.inc()
        metrics.log.info("asked for a layout of MIG cards: %s", pending.proposal)


def _under_way(node: GPUNode) -> bool:
    wanted, state = node.spec.mig, node.status.mig
    if wanted is None:
        return False
    return state is None or state.id != wanted.id or state.state in ("pending", "applying")


def divided(gpu: GpuStatus, change: InstanceChange) -> list[dict[str, object]]:
    """All instances that the GPU has after the change, in the order of their starts."""
    kept = [one for one in gpu.mig or () if (one.profile, one.start) not in change.destroy]
    made = [MigInstance(profile, start) for profile, start in change.create]
    return [{"profile": one.profile, "start": one.start} for one in sorted([*kept, *made], key=lambda one: one.start)]
