# SPDX-License-Identifier: Apache-2.0
"""What a workload wants, as the key by which refusals are remembered.

Rule: all that a remembered answer reads is in here; a workload about which an answer would depend on more has none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dovetail.core.headroom import rooms
from dovetail.core.model import Pod
from dovetail.core.pipeline import pre_enqueue
from dovetail.core.pipeline.equivalence import Signature
from dovetail.core.placing import filters
from dovetail.core.placing.gangs import Group, fewest, shapes_of
from dovetail.core.state import State


def wanted_by(state: State, queue: str, group: Group, workload: str = "") -> Hashable | None:
    """What the group wants in this queue; None where its pods differ beyond their shapes. `workload` is the one that it
    is, "" for none: of a replica that is spread, where it would go depends on the others of its object."""
    wanted, gang = _wanted(state, queue, group), state.workloads.gangs.get(workload)
    if wanted is not None and state.headrooms.rooms and (pods := group.all_pods()):
        # Whose headroom it may not take, and which is its own.
        own = state.headrooms.of(pods[0])
        wanted = wanted, rooms.respected(state, pods, queue), own.key if own is not None else ""
    if wanted is None or gang is None or not gang.spread:
        return wanted
    return wanted, gang.spread, gang.namespace, state.workloads.made_for(workload)


def _wanted(state: State, queue: str, group: Group) -> Hashable | None:
    cluster = state.cluster
    if not state.policy.remember_refusals or group.groups or group.held:
        return None
    pods: Sequence[Pod] = group.pods[:1] if group.uniform else state.workloads.distinct(group.pods)
    if cluster.avoided or cluster.rejections or cluster.peers.carriers:
        # Which nodes refused them, and which pods keep them away, differs between pods of one kind.
        pods = group.pods
    if any(pod.claims for pod in pods):
        return None
    if len(group.pods) == 1 and group.missing == 1 and not group.required:
        # Preferred levels keep no single pod from a node.
        shape = cluster.shape_of(pods[0])
        return None if filters.hindered(cluster, shape, pods) else (shape.id, _barred(state, queue, group.pods))
    wanted = shapes_of(cluster, group)
    if any(filters.hindered(cluster, shape, pods) for shape, _ in wanted):
        return None
    counts = tuple([(shape.id, count) for shape, count in wanted])
    barred = _barred(state, queue, fewest(group))
    return counts, group.missing, group.room, group.required, group.preferred, barred


def _barred(state: State, queue: str, pods: Sequence[Pod]) -> frozenset[str]:
    """The GPU models of which the queue may have no more: what does not fit away from them may fit for others."""
    if not state.shares.quota.limited(queue):
        return frozenset()
    return pre_enqueue.barred_models(state, queue, state.shares.wanted(pods))


def signature_of(
    state: State, workload: str, queue: str, group: Group, wanted: Hashable | None, kinds: Sequence[Pod]
) -> Signature | None:
    """The signature of the workload, of which this group with `wanted` is tried and `kinds` are its different pods;
    None where it has none, or where room is held or kept for it: then others are refused for that, and it is not."""
    if wanted is None or workload in state.reservations.by_workload or state.headrooms.of(kinds[0]) is not None:
        return None
    return sought_as(state, workload, queue, group, wanted, kinds)


def sought_as(
    state: State, workload: str, queue: str, group: Group, wanted: Hashable, kinds: Sequence[Pod]
) -> Signature:  # fmt: skip
    """The same for a workload that has one, also if it got room since."""
    preempts = all(pod.work.preempts for pod in kinds)
    work = next(iter(fewest(group)), group.pods[0]).work if state.policy.moves_per_hour else None
    return Signature(wanted, queue, state.precedence(workload), fixed(state, group.pods), preempts, work)


def fixed(state: State, pods: Sequence[Pod]) -> bool:
    """Whether some of them must not be preempted."""
    return not all(map(state.shares.pod_queues.preemptible, state.workloads.distinct(pods)))
