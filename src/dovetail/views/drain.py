# SPDX-License-Identifier: Apache-2.0
"""What a maintenance of nodes does to the pods that run there, and when the nodes are empty: the look-ahead with it.

Rules
- The nodes are in maintenance from now on, and nothing else changes. Nothing is written.
- A node is empty when no pod of ours runs there, and no pod that holds GPUs. Other pods of other schedulers, such as
  those of DaemonSets, are counted and not followed.
- A checkpoint that will be reported is not predicted: of pods that report theirs the end is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cluster.placement import Placement
from dovetail.core.cycle import enter
from dovetail.core.events import NodeChanged
from dovetail.core.model import Maintenance, Pod
from dovetail.core.queues.types import GPU
from dovetail.core.reasons import Expected, Sure
from dovetail.core.state import State
from dovetail.views.drain_types import ENDS, EVICTED, MOVES, STAYS, DrainedNode, DrainedPod, DrainPlan
from dovetail.views.forecast import forecast
from dovetail.views.forecast_types import Forecast
from dovetail.views.jobs import job_and_name
from dovetail.views.leased import key_of
from dovetail.views.names import nearest

_REVOKED = "the lease is taken back: its agent has until then to save its work"
_HAS_ROOM, _NO_ROOM = "room is kept for it elsewhere", "no other node has room for it: it waits"
_MINUTE = 60_000_000
_MOMENTS = 128
"""Ten days, as moments are further apart the later they are."""
_ORDER = (Sure.KNOWN, Sure.LEARNED, Sure.UNKNOWN)


class UnknownNode(ValueError):
    """There is no such node; the message names similar ones."""


def drain_plan(state: State, names: Sequence[str], maintenance: Maintenance, now_ms: int) -> DrainPlan:
    """The plan for these nodes. Raises UnknownNode."""
    for name in names:
        slot = state.cluster.nodes.slots.get(name)
        if slot is None or state.cluster.nodes.records[slot] is None:
            raise UnknownNode(f"no node is called {name}{nearest(name, state.cluster.nodes.slots)}")
    copy = restore(state.policy, take(state))
    records = {name: copy.cluster.nodes.records[copy.cluster.nodes.slots[name]] for name in names}
    events = [NodeChanged(replace(one, maintenance=maintenance)) for one in records.values() if one is not None]
    enter(copy, events, now_ms)
    followed = {name: [one for one in _on(copy, name) if _followed(one)] for name in records}
    watched = [one.uid for placements in followed.values() for one in placements]
    found = forecast(take(copy), copy.policy, now_ms, (), most=_MOMENTS, pods=watched)
    shown = _Shown(copy, found, maintenance)
    nodes = tuple(shown.node(name, placements) for name, placements in followed.items())
    gone = [copy.cluster.placements[uid] for uid in found.drained if uid in copy.cluster.placements]
    elsewhere = tuple(shown.pod(one) for one in gone if one.uid not in set(watched))
    pods = [*(pod for node in nodes for pod in node.pods), *elsewhere]
    return DrainPlan(
        nodes,
        elsewhere,
        tuple(sorted({pod.job for pod in pods})),
        tuple(sorted({pod.queue for pod in pods if pod.queue})),
        sum(pod.lost_gpu_minutes for pod in pods),
    )


def _on(state: State, name: str) -> Iterable[Placement]:
    cluster = state.cluster
    return [cluster.placements[uid] for uid in cluster.on_slot.get(cluster.nodes.slots[name], ())]


def _followed(placement: Placement) -> bool:
    return placement.pod.managed or placement.has_gpus or bool(placement.slices or placement.grants)


class _Shown:
    """The nodes and pods of one plan."""

    def __init__(self, state: State, found: Forecast, maintenance: Maintenance) -> None:
        self._state, self._found, self._maintenance = state, found, maintenance

    def node(self, name: str, placements: Sequence[Placement]) -> DrainedNode:
        state = self._state
        pods = sorted(map(self.pod, placements), key=lambda one: (one.left_ms == 0, one.left_ms))
        others = sum(1 for one in _on(state, name) if not _followed(one))
        slot = state.cluster.nodes.slots[name]
        gpus = int(state.cluster.nodes.allocatable[state.cluster.nodes.column("nvidia.com/gpu"), slot])
        if not pods:
            return DrainedNode(name, gpus, self._found.now_ms, Sure.KNOWN, "it is empty now", (), others)
        endless, last = [one.pod for one in pods if not one.left_ms], pods[-1]
        if endless:
            more = f" and {len(endless) - 1} more" if len(endless) > 1 else ""
            basis = f"it is not known when {endless[0]}{more} will leave"
            return DrainedNode(name, gpus, 0, Sure.UNKNOWN, basis, tuple(pods), others)
        sure = max((one.sure for one in pods), key=_ORDER.index)
        return DrainedNode(name, gpus, last.left_ms, sure, f"when {last.pod} {last.what}", tuple(pods), others)

    def pod(self, placement: Placement) -> DrainedPod:
        state, pod = self._state, placement.pod
        end = self._found.ends.get(pod.uid, Expected(Sure.UNKNOWN, 0, self._why_unknown(pod)))
        drained = self._found.drained.get(pod.uid)
        what, basis = ENDS if end.start_ms else STAYS, end.basis
        if drained is not None:
            what, basis = (MOVES, _HAS_ROOM) if drained.moves else (EVICTED, _REVOKED if pod.lease else _NO_ROOM)
        return DrainedPod(
            key_of(pod),
            job_and_name(state, pod)[1],
            state.shares.pod_queues.of(pod) if pod.managed else "",
            pod.node,
            dict(state.shares.amounts(pod.uid)).get(GPU, 0) or 1000 * placement.gpu_bits.bit_count(),
            what,
            end.start_ms,
            end.sure,
            basis,
            -(-drained.lost_milli_ms // _MINUTE) if drained is not None else 0,
        )

    def _why_unknown(self, pod: Pod) -> str:
        why = "it runs longer than its run time limit" if pod.work.max_runtime_ms else "it declares no run time"
        if self._maintenance.drain != "WaitForCheckpoint":
            return why
        if not pod.managed:
            return f"{why}, and is of another scheduler"
        if not pod.owner:
            return f"{why}, and no controller would create it again"
        if not (pod.checkpoint_ms or pod.work.checkpoint_interval_ms or pod.work.movable):
            return f"{why} and no checkpoints"
        return why
