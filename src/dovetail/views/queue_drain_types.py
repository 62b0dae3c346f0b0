# SPDX-License-Identifier: Apache-2.0
"""What `queue drain` is asked, and its answers."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.queues.types import Stop
from dovetail.core.reasons import Expected

ENDS, EVICTED, STAYS = "ends", "is evicted", "runs on"


class RunningJob(Struct, frozen=True):
    """A job that runs in the queue. `what` happens to it: it ends, is evicted, or runs on. `left` is when its last pod
    has left, by which basis. `count` is more than 1 of jobs that are shown as one."""

    job: str
    queue: str
    pods: int
    gpus_milli: int
    what: str
    left: Expected
    count: int = 1


class QueueDrainPlan(Struct, frozen=True):
    """The jobs that run in a queue and below it, those that leave last at the end; `empty` is when all have left.
    `waiting` is how many jobs wait there, and do not start."""

    queue: str
    jobs: tuple[RunningJob, ...]
    waiting: int
    empty: Expected


class QueueDrainQuestion(Struct, frozen=True, rename="camel"):
    """This queue is stopped; `stop` is what happens to its jobs."""

    queue: str
    stop: Stop = "Hold"
