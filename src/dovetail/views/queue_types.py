# SPDX-License-Identifier: Apache-2.0
"""Queues as answers have them: their shares, and the jobs that wait in them."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.queues.amounts import Amounts
from dovetail.core.reasons import Expected
from dovetail.views.forecast_types import ForecastPlace


class UserShare(Struct, frozen=True):
    """A user of a queue. `gpu_hours` are decayed; `part_ppm` is the user's part of the usage of the queue."""

    user: str
    gpu_hours: float
    part_ppm: int


class QueueHeadroom(Struct, frozen=True):
    """The headroom of a `workload` of a queue: how many instances it states, how many of these the guarantees cover
    (`due`), and for how many there is room (`kept`). It is promised within `promised_ms`; others use `lent_milli`
    thousandths of GPUs of it and would return the last of it after `returned_ms` (0: nobody uses it). `lack` is why
    none can be kept, "" where that is not so."""

    workload: str
    stated: int
    due: int
    kept: int
    promised_ms: int
    returned_ms: int
    lent_milli: int
    lack: str

    def __str__(self) -> str:
        kept = (
            f"room for {self.kept} of {self.stated} instances of {self.workload}, within {self.promised_ms / 1000:g} s"
        )
        if self.lack:
            return f"{kept}: {self.lack}"
        if self.due < self.stated:
            kept += f"; the guarantee covers {self.due}"
        if not self.returned_ms:
            return kept
        lent = f"others use {self.lent_milli / 1000:g} GPUs of it"
        return f"{kept}; {lent}, and return them within {self.returned_ms / 1000:g} s"


class QueueShare(Struct, frozen=True):
    """The status of a queue. `depth` is 0 at the top. Amounts are by class, as in `core.queues.types`; `due` is the
    fair share. `charged_milli` is what the queue is charged now, in milli-GPU. GPU-hours of days are not decayed,
    `gpu_hours` are. `usage_ppm` is the latter as a part of the cluster, `weight_ppm` the part of its weight among its
    siblings. `head` is its first job in queue order, "" if none waits. `problem` is why the queue cannot be used as
    written. `changes_ms` is when its calendar changes its guarantee next, to `next_guarantee`; 0 for no change.
    `headroom` is that of its own workloads."""

    queue: str
    depth: int
    leaf: bool
    guarantee: Amounts
    limit: Amounts
    due: Amounts
    allocated: Amounts
    borrowed: Amounts
    pending: Amounts
    pending_jobs: int
    charged_milli: int
    gpu_hours_1d: float
    gpu_hours_7d: float
    gpu_hours_30d: float
    gpu_hours: float
    usage_ppm: int
    weight: int
    weight_ppm: int
    credit_gpu_hours: float
    head: str
    users: tuple[UserShare, ...]
    problem: str
    changes_ms: int = 0
    next_guarantee: Amounts = ()
    headroom: tuple[QueueHeadroom, ...] = ()


class WaitingWorkload(Struct, frozen=True):
    """A waiting job at `position` (from 1). `state` is "Placed" if the next step starts it, else "NotYet" or "Never";
    `code` is "Placed" or the reason, `message` the reason with numbers, `reclaim` the result of the search for victims.
    `since_ms` is when it was created, 0 if not known."""

    position: int
    job: str
    queue: str
    user: str
    pods: int
    gpus_milli: int
    priority: int
    state: str
    code: str
    message: str
    reclaim: str
    since_ms: int
    expected: Expected
    places: tuple[ForecastPlace, ...]


class QueuePosition(Struct, frozen=True):
    """The waiting jobs of a `queue`, or of all queues (""). `whole` is false if the look-ahead ended at its bound.
    `elsewhere` is the number of those that are left out, as they are in namespaces that the asker may not see."""

    queue: str
    now_ms: int
    jobs: tuple[WaitingWorkload, ...]
    whole: bool
    elsewhere: int = 0
