# SPDX-License-Identifier: Apache-2.0
"""Who of a queue that is at its limit has to give way to a job of a higher precedence in the same queue.

Rules: units of lower precedence are taken in their own order until the queue stays within its limits with the job in
their place, and then until the job has room; then whoever both can do without is left alone, the dearest first. Only
the limits of the queue itself count: what is freed below a limit of a queue above it could be taken by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from dovetail.core.placing.gangs import Group, SearchLimitReached
from dovetail.core.placing.pods import Scope
from dovetail.core.placing.preemption import Found, GaveUp, Impossible
from dovetail.core.placing.proof import OutOfProbes, Proof
from dovetail.core.placing.victims import Together, Unit, Victims, lesser
from dovetail.core.state import State


def find(
    state: State, root: str, group: Group, scope: Scope | None = None, ending: Collection[str] = ()
) -> Found | GaveUp | Impossible:
    """Search who has to give way so that the limits of the job's queue, and the room that there is, suffice for it."""
    pods = list(group.all_pods())
    queue, precedence = state.shares.queue_of(pods[0]), state.precedence(root)
    wanted = state.shares.wanted(pods)
    victims = Victims(state, queue, root, ending, [queue])
    together = Together(state, victims.spare)
    units: list[Unit] = []
    for unit in victims.units:
        if unit.precedence < precedence and together.admits(unit):
            together.take(unit)
            units.append(unit)
    if not all(pod.work.preempts for pod in pods) or _beyond(state, queue, wanted, units):
        return Impossible(f"those {lesser(state, queue)} in its queue that may give way do not hold enough")
    if not _beyond(state, queue, wanted, ()):
        return Impossible("the limit of a queue above its own is in the way")
    fewest = next(n for n in range(len(units) + 1) if not _beyond(state, queue, wanted, units[:n]))
    nominations = None
    kept = units
    proof = Proof(state.cluster, state.rows, group, scope, state.policy.search_limit, state.policy.probes)
    try:
        while (nominations := proof.placed_without(units[:fewest])) is None:
            if fewest == len(units):
                return Impossible(f"it would not fit if all {lesser(state, queue)} in its queue were gone")
            fewest = min(2 * fewest, len(units))
        kept = units[:fewest]
        for unit in sorted(kept, key=lambda unit: (-unit.weight, -unit.number)):
            fewer = [one for one in kept if one is not unit]
            if not _beyond(state, queue, wanted, fewer) and (placed := proof.placed_without(fewer)) is not None:
                kept, nominations = fewer, placed
    except SearchLimitReached:
        return GaveUp(proof.probes, f"the search for a placement was stopped after {state.policy.search_limit} domains")
    except OutOfProbes:
        if nominations is None:
            return GaveUp(proof.probes, "that is as many as are made")
    return Found(tuple(kept), nominations, "preempt", proof.probes)


def _beyond(state: State, queue: str, wanted: dict[str, int], gone: Sequence[Unit]) -> bool:
    """Whether the queue would be beyond a limit of its own with so much more and without these."""
    freed: Counter[str] = Counter()
    for uid in dict.fromkeys(uid for unit in gone for uid in unit.uids):
        freed.update(dict(state.shares.amounts(uid)))
    held = state.shares.allocated(queue)
    return any(
        wanted.get(resource, 0) and held.get(resource, 0) - freed[resource] + wanted[resource] > most
        for resource, most in state.shares.tree.queues[queue].limit
    )
