# SPDX-License-Identifier: Apache-2.0
"""What a change of the cluster would do: the same look ahead with it and without it, and what differs.

Rules: a change is a list of the core's own events, told to a copy. Nothing is written, and the state stays as it is.
- A drained node is cordoned, and its pods leave it, but for those that tolerate a cordon: DaemonSets' pods do. Who has
  a controller waits again as a new pod; who has none is gone for good. Pods of other schedulers leave and are not
  followed. What budgets of disruptions would not allow at once is told.
- Submitted objects are as if they were made now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cluster.nodes import UNSCHEDULABLE_TAINT
from dovetail.core.cycle import tell
from dovetail.core.events import Event, GangChanged, NodeChanged, PodChanged, PodRemoved, QueueChanged
from dovetail.core.labels import matches, untolerated
from dovetail.core.model import GPU, Node, Pod
from dovetail.core.queues.types import MODEL_LABEL, Queue
from dovetail.core.reasons import Expected, When
from dovetail.core.state import State
from dovetail.views.forecast import Forecast, ForecastPlace, ForecastVictim, Start, Watch, forecast
from dovetail.views.jobs import JobNotFound, nearest, restarted

HOST = "kubernetes.io/hostname"
_SAME_MS = 60_000
"""Starts that differ by less count as equal."""
Effect = Literal[
    "starts now", "no longer starts now", "sooner", "later", "waits", "can start", "never starts", "gone", "as before"
]  # fmt: skip


class ChangeError(ValueError):
    """The change cannot be asked about; the message says why."""


class Hypothesis(Struct, frozen=True):
    """`jobs` are the workloads that it is about: told whether they differ or not. Of those that it takes from nodes
    `left` says from which. `notes` say what it does not do."""

    events: tuple[Event, ...]
    jobs: frozenset[str] = frozenset()
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class WhatifOutcome(Struct, frozen=True):
    """A job with the change and without it. `before` is None for one that the change brings, or that runs before it;
    `after` for one that it takes away, or that runs with it. `left` are the nodes that its pods leave, `places` where
    they go with the change, `code` and `message` why it waits then. `gpus_milli` are asked for. `before_state` and
    `state` are Placed, NotYet or Never, "" where there is no start to tell."""

    job: str
    queue: str
    pods: int
    gpus_milli: int
    effect: Effect
    before: Expected | None
    after: Expected | None
    before_state: str = ""
    state: str = ""
    left: tuple[str, ...] = ()
    places: tuple[ForecastPlace, ...] = ()
    code: str = ""
    message: str = ""


class QueueGain(Struct, frozen=True):
    """The GPUs that the jobs of a queue have after the next step, without the change and with it."""

    queue: str
    before_milli: int
    after_milli: int


class WhatIf(Struct, frozen=True):
    """`jobs` has those that the change is about, then those that it makes a difference to, in the order in which they
    start. `spared` are pods that would have given way without the change. `unchanged` counts the jobs that wait and
    notice nothing. `whole` is false where it was not looked ahead to the end."""

    now_ms: int
    jobs: tuple[WhatifOutcome, ...]
    evicted: tuple[ForecastVictim, ...]
    spared: tuple[ForecastVictim, ...]
    queues: tuple[QueueGain, ...]
    unchanged: int
    notes: tuple[str, ...]
    whole: bool


def whatif(state: State, change: Hypothesis, now_ms: int, watch: Watch = lambda started, waiting: None) -> WhatIf:
    """The difference that a change makes. `watch` is told of both looks how many jobs have started, and of how many."""
    base = take(state)
    changed = restore(state.policy, base)
    tell(changed, change.events, now_ms)
    without = forecast(base, state.policy, now_ms, watch=watch)
    with_it = forecast(take(changed), state.policy, now_ms, watch=watch)
    workloads = dict.fromkeys((*sorted(change.jobs), *with_it.starts, *without.starts))
    outcomes = [
        _outcome(changed, change, workload, without.starts.get(workload), with_it.starts.get(workload))
        for workload in workloads
    ]
    told = [
        outcome for workload, outcome in zip(workloads, outcomes, strict=True)
        if outcome is not None and (workload in change.jobs or outcome.effect != "as before")
    ]  # fmt: skip
    before, after = set(without.victims), set(with_it.victims)
    return WhatIf(
        now_ms,
        tuple(told),
        tuple(sorted(after - before, key=_by_time)),
        tuple(sorted(before - after, key=_by_time)),
        tuple(_gains(without, with_it)),
        sum(outcome is not None for outcome in outcomes) - len(told),
        change.notes,
        without.whole and with_it.whole,
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
    )  # fmt: skip


def _effect(before: Start | None, after: Start | None, there: bool) -> Effect:
    if after is None:
        return "as before" if there else "gone"
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
    """Objects that somebody makes. Raises ChangeError where a pod of that name is there already."""
    known = {pod.key: pod.uid for pod in state.workloads.pods.values()}
    told: list[Event] = []
    uids: list[str] = []
    for event in events:
        match event:
            case PodChanged(pod):
                if pod.key in known:
                    raise ChangeError(f"pod {pod.key} is there already: what would a second one of that name do?")
                told.append(PodChanged(replace(pod, created_ms=now_ms)))
                uids.append(pod.uid)
            case GangChanged(gang):
                told.append(GangChanged(replace(gang, created_ms=now_ms)))
            case _:
                told.append(event)
    changed = restore(state.policy, take(state))
    tell(changed, told, now_ms)
    jobs = (changed.workloads.workload_of(changed.workloads.pods[uid]) for uid in uids)
    return Hypothesis(tuple(told), frozenset(jobs))


def drain(state: State, names: Sequence[str], now_ms: int) -> Hypothesis:
    """Cordon nodes and empty them. Raises NotFound."""
    records = [node_named(state, name) for name in names]
    events: list[Event] = [NodeChanged(replace(record, unschedulable=True)) for record in records]
    notes: list[str] = []
    leaving: list[Pod] = []
    for record in records:
        for uid in state.cluster.on_slot.get(state.cluster.nodes.slots[record.name], ()):
            pod = state.cluster.placements[uid].pod
            if untolerated((UNSCHEDULABLE_TAINT,), pod.request.tolerations) is None:
                notes.append(f"{pod.key} stays on {record.name}: it tolerates a cordon, as pods of DaemonSets do")
            else:
                leaving.append(pod)
    again: list[Pod] = []
    for pod in leaving:
        events.append(PodRemoved(pod.uid, now_ms))
        if not pod.managed:
            notes.append(f"{pod.key} leaves, and its own scheduler decides where it goes")
        elif not pod.owner:
            notes.append(f"{pod.key} has no controller: it is gone for good")
        else:
            again.append(pod)
            events.append(PodChanged(restarted(pod, now_ms)))
    notes += _held_by_budgets(state, leaving)
    changed = restore(state.policy, take(state))
    tell(changed, events, now_ms)
    left: dict[str, tuple[str, ...]] = {}
    for pod in again:
        workload = changed.workloads.workload_of(changed.workloads.pods[restarted(pod, now_ms).uid])
        left[workload] = tuple(dict.fromkeys((*left.get(workload, ()), pod.node)))
    return Hypothesis(tuple(events), frozenset(left), left, tuple(notes))


def _held_by_budgets(state: State, leaving: Iterable[Pod]) -> Iterable[str]:
    leaving = list(leaving)
    for budget in sorted(state.budgets.values(), key=lambda budget: budget.key):
        own = [
            pod for pod in leaving
            if pod.namespace == budget.namespace and budget.selector and matches(budget.selector, dict(pod.labels))
        ]  # fmt: skip
        if len(own) > budget.allowed:
            yield (
                f"the budget {budget.key} allows {budget.allowed} of its {len(own)} pods there to be evicted at once: "
                "the drain waits for it"
            )


def add_nodes(state: State, records: Iterable[Node]) -> Hypothesis:
    """Raises ChangeError where a node of that name is there already."""
    events = []
    for record in records:
        slot = state.cluster.nodes.slots.get(record.name)
        if slot is not None and state.cluster.nodes.records[slot] is not None:
            raise ChangeError(f"node {record.name} is there already")
        events.append(NodeChanged(record))
    return Hypothesis(tuple(events))


def like(state: State, name: str, count: int, labels: Sequence[tuple[str, str]] = ()) -> Hypothesis:
    """So many nodes more that are as this one, empty and open, with other labels where `labels` says so. Raises
    NotFound."""
    model = node_named(state, name)
    taken = set(state.cluster.nodes.slots)
    names = (f"{name}-more-{i}" for i in range(1, count + len(taken) + 1))
    records = []
    for new in [one for one in names if one not in taken][:count]:
        own = dict(model.labels) | ({HOST: new} if HOST in dict(model.labels) else {}) | dict(labels)
        records.append(replace(model, name=new, labels=tuple(sorted(own.items())), unschedulable=False, gpus_out=0))
    return add_nodes(state, records)


def like_of_model(state: State, gpus: int, model: str) -> str:
    """A node that offers so many GPUs of a model whose label has this text in it. Raises NotFound."""
    known: dict[str, str] = {}
    for record in state.cluster.nodes.records:
        offers = dict(record.allocatable).get(GPU, 0) if record is not None else 0
        if record is not None and offers:
            known.setdefault(f"{offers}x{dict(record.labels).get(MODEL_LABEL, '')}", record.name)
    for kind, name in sorted(known.items()):
        number, _, label = kind.partition("x")
        if int(number) == gpus and model.lower() in label.lower():
            return name
    there = f"there are {', '.join(sorted(known))}" if known else "no node offers whole GPUs"
    raise JobNotFound(f"no node offers {gpus} GPUs of the model {model!r}, to take as a pattern: {there}")


def node_named(state: State, name: str) -> Node:
    """Raises NotFound."""
    nodes = state.cluster.nodes
    slot = nodes.slots.get(name)
    record = nodes.records[slot] if slot is not None else None
    if record is None:
        known = [one.name for one in nodes.records if one is not None]
        raise JobNotFound(f"node {name} does not exist{nearest(name, known)}")
    return record


def quota(state: State, queue: Queue) -> Hypothesis:
    """The queue as it would be instead."""
    return Hypothesis((QueueChanged(queue),))
