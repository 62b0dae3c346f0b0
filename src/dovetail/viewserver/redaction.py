# SPDX-License-Identifier: Apache-2.0
"""What an asker of one namespace sees of an answer: its own names, and of other namespaces only totals.

Rules
- The whole answer is walked, whatever view it is of, so that a view cannot forget it.
- In any text, a NAME that stands behind a hidden NAMESPACE and a slash is replaced by ELSEWHERE, with what is around it
  up to a blank: `gpulease/NAMESPACE/NAME`, the id of a gang.
- Where a field holds rows about jobs of others, the rows become a count or a sum (`_TOTALS`).
- Users are shown where they have pods in the namespace of the asker.
- Names of nodes, queues, device classes and devices are those of the cluster, and are shown. Of the labels of a node
  those of NODE_LABELS; of what the operator found there the reason, and not the objects that show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.quantities import QuantityError, amount, display
from dovetail.core.reasons import Expected, Sure
from dovetail.core.state import State
from dovetail.views.defrag_types import Defrag, PodMove
from dovetail.views.drain_types import DrainedPod, DrainPlan
from dovetail.views.forecast_types import ForecastVictim
from dovetail.views.held_types import DeviceHolder, NodeHolder
from dovetail.views.node_types import NodeHealthView
from dovetail.views.queue_drain_types import RunningJob
from dovetail.views.queue_types import QueuePosition, QueueShare, UserShare
from dovetail.views.rank_types import RankView
from dovetail.views.topology_types import NodeInside, PodGpus
from dovetail.views.whatif_types import WhatIf

T = TypeVar("T")

ELSEWHERE = "(other-namespaces)"
"""Shown in place of names."""
# Neither begins inside of what it has passed over: askers write texts of megabytes, and the time would be their square.
_TOKEN = re.compile(r"(?<![\w.:+~-])[\w.:+~-]++(?:/[\w.:+~-]++)+")
_HINT = re.compile(r"; did you mean ((?:[^?;]|;(?! did you mean ))*+)\?")
_NUMBER = re.compile(r"(\d+)/(\d+)\Z")
NODE_LABELS = (
    "kubernetes.io/", "node.kubernetes.io/", "topology.kubernetes.io/", "nvidia.com/", "dovetail.dev/",
)  # fmt: skip
"""How the labels of nodes begin that are shown."""
_USER = "user/"


class Redaction:
    """What is shown to users that may see `namespace`."""

    def __init__(self, state: State, namespace: str, more: Iterable[str] = ()) -> None:
        """`more`: further namespaces than those of the state."""
        pods = state.workloads.pods.values()
        known = {pod.namespace for pod in pods} | {one.namespace for one in state.workloads.gangs.values()}
        known |= {one.name for one in state.cluster.peers.namespaces()}
        known |= {key.partition("/")[0] for key in (*state.requests.negotiations, *state.leases.live)}
        known |= {key.partition("/")[0] for key in (*state.cluster.claims.claims, *state.cluster.volumes.claims)}
        self._own = namespace
        self._hidden = frozenset(known.union(more) - {namespace, ""})
        self._users = frozenset(pod.user for pod in pods if pod.namespace == namespace)

    def of(self, answer: T) -> T:
        """The answer as it may be shown."""
        return self._of(answer)  # type: ignore[no-any-return]

    def text(self, text: str) -> str:
        """A sentence, without the names of others."""
        shown = _TOKEN.sub(lambda found: ELSEWHERE if self.hides(found.group()) else found.group(), text)
        return _HINT.sub(_own_hints, shown)

    def hides(self, key: str) -> bool:
        """Whether it names something of another namespace: NAMESPACE/NAME, whatever stands before."""
        *before, _ = key.split("/") if key else ("",)
        return self._own not in before and not self._hidden.isdisjoint(before)

    def is_own(self, key: str) -> bool:
        """Whether it is NAMESPACE/NAME of the namespace that is shown."""
        return key.partition("/")[0] == self._own

    def _of(self, value: Any) -> Any:
        if type(value) is str:
            return self.text(value)
        if isinstance(value, tuple):
            return self._row(value)
        if isinstance(value, dict):
            return {key: self._of(one) for key, one in value.items()}
        if isinstance(value, Struct):
            totals = _TOTALS.get(type(value))
            value = totals(value, self) if totals is not None else value
            changed = {name: self._of(old) for name in value.__struct_fields__ if (old := getattr(value, name))}
            return replace(value, **changed)
        return value

    def _row(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for kind, summed in _SUMS.items():
            if values and all(isinstance(one, kind) for one in values):
                values = tuple(summed(values, self))
        shown = tuple(map(self._of, values))
        # Names that are replaced are one.
        return tuple(dict.fromkeys(shown)) if ELSEWHERE in shown else shown

    def shows_user(self, user: str) -> bool:
        return user in self._users


def _own_hints(hint: re.Match[str]) -> str:
    """The similar names that may be shown."""
    names = [name for name in hint[1].split(", ") if name != ELSEWHERE]
    return f"; did you mean {', '.join(names)}?" if names else ""


def _positions(answer: QueuePosition, redaction: Redaction) -> QueuePosition:
    jobs = tuple(one for one in answer.jobs if not redaction.hides(one.job))
    return replace(answer, jobs=jobs, elsewhere=len(answer.jobs) - len(jobs))


def _rank(answer: RankView, redaction: Redaction) -> RankView:
    """`position` still counts all jobs before it."""
    return replace(answer, before=tuple(one for one in answer.before if not redaction.hides(one.job)))


def _share(answer: QueueShare, redaction: Redaction) -> QueueShare:
    own = [one for one in answer.users if redaction.shows_user(one.user)]
    others = [one for one in answer.users if not redaction.shows_user(one.user)]
    if others:
        hours, ppm = sum(one.gpu_hours for one in others), sum(one.part_ppm for one in others)
        own.append(UserShare(ELSEWHERE, round(hours, 3), ppm))
    headroom = tuple([one for one in answer.headroom if not redaction.hides(one.workload)])
    return replace(answer, users=tuple(own), headroom=headroom)


def _summed(holders: Iterable[DeviceHolder], redaction: Redaction) -> Iterable[DeviceHolder]:
    """Own pods as they are, those of others as one row for each node and resource."""
    totals: dict[tuple[str, str, bool], DeviceHolder] = {}
    for one in holders:
        if not redaction.hides(one.pod):
            yield one
            continue
        key = one.node, one.resource, one.next
        before = totals.get(key)
        total = _plus(one.resource, before.amount, one.amount) if before is not None else one.amount
        devices = (*before.devices, *one.devices) if before is not None else one.devices
        totals[key] = replace(one, pod=ELSEWHERE, amount=total, devices=tuple(dict.fromkeys(devices)))
    yield from totals.values()


def _node(answer: NodeHealthView, redaction: Redaction) -> NodeHealthView:
    labels = {key: value for key, value in answer.labels.items() if key.startswith(NODE_LABELS)}
    readiness = replace(answer.readiness, evidence="", line="") if answer.readiness is not None else None
    by, colon, reason = answer.maintenance.partition(": ")
    maintenance = f"a user{colon}{reason}" if by.startswith(_USER) else answer.maintenance
    return replace(answer, labels=labels, readiness=readiness, maintenance=maintenance)


def _inside(answer: NodeInside, redaction: Redaction) -> NodeInside:
    """Without findings about pods of others: they quote what is written in them. Of processes only those of own pods:
    what runs outside of pods is not the business of a tenant."""
    own = tuple(one for one in answer.processes if redaction.is_own(one.pod))
    findings = tuple(one for one in answer.findings if redaction.text(one) == one)
    return replace(answer, findings=findings, processes=own, other_processes=len(answer.processes) - len(own))


def _pod_gpus(pods: Iterable[PodGpus], redaction: Redaction) -> Iterable[PodGpus]:
    """Own pods as they are, those of others as one row."""
    others: list[PodGpus] = []
    for one in pods:
        if redaction.hides(one.pod):
            others.append(one)
        else:
            yield one
    if others:
        known = all(one.gpus is not None for one in others)
        gpus = tuple(sorted(gpu for one in others for gpu in one.gpus or ())) if known else None
        yield PodGpus(ELSEWHERE, sum(one.count for one in others), gpus, None, None)


def _node_holders(holders: Iterable[NodeHolder], redaction: Redaction) -> Iterable[NodeHolder]:
    """Own pods as they are, those of others as one row."""
    others: NodeHolder | None = None
    for one in holders:
        if not redaction.hides(one.pod):
            yield one
        elif others is None:
            others = replace(one, pod=ELSEWHERE, job="", user="", queue="")
        else:
            gpus = None if one.gpus is None or others.gpus is None else (*others.gpus, *one.gpus)
            others = replace(others, count=others.count + one.count, gpus=gpus, parts=(*others.parts, *one.parts))
    if others is not None:
        yield replace(others, gpus=None if others.gpus is None else tuple(sorted(others.gpus)))


def _drain(answer: DrainPlan, redaction: Redaction) -> DrainPlan:
    jobs = tuple(one for one in answer.jobs if not redaction.hides(one))
    return replace(answer, jobs=jobs, other_jobs=len(answer.jobs) - len(jobs))


def _drained(pods: Iterable[DrainedPod], redaction: Redaction) -> Iterable[DrainedPod]:
    """Own pods as they are, those of others as one row for each node, queue and what happens to them."""
    totals: dict[tuple[str, str, str], DrainedPod] = {}
    for one in pods:
        if not redaction.hides(one.pod):
            yield one
            continue
        before = totals.get(key := (one.node, redaction.text(one.queue), one.what))
        if before is not None:
            known = one.left_ms and before.left_ms
            one = replace(
                one, left_ms=max(one.left_ms, before.left_ms) if known else 0, sure=_least_sure(one.sure, before.sure),
                gpus_milli=one.gpus_milli + before.gpus_milli,
                lost_gpu_minutes=one.lost_gpu_minutes + before.lost_gpu_minutes, count=one.count + before.count,
            )  # fmt: skip
        totals[key] = replace(one, pod=ELSEWHERE, job=ELSEWHERE, basis="")
    yield from totals.values()


def _running(jobs: Iterable[RunningJob], redaction: Redaction) -> Iterable[RunningJob]:
    """Own jobs as they are, those of others as one row for each queue and what happens to them."""
    totals: dict[tuple[str, str], RunningJob] = {}
    for one in jobs:
        if not redaction.hides(one.job):
            yield one
            continue
        before = totals.get(key := (one.queue, one.what))
        left = Expected(one.left.sure, one.left.start_ms, "")
        if before is not None:
            known = left.start_ms and before.left.start_ms
            last_ms = max(left.start_ms, before.left.start_ms) if known else 0
            left = Expected(_least_sure(left.sure, before.left.sure), last_ms, "")
            one = replace(
                one, pods=one.pods + before.pods, gpus_milli=one.gpus_milli + before.gpus_milli,
                count=one.count + before.count,
            )  # fmt: skip
        totals[key] = replace(one, job=ELSEWHERE, left=left)
    yield from totals.values()


def _least_sure(*sure: Sure) -> Sure:
    return max(sure, key=list(Sure).index)


def _defrag(answer: Defrag, redaction: Redaction) -> Defrag:
    return replace(answer, notes=tuple(dict.fromkeys(map(redaction.text, answer.notes))))


def _moves(moves: Iterable[PodMove], redaction: Redaction) -> Iterable[PodMove]:
    """Own pods as they are, those of others as one row for each two nodes."""
    totals: dict[tuple[str, str], PodMove] = {}
    for one in moves:
        if not redaction.hides(one.pod):
            yield one
            continue
        before = totals.get(key := (one.source, one.target))
        count, gpus = (before.count, before.gpus) if before is not None else (0, ())
        totals[key] = replace(one, pod=ELSEWHERE, count=count + one.count, gpus=tuple(sorted((*gpus, *one.gpus))))
    yield from totals.values()


def _whatif(answer: WhatIf, redaction: Redaction) -> WhatIf:
    jobs = tuple(one for one in answer.jobs if not redaction.hides(one.job))
    notes = tuple(dict.fromkeys(map(redaction.text, answer.notes)))
    return replace(answer, jobs=jobs, notes=notes, elsewhere=len(answer.jobs) - len(jobs))


def _victims(victims: Iterable[ForecastVictim], redaction: Redaction) -> Iterable[ForecastVictim]:
    """Own pods as they are, those of others as one row for each node, time, cause and job that they are evicted for."""
    totals: dict[tuple[str, int, str, str], ForecastVictim] = {}
    for one in victims:
        if not redaction.hides(one.pod):
            yield one
            continue
        for_job = ELSEWHERE if redaction.hides(one.for_job) else one.for_job
        before = totals.get(key := (one.node, one.at_ms, one.cause, for_job))
        gpus_milli = one.gpus_milli + (before.gpus_milli if before is not None else 0)
        lost = one.lost_milli_ms + (before.lost_milli_ms if before is not None else 0)
        totals[key] = replace(
            one, pod=ELSEWHERE, for_job=for_job, gpus_milli=gpus_milli, lost_milli_ms=lost, message=""
        )  # fmt: skip
    yield from totals.values()


def _plus(resource: str, first: str, second: str) -> str:
    """The sum of two amounts: quantities, or thousandths of a GPU as 250/1000."""
    parts = _NUMBER.fullmatch(first), _NUMBER.fullmatch(second)
    if parts[0] is not None and parts[1] is not None:
        return f"{int(parts[0][1]) + int(parts[1][1])}/{parts[0][2]}"
    try:
        return display(resource, amount(resource, first) + amount(resource, second))
    except QuantityError:
        return f"{first} + {second}"


_TOTALS: dict[type, Callable[[Any, Redaction], Any]] = {
    QueuePosition: _positions,
    RankView: _rank,
    QueueShare: _share,
    NodeHealthView: _node,
    NodeInside: _inside,
    WhatIf: _whatif,
    Defrag: _defrag,
    DrainPlan: _drain,
}
"""By answer, what becomes of rows about jobs and users of others."""
_SUMS: dict[type, Callable[[Any, Redaction], Iterable[Any]]] = {
    DeviceHolder: _summed,
    NodeHolder: _node_holders,
    PodGpus: _pod_gpus,
    ForecastVictim: _victims,
    DrainedPod: _drained,
    RunningJob: _running,
    PodMove: _moves,
}
"""By row, what becomes of those of others."""
