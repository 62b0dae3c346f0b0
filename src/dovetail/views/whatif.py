# SPDX-License-Identifier: Apache-2.0
"""What a change of the cluster would do: the look-ahead with the change and without it, and the differences.

Rules
- A change is a list of the core's events, applied to a copy. Nothing is written, and the state does not change.
- A drained node is cordoned and its pods are deleted, except pods that tolerate the cordon, as those of DaemonSets do.
  A deleted pod with a controller waits again as a new pod; one without a controller is gone. Pods of other schedulers
  are deleted and not followed. A note names each disruption budget that would delay the drain.
- Submitted objects are created now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cluster.nodes import UNSCHEDULABLE_TAINT
from dovetail.core.cycle import enter
from dovetail.core.events import (
    Event,
    GangChanged,
    LeaseRequestChanged,
    NodeChanged,
    PodChanged,
    PodRemoved,
    QueueChanged,
)
from dovetail.core.labels import matches, untolerated
from dovetail.core.model import GPU, Node, Pod
from dovetail.core.queues.types import MODEL_LABEL, Queue, Stop
from dovetail.core.reasons import When
from dovetail.core.state import State
from dovetail.views.forecast import forecast
from dovetail.views.forecast_types import Forecast, ForecastVictim, Start, Watch
from dovetail.views.jobs import request_job, restarted
from dovetail.views.lease_texts import alternative_text
from dovetail.views.leased import is_placeholder, key_of
from dovetail.views.leases import offer_rows
from dovetail.views.names import JobNotFound, nearest
from dovetail.views.priced_gpus import changed_nodes, submitted_gpus
from dovetail.views.queues import queue_named
from dovetail.views.whatif_types import Effect, QueueGain, WhatIf, WhatifOutcome

HOST = "kubernetes.io/hostname"
_SAME_MS = 60_000
"""Starts that differ by less are equal."""


class ChangeError(ValueError):
    """The change is not possible; the message has the reason."""


class Hypothesis(Struct, frozen=True):
    """A change. `jobs` are the workloads that it is about: the answer has them even without a difference. `left` has
    the nodes that pods of a workload leave. `notes` are what an operator must know besides. `added` and `removed` are
    nodes, `submitted` the workloads that it makes."""

    events: tuple[Event, ...]
    jobs: frozenset[str] = frozenset()
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    submitted: frozenset[str] = frozenset()


def whatif(state: State, change: Hypothesis, now_ms: int, watch: Watch = lambda started, waiting: None) -> WhatIf:
    """The difference that a change makes. `watch` gets the progress of both look-aheads, as in `forecast`."""
    base = take(state)
    changed = restore(state.policy, base)
    enter(changed, change.events, now_ms)
    without = forecast(base, state.policy, now_ms, watch=watch)
    with_it = forecast(take(changed), state.policy, now_ms, watch=watch)
    workloads = dict.fromkeys((*sorted(change.jobs), *with_it.starts, *without.starts))
    outcomes = [
        _outcome(changed, change, workload, without.starts.get(workload), with_it.starts.get(workload))
        for workload in workloads
    ]
    shown = [
        outcome for workload, outcome in zip(workloads, outcomes, strict=True)
        if outcome is not None and (workload in change.jobs or outcome.effect != "as before")
    ]  # fmt: skip
    before, after = set(without.victims), set(with_it.victims)
    return WhatIf(
        now_ms,
        tuple(shown),
        tuple(sorted(after - before, key=_by_time)),
        tuple(sorted(before - after, key=_by_time)),
        tuple(_gains(without, with_it)),
        sum(outcome is not None for outcome in outcomes) - len(shown),
        change.notes,
        without.whole and with_it.whole,
        0,
        tuple(changed_nodes(changed, change.added, change.removed)),
        tuple(submitted_gpus(changed, [with_it.starts[one] for one in with_it.starts if one in change.submitted])),
    )


def _outcome(
    changed: State, change: Hypothesis, workload: str, before: Start | None, after: Start | None
) -> WhatifOutcome | None:
    start = after or before
    if start is None:
        return None
    job = start.job
    refusal = after.refusal if after is not None else None
    return WhatifOutcome(
        job.name, job.queue, len(job.waiting), job.gpus_milli,
        _effect(before, after, bool(changed.workloads.members(workload))),
        before.expected if before is not None else None,
        after.expected if after is not None else None,
        before.state if before is not None else "",
        after.state if after is not None else "",
        change.left.get(workload, ()),
        after.places if after is not None else (),
        refusal.reason.code if refusal is not None else "",
        str(refusal) if refusal is not None else "",
        offer_rows(after.offers) if after is not None else (),
        alternative_text(after.granted) if after is not None and after.granted is not None else "",
        after.all_reduce if after is not None else None,
    )  # fmt: skip


def _effect(before: Start | None, after: Start | None, exists: bool) -> Effect:
    """The effect on a job; `exists`: it has pods with the change."""
    if after is None:
        return "as before" if exists else "gone"
    old_ms = before.expected.start_ms if before is not None else 0
    new_ms = after.expected.start_ms
    if after.at_once and (before is None or not before.at_once):
        return "starts now"
    if _never(after) and (before is None or not _never(before)):
        return "never starts"
    if not after.at_once and before is not None and before.at_once:
        return "no longer starts now"
    if before is None:
        return "waits"
    if _never(before) and not _never(after):
        return "can start"
    if new_ms and (not old_ms or new_ms <= old_ms - _SAME_MS):
        return "sooner"
    return "later" if old_ms and (not new_ms or new_ms >= old_ms + _SAME_MS) else "as before"


def _never(start: Start) -> bool:
    return start.state == When.NEVER


def _by_time(victim: ForecastVictim) -> tuple[int, str]:
    return victim.at_ms, victim.pod


def _gains(without: Forecast, with_it: Forecast) -> Iterable[QueueGain]:
    for queue in dict.fromkeys((*without.held_milli, *with_it.held_milli)):
        before, after = without.held_milli.get(queue, 0), with_it.held_milli.get(queue, 0)
        if before != after:
            yield QueueGain(queue, before, after)


def submit(state: State, events: Sequence[Event], now_ms: int) -> Hypothesis:
    """Create objects. Raises ChangeError if a pod, or a request for a lease, of that name exists."""
    known = {pod.key for pod in state.workloads.pods.values() if not is_placeholder(pod)}
    created: list[Event] = []
    uids: list[str] = []
    requests: list[str] = []
    for event in events:
        match event:
            case PodChanged(pod):
                if pod.key in known:
                    raise ChangeError(f"pod {pod.key} exists already")
                created.append(PodChanged(replace(pod, created_ms=now_ms)))
                uids.append(pod.uid)
            case GangChanged(gang):
                created.append(GangChanged(replace(gang, created_ms=now_ms)))
            case LeaseRequestChanged(request):
                if request.id in state.requests.negotiations or request.id in state.leases.live:
                    raise ChangeError(f"a request or a lease {request.id} exists already")
                created.append(LeaseRequestChanged(replace(request, created_ms=now_ms, answer=None)))
                requests.append(request.id)
            case _:
                created.append(event)
    changed = restore(state.policy, take(state))
    enter(changed, created, now_ms)
    jobs = [changed.workloads.workload_of(changed.workloads.pods[uid]) for uid in uids]
    jobs += [request_job(changed, changed.requests.negotiations[request_id]).workload for request_id in requests]
    return Hypothesis(tuple(created), frozenset(jobs), submitted=frozenset(jobs))


def drain(state: State, names: Sequence[str], now_ms: int) -> Hypothesis:
    """Cordon nodes and delete their pods. Raises JobNotFound for an unknown node."""
    records = [node_named(state, name) for name in names]
    events: list[Event] = [NodeChanged(replace(record, unschedulable=True)) for record in records]
    notes: list[str] = []
    leaving: list[Pod] = []
    for record in records:
        for uid in state.cluster.on_slot.get(state.cluster.nodes.slots[record.name], ()):
            pod = state.cluster.placements[uid].pod
            if is_placeholder(pod):
                notes.append(f"{key_of(pod)} stays on {record.name}: a cordon takes no lease back, maintenance does")
            elif untolerated((UNSCHEDULABLE_TAINT,), pod.request.tolerations) is None:
                notes.append(f"{pod.key} stays on {record.name}: it tolerates the cordon, as pods of DaemonSets do")
            else:
                leaving.append(pod)
    again: list[Pod] = []
    for pod in leaving:
        events.append(PodRemoved(pod.uid, now_ms))
        if not pod.managed:
            notes.append(f"{pod.key} is deleted; another scheduler binds its replacement")
        elif not pod.owner:
            notes.append(f"{pod.key} has no controller: nothing replaces it")
        else:
            again.append(pod)
            events.append(PodChanged(restarted(pod, now_ms)))
    notes += _budget_notes(state, leaving)
    changed = restore(state.policy, take(state))
    enter(changed, events, now_ms)
    left: dict[str, tuple[str, ...]] = {}
    for pod in again:
        workload = changed.workloads.workload_of(changed.workloads.pods[restarted(pod, now_ms).uid])
        left[workload] = tuple(dict.fromkeys((*left.get(workload, ()), pod.node)))
    return Hypothesis(
        tuple(events), frozenset(left), left, tuple(dict.fromkeys(notes)), removed=tuple(one.name for one in records)
    )


def _budget_notes(state: State, leaving: Iterable[Pod]) -> Iterable[str]:
    """A note for each PodDisruptionBudget that does not allow all of these pods to be evicted at once."""
    leaving = list(leaving)
    for budget in sorted(state.budgets.values(), key=lambda budget: budget.key):
        own = [
            pod for pod in leaving
            if pod.namespace == budget.namespace and budget.selector and matches(budget.selector, dict(pod.labels))
        ]  # fmt: skip
        if len(own) > budget.allowed:
            yield (
                f"the PodDisruptionBudget {budget.key} allows to evict {budget.allowed} of its {len(own)} pods there "
                "at once: the drain waits for it"
            )


def add_nodes(state: State, records: Iterable[Node]) -> Hypothesis:
    """Add nodes. Raises ChangeError if a node of that name exists."""
    events = []
    for record in records:
        slot = state.cluster.nodes.slots.get(record.name)
        if slot is not None and state.cluster.nodes.records[slot] is not None:
            raise ChangeError(f"node {record.name} exists already")
        events.append(NodeChanged(record))
    return Hypothesis(tuple(events), added=tuple(one.node.name for one in events))


def like(state: State, name: str, count: int, labels: Sequence[tuple[str, str]] = ()) -> Hypothesis:
    """Add `count` nodes like this one, empty and schedulable, with `labels` in place of its labels of the same keys.
    Raises JobNotFound."""
    model = node_named(state, name)
    taken = set(state.cluster.nodes.slots)
    names = (f"{name}-more-{i}" for i in range(1, count + len(taken) + 1))
    records = []
    for new in [one for one in names if one not in taken][:count]:
        own = dict(model.labels) | ({HOST: new} if HOST in dict(model.labels) else {}) | dict(labels)
        records.append(replace(model, name=new, labels=tuple(sorted(own.items())), unschedulable=False, gpus_out=0))
    return add_nodes(state, records)


def like_of_model(state: State, gpus: int, model: str) -> str:
    """The name of a node that offers `gpus` GPUs of a model whose label contains this text. Raises JobNotFound."""
    known: dict[str, str] = {}
    for record in state.cluster.nodes.records:
        offers = dict(record.allocatable).get(GPU, 0) if record is not None else 0
        if record is not None and offers:
            known.setdefault(f"{offers}x{dict(record.labels).get(MODEL_LABEL, '')}", record.name)
    for kind, name in sorted(known.items()):
        number, _, label = kind.partition("x")
        if int(number) == gpus and model.lower() in label.lower():
            return name
    known_text = f"there are {', '.join(sorted(known))}" if known else "no node offers whole GPUs"
    raise JobNotFound(f"there is no node with {gpus} GPUs of the model {model!r} to copy: {known_text}")


def node_named(state: State, name: str) -> Node:
    """The node of this name. Raises JobNotFound."""
    nodes = state.cluster.nodes
    slot = nodes.slots.get(name)
    record = nodes.records[slot] if slot is not None else None
    if record is None:
        known = [one.name for one in nodes.records if one is not None]
        raise JobNotFound(f"node {name} does not exist{nearest(name, known)}")
    return record


def stop(state: State, name: str, how: Stop) -> Hypothesis:
    """Stop the queue of this name, or let its jobs start again (""). Raises JobNotFound, and ChangeError where that
    changes nothing."""
    queue_named(state, name)
    written = state.shares.tree.written[name]
    if written.stop == how:
        raise ChangeError(f"queue {name} is {'stopped already' if how else 'not stopped'}{_above(state, name, how)}")
    return Hypothesis((QueueChanged(replace(written, stop=how)),))


def _above(state: State, name: str, how: Stop) -> str:
    by = state.shares.tree.stopped_by(name)
    return f": the queue {by.name} above it is" if not how and by is not None else ""


def quota(state: State, queue: Queue) -> Hypothesis:
    """Replace the queue of this name."""
    return Hypothesis((QueueChanged(queue),))
