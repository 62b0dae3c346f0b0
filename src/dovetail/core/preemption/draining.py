# SPDX-License-Identifier: Apache-2.0
"""Draining: what becomes of the pods that run on nodes in maintenance, by `Maintenance.drain`.

Rules
- WaitForJobs: they run to their end.
- WaitForCheckpoint: a pod is moved once it has saved its work after the maintenance was asked for, and there is room
  for it on a node that stays in use. The room is kept for it before it is evicted (`preemption.moves`). Work counts as
  saved for `_FRESH_MS` after a reported checkpoint; where none was ever reported, once the pod has run for its declared
  interval since. A pod whose gang runs on without it needs no checkpoint. A pod is moved as by `consolidation`: it has
  a controller, no rules about other pods, no devices by claim, and was not moved a short time ago.
- Evict: the same until the start of the maintenance. From then on, or without a start at once, the pods are evicted,
  with room kept where there is some.
- A pod that ends before the start by its expected end, or that has less work left than it would repeat, stays, unless
  it has to be evicted.
- Units and protections are those of all evictions (`preemption.victims`): no pod that must not be preempted, none of a
  disruption budget without a disruption left, no job that was evicted a short time ago. A gang that cannot spare a pod
  goes as a whole.
- Waiting workloads come first: room that they can use is not kept for moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.decisions import Drain
from dovetail.core.model import Maintenance, Pod
from dovetail.core.placing.pods import Scope
from dovetail.core.preemption.drains import LOOK_MS
from dovetail.core.preemption.relocation import relocate
from dovetail.core.preemption.units import Unit
from dovetail.core.preemption.victims import Together, Victims
from dovetail.core.reasons import Sure
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE

_FRESH_MS = 600_000
_RESTART_MS = 60_000
"""How long a pod takes to end and to be created again, beside its declared start-up time."""
_TRIES = 8
"""How many searches for room one look may make."""


def decide(state: State) -> list[Drain]:
    """Evictions of pods on nodes in maintenance, one for each workload."""
    drains, now_ms = state.drains, state.now_ms
    if not (drains.leaving or state.cluster.nodes.in_maintenance):
        return []
    if late := drains.overdue(now_ms):
        stay(state, late)
    slots = drains.slots()
    if not slots or now_ms - drains.looked_ms < LOOK_MS:
        return []
    drains.looked_ms = now_ms
    return _Look(state, slots).decide()


def stay(state: State, uids: Sequence[str]) -> None:
    """The eviction of these pods failed: they stay where they are, and are no victims for a while."""
    for uid in uids:
        state.drains.leaving.pop(uid, None)
    state.moves.give_up(uids)
    state.reservations.spare(uids)


class _Look:
    """One look at the nodes `slots`."""

    def __init__(self, state: State, slots: dict[int, Maintenance]) -> None:
        self._state, self._slots = state, slots
        cluster, reservations = state.cluster, state.reservations
        placements = [cluster.placements[uid] for slot in slots for uid in cluster.on_slot.get(slot, ())]
        ending = reservations.excluded(reservations).union(state.drains.leaving)
        victims = Victims(state, "", "", ending, among=placements)
        self._units = [unit for unit in victims.units if not slots.keys().isdisjoint(unit.slots)]
        self._together = Together(state, victims.spare)
        self._where: Scope = reservations.beside(reservations, later=True)
        self._tries = 0

    def decide(self) -> list[Drain]:
        decided: list[Drain] = []
        gone: set[str] = set()
        drains, state = self._state.drains, self._state
        with state.cluster.trial():
            for unit in sorted(self._units, key=lambda unit: (unit.workload in drains.tried, unit.order)):
                if not gone.isdisjoint(unit.uids) or not self._together.admits(unit):
                    continue
                pods = [state.workloads.pods[uid] for uid in unit.uids]
                if not drains.may(len(pods), state.policy.drains_per_hour, state.now_ms):
                    continue
                drain = self._of(unit, pods)
                if drain is None:
                    continue
                self._together.take(unit)
                gone.update(unit.uids)
                self._begin(drain, pods)
                decided.append(drain)
            if self._tries < _TRIES:
                # All had their turn.
                drains.tried.clear()
        for drain in decided:
            self._keep(drain)
        return decided

    def _of(self, unit: Unit, pods: Sequence[Pod]) -> Drain | None:
        """The eviction of a unit; None where it has to wait."""
        maintenances = {slot: self._slots[slot] for slot in unit.slots if slot in self._slots}
        has_to = any(map(self._has_to_go, maintenances.values()))
        if not has_to and self._stays(unit, pods, maintenances):
            return None
        targets: tuple[str, ...] = ()
        if all(map(self._movable, pods)):
            targets = self._room(unit)
        if not targets and not has_to:
            return None
        names, slot = self._state.cluster.nodes.names, next(iter(maintenances))
        gang = "" if unit.workload.startswith(LONE) else unit.workload
        name = self._state.workloads.name_of(unit.workload)
        message = f"{names[slot]} is in maintenance, and {name} {'has room elsewhere' if targets else 'has to leave'}"
        return Drain(gang, unit.uids, names[slot], targets, unit.lost_milli_ms, message, self._state.steps)

    def _has_to_go(self, maintenance: Maintenance) -> bool:
        return maintenance.drain == "Evict" and maintenance.start_ms <= self._state.now_ms

    def _stays(self, unit: Unit, pods: Sequence[Pod], maintenances: dict[int, Maintenance]) -> bool:
        """Whether a unit that need not go yet is left alone."""
        state = self._state
        requested_ms = max(one.requested_ms for one in maintenances.values())
        if not (unit.elastic or all(self._saved(pod, requested_ms) for pod in pods)):
            return True
        starts_ms = [one.start_ms for one in maintenances.values() if one.start_ms]
        ends_ms = max(state.expected_ends.end_ms(state.cluster.placements[uid]) for uid in unit.uids)
        if len(starts_ms) == len(maintenances) and ends_ms <= min(starts_ms):
            return True
        return (
            ends_ms != FOR_EVER_MS and self._left_milli_ms(pods) <= unit.lost_milli_ms + _RESTART_MS * unit.rate_milli
        )

    def _left_milli_ms(self, pods: Sequence[Pod]) -> int:
        """The work that is left, in milli-GPU times ms, as far as it is known."""
        state, left_milli_ms = self._state, 0
        for pod in pods:
            ran_ms = max(0, state.now_ms - (pod.bound_ms or pod.created_ms))
            left = state.run_times.left_ms(pod.work, state.shares.pod_queues.of(pod), ran_ms)
            if left.sure is not Sure.UNKNOWN:
                left_milli_ms += state.shares.rate(pod.uid) * left.ran_ms
        return left_milli_ms

    def _saved(self, pod: Pod, requested_ms: int) -> bool:
        """Whether it has saved its work since then, and repeats little if it is moved now."""
        now_ms = self._state.now_ms
        if pod.checkpoint_ms:
            return pod.checkpoint_ms >= requested_ms and now_ms - pod.checkpoint_ms <= _FRESH_MS
        if pod.work.checkpoint_interval_ms:
            return now_ms >= max(requested_ms, pod.bound_ms) + pod.work.checkpoint_interval_ms
        return pod.work.movable is True

    def _movable(self, pod: Pod) -> bool:
        state = self._state
        alone = not (pod.request.scattered or pod.device_claims or pod.by_claim)
        again = state.moves.moved_recently(pod, state.now_ms, state.policy.move_again_ms)
        # The new pod of a job in a stopped queue would not start.
        stopped = state.shares.tree.stopped_by(state.shares.pod_queues.of(pod)) is not None
        return alone and bool(pod.owner) and pod.work.movable is not False and not (again or stopped)

    def _room(self, unit: Unit) -> tuple[str, ...]:
        """The nodes for the pods of the unit, which is placed there in the running trial; none where they do not fit
        or there is no time left to search."""
        if self._tries >= _TRIES or not self._where.size:
            return ()
        self._tries += 1
        self._state.drains.tried.add(unit.workload)
        step = relocate(self._state, unit, self._where)
        return tuple([move.target for move in step.moves]) if step is not None else ()

    def _begin(self, drain: Drain, pods: Sequence[Pod]) -> None:
        state = self._state
        deadline_ms = state.now_ms + state.policy.eviction_deadline_ms
        state.drains.begin(drain.uids, state.now_ms, deadline_ms)
        state.eviction_counts.note(map(state.workloads.job_of, pods), state.now_ms)

    def _keep(self, drain: Drain) -> None:
        """Keep the room for the pods that their owners create again."""
        if drain.targets:
            state, pods = self._state, self._state.workloads.pods
            grace_ms = max(pods[uid].work.grace_ms for uid in drain.uids)
            until_ms = state.now_ms + grace_ms + 2 * state.policy.eviction_deadline_ms
            pairs = zip(drain.uids, drain.targets, strict=True)
            state.moves.begin(pairs, state.now_ms, until_ms, state.policy.move_again_ms)
