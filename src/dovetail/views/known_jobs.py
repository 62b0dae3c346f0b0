# SPDX-License-Identifier: Apache-2.0
"""The jobs of a cluster before their reasons and their times are known: cheap to find, many, and in the order of the
list.

Rules
- A job is all that a user made as one object: a gang, or one or several pods on their own. A gang or pod without an
  object is a job of its own. Only pods of this scheduler count. The pods inside of leases are jobs; leases and the
  requests for them are not.
- A job is Running as soon as one of its pods has a node, Ending when all its pods are being deleted, else Waiting.
- A job is done if its pods have finished and no further pod of it exists. It Failed if the pod that ended last failed.
  It is known as long as one of its pods exists.
- Running jobs come first, by their start; then waiting jobs in queue order; then those that are done, by their end.
  Jobs that are equal so far come by name and kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from dovetail.core.model import Pod
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE
from dovetail.kube.translate.ended import EndedPod
from dovetail.views.job_states import COMPLETED, ENDING, FAILED, RUNNING, WAITING
from dovetail.views.jobs import job_id, name_of
from dovetail.views.leased import is_placeholder

_GROUPS = {RUNNING: 0, ENDING: 0, WAITING: 1, COMPLETED: 2, FAILED: 2}


class KnownJob(Struct, frozen=True, dict=True):
    """A job. `workloads` are those of it that have pods that have not finished; of a job that is done, `ended` are all
    its pods."""

    name: str
    kind: str
    state: str
    queue: str
    pods: Sequence[Pod]
    workloads: Sequence[str] = ()
    ended: Sequence[EndedPod] = ()

    @property
    def namespace(self) -> str:
        return self.pods[0].namespace

    @property
    def user(self) -> str:
        return self.pods[0].user

    @property
    def placed(self) -> int:
        """How many of its pods have a node."""
        return sum(bool(pod.node) for pod in self.pods)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(pod.node for pod in self.pods if pod.node))

    @cached_property
    def shown(self) -> str:
        """What its row shows of it in words, in small letters, but for its reason."""
        return " ".join((self.name, self.state, self.queue, self.user, *self.nodes)).lower()

    @property
    def submitted_ms(self) -> int:
        """When the first of its pods was created; 0 if not known, as below."""
        return min((pod.created_ms for pod in self.pods if pod.created_ms), default=0)

    @property
    def begun_ms(self) -> int:
        """When the first of its pods started, or got its node where it has not finished."""
        if self.ended:
            return min((one.started_ms for one in self.ended if one.started_ms), default=0)
        return min((pod.bound_ms for pod in self.pods if pod.bound_ms), default=0)

    @property
    def ended_ms(self) -> int:
        """When the last of its pods finished."""
        return max((one.ended_ms for one in self.ended), default=0)


class UnfinishedJobs:
    """The jobs with pods that have not finished, in the order of the list. `order` are the places of the workloads that
    wait."""

    def __init__(self, state: State) -> None:
        self.order = {workload: number for number, workload in enumerate(state.queue.ordered())}
        self.jobs = in_order(_unfinished(state), self.order)


def in_order(jobs: Iterable[KnownJob], order: Mapping[str, int]) -> list[KnownJob]:
    """In the order of the list; `order` are the places of the workloads that wait."""

    def rank(one: KnownJob) -> tuple[int, int, int, str, str]:
        place = min((order.get(workload, len(order)) for workload in one.workloads), default=0)
        at_ms = 0 if one.state == WAITING else one.ended_ms if one.ended else one.begun_ms
        return _GROUPS[one.state], at_ms // 1000, place, one.name, one.kind

    return sorted(jobs, key=rank)


def _unfinished(state: State) -> Iterator[KnownJob]:
    workloads = dict.fromkeys(
        state.workloads.workload_of(pod)
        for pod in state.workloads.pods.values()
        if pod.managed and not is_placeholder(pod)
    )
    jobs: dict[str, list[str]] = {}
    for workload in workloads:
        jobs.setdefault(job_id(state, workload), []).append(workload)
    for own in jobs.values():
        first = state.workloads.members(own[0])
        pods = first if len(own) == 1 else [pod for workload in own for pod in state.workloads.members(workload)]
        now = WAITING
        if all(pod.deleting for pod in pods):
            now = ENDING
        elif any(pod.node for pod in pods):
            now = RUNNING
        yield KnownJob(
            name_of(state, own[0]), _kind(state.workloads.made_for(own[0]), own[0]), now,
            state.shares.pod_queues.of(first[0]), pods, own,
        )  # fmt: skip


def done_jobs(state: State, ended: Iterable[EndedPod]) -> Iterator[KnownJob]:
    """The jobs of which all pods have finished; `ended` are the finished pods."""
    finished = list(ended)
    if not finished:
        return
    gangs = {pod.gang for pod in state.workloads.pods.values() if pod.gang}
    # Parts that start one after another are jobs of their own, and have the id of the whole in front of their names.
    unfinished = gangs | {state.workloads.top(gang) for gang in gangs} | {gang.rpartition("/")[0] for gang in gangs}
    objects = {f"{pod.namespace}/{pod.made_for}" for pod in state.workloads.pods.values() if pod.made_for}
    jobs: dict[str, list[EndedPod]] = {}
    for one in finished:
        made_for = f"{one.pod.namespace}/{one.pod.made_for}" if one.pod.made_for else ""
        if one.workload not in unfinished and made_for not in objects:
            jobs.setdefault(made_for or one.workload or LONE + one.pod.uid, []).append(one)
    for pods in jobs.values():
        last = max(pods, key=lambda one: (one.ended_ms, not one.succeeded))
        yield KnownJob(
            last.job, _kind(last.pod.made_for, last.workload or LONE), COMPLETED if last.succeeded else FAILED,
            state.shares.pod_queues.of(last.pod), [one.pod for one in pods], (), pods,
        )  # fmt: skip


def _kind(made_for: str, workload: str) -> str:
    return made_for.partition("/")[0] or ("Pod" if workload.startswith(LONE) else "Gang")
