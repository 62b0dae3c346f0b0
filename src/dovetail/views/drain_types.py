# SPDX-License-Identifier: Apache-2.0
"""What `drain` is asked, and its answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.core.model import DrainMode, Maintenance
from dovetail.core.reasons import Sure
from dovetail.views.asked_types import MOST_ASKED

ENDS, MOVES, EVICTED, STAYS = "ends", "moves", "is evicted", "stays"


class DrainedPod(Struct, frozen=True):
    """A pod that runs on a node to be drained, or belongs to a gang that has to leave one as a whole. `what` happens:
    it ends, moves, is evicted or stays, and `left_ms` is when it has left (0: not known), by `basis`.
    `lost_gpu_minutes` is the work that it loses, rounded up. `count` is more than 1 of pods that are shown as one."""

    pod: str
    job: str
    queue: str
    node: str
    gpus_milli: int
    what: str
    left_ms: int
    sure: Sure
    basis: str
    lost_gpu_minutes: int
    count: int = 1


class DrainedNode(Struct, frozen=True):
    """A node with its pods, the last to leave at the end. `empty_ms` is when it is empty, 0 if that is not known.
    `others` is the number of pods that are not followed."""

    node: str
    gpus: int
    empty_ms: int
    sure: Sure
    basis: str
    pods: tuple[DrainedPod, ...]
    others: int


class DrainPlan(Struct, frozen=True):
    """The nodes, and pods on other nodes that leave with them. `jobs` and `queues` are those of all these pods; pods of
    one controller are one job. `other_jobs` is the number of jobs that are left out, as the asker may not see them."""

    nodes: tuple[DrainedNode, ...]
    elsewhere: tuple[DrainedPod, ...]
    jobs: tuple[str, ...]
    queues: tuple[str, ...]
    lost_gpu_minutes: int
    other_jobs: int = 0


class DrainQuestion(Struct, frozen=True, rename="camel"):
    """These nodes have to be empty at `start_ms`, 0 for now; `mode` is what happens to their pods."""

    nodes: tuple[str, ...]
    mode: DrainMode = "WaitForJobs"
    start_ms: Annotated[int, Meta(ge=0, le=MOST_ASKED)] = 0

    def maintenance(self, now_ms: int) -> Maintenance:
        return Maintenance(self.mode, now_ms, self.start_ms)
