# SPDX-License-Identifier: Apache-2.0
"""Queue draining: the jobs that run in queues that are stopped with HoldAndDrain are evicted.

Rules
- Units and protections are those of all evictions (`preemption.victims`): no pod that must not be preempted, none of a
  disruption budget without a disruption left, none that has run for less than the least run time of its queue, no job
  that was evicted a short time ago. A gang goes as a whole where that may be, else the pods that it can spare. A lease
  is revoked. What is protected runs on, and is tried again after a while.
- An admin has asked for it, so no rate bounds it; one look evicts at most `_MOST_PODS` pods, and the first workload.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.decisions import Drain
from dovetail.core.preemption.drains import LOOK_MS
from dovetail.core.preemption.units import Unit
from dovetail.core.preemption.victims import Together, Victims
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE

_MOST_PODS = 1024


def decide(state: State) -> list[Drain]:
    """Evictions of jobs of drained queues, one for each workload."""
    drains, now_ms = state.drains, state.now_ms
    queues = drains.queues()
    if not queues or now_ms - drains.looked_in_queues_ms < LOOK_MS:
        return []
    drains.looked_in_queues_ms = now_ms
    queue_of = state.shares.pod_queues.of
    placements = [
        one for one in state.cluster.placements.values() if one.pod.managed and queue_of(one.pod) in queues
    ]  # fmt: skip
    ending = state.reservations.excluded(state.reservations).union(drains.leaving)
    victims = Victims(state, "", "", ending, among=placements)
    return _evicted(state, [unit for unit in victims.units if unit.queue in queues], victims.spare, queues)


def _evicted(state: State, units: Sequence[Unit], spare: Sequence[int], queues: dict[str, Queue]) -> list[Drain]:
    """Evict the units: whole workloads first, those that lose the least work before others."""
    decided: list[Drain] = []
    gone: set[str] = set()
    together = Together(state, spare)
    deadline_ms = state.now_ms + state.policy.eviction_deadline_ms
    for unit in sorted(units, key=lambda unit: (unit.elastic, unit.order)):
        if decided and len(gone) + len(unit.uids) > _MOST_PODS:
            break
        if not gone.isdisjoint(unit.uids) or not together.admits(unit):
            continue
        together.take(unit)
        gone.update(unit.uids)
        state.drains.leaving |= dict.fromkeys(unit.uids, deadline_ms)
        pods = [state.workloads.pods[uid] for uid in unit.uids]
        state.eviction_counts.note(map(state.workloads.job_of, pods), state.now_ms)
        gang = "" if unit.workload.startswith(LONE) else unit.workload
        message = f"queue {queues[unit.queue].name!r} is stopped, and its jobs are evicted"
        lost = unit.lost_milli_ms
        decided.append(Drain(gang, unit.uids, "", (), lost, message, state.steps, unit.queue))
    return decided
