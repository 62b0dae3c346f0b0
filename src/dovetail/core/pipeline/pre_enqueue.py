# SPDX-License-Identifier: Apache-2.0
"""What keeps a workload from being tried at all: input that cannot be honoured, gates, its gang's objects, its
queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from dovetail.core.bargaining.types import PREFIX
from dovetail.core.model import Pod
from dovetail.core.placing.pods import Scope
from dovetail.core.queues.budgets import civil
from dovetail.core.queues.tree import display
from dovetail.core.queues.types import DAY_MS, GPU, MODEL_LABEL, MODEL_PREFIX
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE, MOST_DEPTH, MOST_GANGS


def blocked(state: State, workload: str, queue: str, waiting: Collection[Pod], kinds: Iterable[Pod]) -> Refusal | None:
    """Why the workload, of which these pods wait, is not tried; None where it is. `queue` is that of its first pod,
    which may run; `kinds` are one of each kind of those that wait."""
    avoided = state.cluster.avoided
    for pod in waiting if avoided else kinds:
        if pod.problem is not None:
            return Refusal(Reason.INVALID, When.NEVER, f"{pod.key}: {pod.problem}")
        if pod.uid in avoided and "" in avoided[pod.uid]:
            return Refusal(Reason.BIND_BACKOFF, When.NOT_YET, f"{pod.key} could not be bound a moment ago")
        if pod.held:
            return Refusal(Reason.HELD, When.NOT_YET)
    if (refusal := _in_gang(state, workload, waiting)) is not None:
        return refusal
    return _in_queue(state, queue, kinds)


def stopped(state: State, queue: str, members: Iterable[Pod]) -> Refusal | None:
    """Why the workload with these pods does not start in the queue. Where a part of it runs the rest may start, unless
    the queue is drained: the job has started already, and would wait for the rest on its GPUs."""
    by = state.shares.tree.stopped_by(queue)
    placements = state.cluster.placements
    if by is None or (by.stop != "HoldAndDrain" and any(pod.uid in placements for pod in members)):
        return None
    if by.stop:
        return Refusal(Reason.QUEUE_STOPPED, When.NOT_YET, repr(by.name))
    year, month, day = civil(state.shares.tree.used_up[by.name] // DAY_MS)
    return Refusal(Reason.QUEUE_BUDGET, When.NOT_YET, f"{by.name!r}, until {year}-{month:02}-{day:02}")


def outside(kinds: Iterable[Pod]) -> Refusal | None:
    """Why pods that name a lease are not placed as others are: where the broker does not place them, it is not live."""
    for pod in kinds:
        if pod.lease and not pod.uid.startswith(PREFIX):
            return Refusal(Reason.LEASE_MISSING, When.NOT_YET, repr(pod.lease))
    return None


def _in_gang(state: State, workload: str, waiting: Iterable[Pod]) -> Refusal | None:
    gangs = state.workloads.gangs
    if workload.startswith(LONE):
        for pod in waiting:
            if pod.gated:
                return Refusal(Reason.GATED, When.NOT_YET)
            if pod.deleting:
                return Refusal(Reason.DELETING, When.NEVER)
        return None
    tree = state.workloads.tree(workload)
    if len(tree) > MOST_GANGS:
        return Refusal(
            Reason.INVALID, When.NEVER, f"{workload!r} has too many gangs below it; the limit is {MOST_GANGS - 1}"
        )
    for gang_id in tree:
        gang = gangs.get(gang_id)
        if gang is None:
            return Refusal(Reason.GANG_MISSING, When.NOT_YET, repr(gang_id))
        if gang.problem is not None:
            return Refusal(Reason.INVALID, When.NEVER, f"{gang.namespace}/{gang.name}: {gang.problem}")
        if gang.parent and gang_id == workload:
            missing = gang.parent not in gangs
            what = "does not exist" if missing else f"lies too deep: {MOST_DEPTH} can be below each other"
            if state.workloads.circles(gang_id):
                what = "is below itself: the parents form a cycle"
            when = When.NOT_YET if missing else When.NEVER
            return Refusal(Reason.GANG_MISSING, when, f"the parent {gang.parent!r} of {gang_id!r} {what}")
    return None


def _in_queue(state: State, first: str, kinds: Iterable[Pod]) -> Refusal | None:
    shares, tree = state.shares, state.shares.tree
    named: dict[str, dict[str, None]] = {}
    for pod in kinds:
        named.setdefault(shares.pod_queues.of(pod), {})[pod.namespace] = None
    if len(named) > 1:
        return Refusal(Reason.QUEUES_MIXED, When.NEVER, ", ".join(map(repr, named)))
    for queue, namespaces in named.items():
        if queue not in tree.written:
            return Refusal(Reason.QUEUE_MISSING, When.NOT_YET, repr(queue))
        if (problem := tree.problem(queue)) is not None:
            return Refusal(Reason.QUEUE_INVALID, When.NOT_YET, f"{queue}: {problem}")
        if not tree.leaf(queue):
            below = ", ".join(tree.children(queue))
            return Refusal(Reason.QUEUE_NOT_LEAF, When.NEVER, f"{queue!r} holds {below}")
        for namespace in namespaces:
            labels = state.cluster.peers.labels_of(namespace)
            for name in tree.path(queue):
                if not tree.admits(name, namespace, labels):
                    return Refusal(Reason.QUEUE_FORBIDDEN, When.NOT_YET, f"{namespace} may not use {name!r}")
        if queue != first:
            # Limits, guarantees and victims are those of one queue.
            detail = f"{queue!r}, and {first!r} for those of its pods that run"
            return Refusal(Reason.QUEUES_MIXED, When.NOT_YET, detail)
    return None


def beyond(state: State, workload: str, queue: str, more: Mapping[str, int], fixed: bool) -> Refusal | None:
    """Why so much more must not be placed for the workload in the queue: a limit, or, with `fixed` (it must not be
    preempted), a guarantee."""
    quota, promised = state.shares.quota, state.pledges.promised(workload)
    found, reason, what = quota.beyond_limit(queue, more, promised), Reason.QUEUE_LIMIT, "limit"
    if found is None and fixed:
        found, reason, what = quota.beyond_guarantee(queue, more), Reason.BEYOND_GUARANTEE, "guarantee"
    if found is None:
        return None
    name, resource, wanted, most = found
    alone = more[resource]
    detail = f"{name!r} would hold {display(resource, wanted)} of {resource}, its {what} is {display(resource, most)}"
    if alone > most:
        return Refusal(reason, When.NEVER, f"{detail}; the job alone wants {display(resource, alone)}")
    return Refusal(reason, When.NOT_YET, detail)


def barred_models(state: State, queue: str, wanted: Mapping[str, int]) -> frozenset[str]:
    """The GPU models of which the queue may have no more."""
    shares = state.shares
    if not wanted.get(GPU):
        return frozenset()
    return frozenset(
        name.removeprefix(MODEL_PREFIX)
        for above in shares.path(queue)
        for name, most in shares.tree.queues[above].limit
        if name.startswith(MODEL_PREFIX) and shares.allocated(above).get(name, 0) + wanted[GPU] > most
    )


def within_models(state: State, queue: str, wanted: Mapping[str, int], scope: Scope | None) -> Scope | None:
    """The scope without the nodes of GPU models of which the queue may have no more."""
    barred, nodes = barred_models(state, queue, wanted), state.cluster.nodes
    if not barred:
        return scope
    slots = range(nodes.used) if scope is None else scope.tolist()
    return np.array([slot for slot in slots if nodes.labels[slot].get(MODEL_LABEL) not in barred], dtype=np.int64)
