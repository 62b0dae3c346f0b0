# SPDX-License-Identifier: Apache-2.0
"""What is asked of the history, as it is on the wire.

Rules: what is as by default is not sent, so that an older collector answers what it knows. A field that it does not
know is refused.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dovetail.core.model import Operator
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.history import (
    CAPACITY_ADVICE,
    COSTS,
    FOCUS_COSTS,
    IDLE_LISTS,
    PAST_JOBS,
    SIZE_ADVICE,
    USE_REPORTS,
)

BY = ("team", "queue", "namespace", "user", "job", "pod", "node", "model", "gpu", "day")
"""What GPU time can be grouped by, besides labels."""
LABEL = "label="
_LABEL_KEY = re.compile(r"label=([A-Za-z0-9]([-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?)")
MOST_ROWS = 10_000
"""Of an answer where no other limit is asked for, and of any answer of a collector."""
HOUR_MS = 3_600_000
_MOST = 1 << 53
Milliseconds: TypeAlias = Annotated[int, Meta(ge=-_MOST, le=_MOST)]
"""Within what a store can compare."""


class QuestionError(Exception):
    """A question that cannot be answered as it is; the message is why, in the words of the command's options."""


class NoSuchJob(QuestionError):
    """No job of the history has this name."""


class _Question(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class JobTerm(_Question, frozen=True):
    """A requirement on the labels of a pod of the job."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class PastJobsQuestion(_Question, frozen=True):
    """Jobs of the past. `names` are [NAMESPACE/]JOB or patterns, `outcomes` how they ended. `since` and `until` are
    epoch milliseconds, or so long before the end of the history where `..._ago`."""

    names: tuple[str, ...] = ()
    namespace: str = ""
    users: tuple[str, ...] = ()
    queue: str = ""
    outcomes: tuple[str, ...] = ()
    labels: tuple[JobTerm, ...] = ()
    since_ms: Milliseconds | None = None
    since_ago: bool = False
    until_ms: Milliseconds | None = None
    until_ago: bool = False


class UseQuestion(_Question, frozen=True):
    """How the GPUs of a period were used. `by` is one of BY, or LABEL and a key; `parents` are those of queues. Of
    more groups than `limit` the others are one row."""

    by: str = "team"
    period: str = "30d"
    time_zone: str = "UTC"
    level: Annotated[int, Meta(ge=1, le=32)] = 1
    parents: dict[str, str] = {}
    limit: Annotated[int, Meta(ge=1, le=_MOST)] = MOST_ROWS

    def check(self) -> None:
        """Raises QuestionError."""
        if self.by not in BY and not _LABEL_KEY.fullmatch(self.by):
            raise QuestionError(f"{self.by!r} is none of {', '.join(BY)} and {LABEL}KEY, where KEY is a label of pods")


class CostQuestion(UseQuestion, frozen=True):
    """What they cost; `idle` is how time is divided that nobody held."""

    idle: str = "separate"


class FocusQuestion(_Question, frozen=True):
    """What they cost in the columns of FOCUS, day by day; the answer is for those that may see all namespaces. The next
    question has the `until_ms`, `end_ms`, `currency` and `carry` of the answer before."""

    period: str = "30d"
    time_zone: str = "UTC"
    account: Annotated[str, Meta(max_length=500)] = "cluster"
    until_ms: Milliseconds | None = None
    end_ms: Milliseconds | None = None
    currency: Annotated[str, Meta(max_length=3)] = ""
    carry: Annotated[int, Meta(ge=-_MOST, le=_MOST)] = 0


class IdleQuestion(_Question, frozen=True):
    """Pods that hold GPUs and do not use them."""

    namespace: str = ""
    users: tuple[str, ...] = ()
    queue: str = ""
    least_ms: Milliseconds = HOUR_MS
    exempt: tuple[str, ...] = ()


class AdviceQuestion(_Question, frozen=True):
    """Advice on the size of jobs, by [NAMESPACE/]NAME, or of all; from so long before the end of the history."""

    jobs: tuple[str, ...] = ()
    namespace: str = ""
    seconds: Annotated[float, Meta(ge=0, le=_MOST)] = 30 * 86_400


class CapacityQuestion(_Question, frozen=True):
    """Which GPUs to rent, to buy or to give back; the answer is for those that may see all namespaces."""

    period: str = "30d"
    time_zone: str = "UTC"


HistoryAsked: TypeAlias = (
    PastJobsQuestion | UseQuestion | CostQuestion | FocusQuestion | IdleQuestion | AdviceQuestion | CapacityQuestion
)
RESOURCES: dict[type[HistoryAsked], Resource] = {
    PastJobsQuestion: PAST_JOBS,
    UseQuestion: USE_REPORTS,
    CostQuestion: COSTS,
    FocusQuestion: FOCUS_COSTS,
    IdleQuestion: IDLE_LISTS,
    AdviceQuestion: SIZE_ADVICE,
    CapacityQuestion: CAPACITY_ADVICE,
}
"""What answers each question."""
