# SPDX-License-Identifier: Apache-2.0
"""Jobs as answers have them: a job, and the rows of the list of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from dovetail.core.label_terms import Requirement
from dovetail.core.reasons import Sure

if TYPE_CHECKING:
    from dovetail.core.model import Pod


class JobView(Struct, frozen=True):
    """A job. `name` is NAMESPACE/NAME. `pods` are all its known pods, `waiting` those of ours without a node;
    `gpus_milli` is the amount that these will be charged in their `queue`, which may not exist."""

    workload: str
    name: str
    queue: str
    pods: tuple[Pod, ...]
    waiting: tuple[Pod, ...]
    gpus_milli: int

    @property
    def user(self) -> str:
        return self.pods[0].user if self.pods else ""

    @property
    def since_ms(self) -> int:
        """Creation time of its oldest waiting pod; 0 if not known."""
        return min((pod.created_ms for pod in self.waiting), default=0)


class JobTime(Struct, frozen=True):
    """A time of a job, or when it is expected; `at` is None if that is not known. `basis` is what it is based on."""

    at: datetime | None
    sure: Sure = Sure.KNOWN
    basis: str = ""


class JobRow(Struct, frozen=True):
    """A job. `placed` of its `pods` have a node. `gpus` are requested, in words; `gpus_milli` is the amount that they
    count. `reason` is the code of why it waits or failed, with a `message`. `when` is Placed if the next step starts
    the job, else NotYet or Never, "" if it does not wait. `start` is None where it was not looked for, `end` None for a
    job that waits. `labels` are those that all its pods have. `kind` is that of the object that its user made: "Job",
    "Deployment"; else "Gang" or "Pod"; "" in answers of schedulers that do not know it. `lost_gpu_minutes` is the work
    that it would lose if its pods were ended now, rounded up."""

    job: str
    user: str
    queue: str
    state: str
    gpus: str
    gpus_milli: int
    pods: int
    placed: int
    nodes: tuple[str, ...]
    reason: str
    message: str
    when: str
    priority: int
    lease: str
    submitted: datetime | None
    start: JobTime | None
    end: JobTime | None
    labels: dict[str, str]
    kind: str = ""
    lost_gpu_minutes: int = 0


class JobList(Struct, frozen=True):
    """The jobs at a time. `looked_ahead`: the starts of waiting jobs were looked for; `whole` is false if the
    look-ahead ended at its bound. `elsewhere` is the number of unfinished jobs that are left out, as they are in
    namespaces that the asker may not see; 0 where the filter is about more than states and queues."""

    now: datetime
    looked_ahead: bool
    whole: bool
    jobs: tuple[JobRow, ...]
    elsewhere: int = 0


class JobWindow(JobList, frozen=True, kw_only=True):
    """The first of the jobs that have some words, sorted; `total` jobs are admitted by the rest of the filter, and
    `found` of them have the words."""

    total: int
    found: int


class JobFilter(Struct, frozen=True):
    """Which jobs are listed; what is empty admits all. `names` are names of jobs, of their pods or of the objects that
    these were made for, or patterns with * and ?. A queue stands also for those below it.

    With `first` the answer is a JobWindow of so many. Each of the `words` is a part of what a row shows in its columns
    job, state, queue, user, nodes or reason, without regard to case, and each of the `name_words` a part of its name.
    `sort` is one of SORTS; jobs that are equal in it stay in the order of the list, also with `descending`."""

    names: tuple[str, ...] = ()
    namespace: str = ""
    users: tuple[str, ...] = ()
    queue: str = ""
    states: tuple[str, ...] = ()
    node: str = ""
    labels: tuple[Requirement, ...] = ()
    words: tuple[str, ...] = ()
    sort: str = ""
    descending: bool = False
    first: int = 0
    name_words: tuple[str, ...] = ()


SORTS = ("job", "state", "queue", "user", "gpus", "pods", "nodes", "submitted", "start", "end", "reason")
"""By what a JobWindow can be sorted: texts with the numbers in them by their amount, and times that are not known
first. `gpus` is the amount that they count, `pods` how many of them have a node."""
