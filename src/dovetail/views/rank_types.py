# SPDX-License-Identifier: Apache-2.0
"""The position of a job in queue order, as answers have it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

By = Literal[
    "class",
    "standing",
    "queue priority",
    "usage",
    "queue age",
    "user",
    "priority",
    "service",
    "age",
    "no queue",
    "alone",
]
SHARE_CLASSES = ("within its guarantee", "within its fair share", "beyond its fair share")
"""The classes of `core.queues.quota`, by number."""


class Term(Struct, frozen=True):
    """A queue among its siblings. `share_class` is its class with its first job `head`: 0 within its guarantee, 1
    within its fair share, 2 beyond. `gpus_per_weight` is its usage."""

    queue: str
    head: str
    share_class: int = field(name="standing")
    priority: int
    gpus_per_weight: float
    weight: int
    created_ms: int


class RankLevel(Struct, frozen=True):
    """The queues below `parent` ("" at the top) with waiting jobs, in queue order. `own` is the queue of the job; `by`
    is the term in which it differs from the queue before it, or behind it if it is the first."""

    parent: str
    own: str
    terms: tuple[Term, ...]
    by: By


class Before(Struct, frozen=True):
    """A job before it in queue order, and the term that decides (`by`)."""

    job: str
    queue: str
    by: By
    text: str


class Overtaking(Struct, frozen=True):
    """`ahead` comes before `behind` if `condition` holds: `in_ms` from now, None if it does not depend on time
    alone."""

    ahead: str = field(name="who")
    behind: str = field(name="whom")
    condition: str
    in_ms: int | None = None


class RankView(Struct, frozen=True):
    """The job has `position` of `waiting` jobs. `user` is "" if its queue has no fair share by user. Jobs of one queue
    and user are ordered by `priority` and `since_ms`."""

    job: str
    queue: str
    user: str
    position: int
    waiting: int
    priority: int
    since_ms: int
    levels: tuple[RankLevel, ...]
    before: tuple[Before, ...]
    overtaking: tuple[Overtaking, ...]
