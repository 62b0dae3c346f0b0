# SPDX-License-Identifier: Apache-2.0
"""What comes of a state: the next step of the scheduler, and when jobs start. Several answers about one state share it.

Rules: each part is worked out when it is first needed, on copies; the state stays as it is. With `whole` there is one
look-ahead for all jobs, else one for each job that is asked for. Both find the same start of a job.
"""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from dovetail.core.bargaining.types import GpuLease, Offer
from dovetail.core.checkpoint import Checkpoint, restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, GrantLease, MakeOffers
from dovetail.core.policy import unhurried
from dovetail.core.state import State
from dovetail.views.forecast import forecast
from dovetail.views.forecast_types import Forecast, Start, Watch


class NextStep(Struct, frozen=True):
    """The state after the next step: the nodes of the pods (uid) that it binds, and what it grants or offers to
    requests."""

    state: State
    binds: dict[str, str]
    grants: dict[str, GpuLease]
    offers: dict[str, tuple[Offer, ...]]


def next_step(checkpoint: Checkpoint, state: State, now_ms: int) -> NextStep:
    """Run the next step on a copy; `checkpoint` is that of the state."""
    copy = restore(unhurried(state.policy), checkpoint)
    decisions = step(copy, (), now_ms)
    return NextStep(
        copy,
        {one.uid: one.node for one in decisions if isinstance(one, Bind)},
        {one.lease.id: one.lease for one in decisions if isinstance(one, GrantLease)},
        {one.request: one.offers for one in decisions if isinstance(one, MakeOffers)},
    )


class Outlook:
    """What comes of `state` from `now_ms` on. `watch` gets the progress of look-aheads."""

    def __init__(
        self, state: State, now_ms: int, watch: Watch = lambda started, waiting: None, *, whole: bool = False
    ) -> None:
        self.state = state
        self.now_ms = now_ms
        self._watch = watch
        self._whole = whole

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return take(self.state)

    @cached_property
    def next(self) -> NextStep:
        """The next step of the scheduler."""
        return next_step(self.checkpoint, self.state, self.now_ms)

    @cached_property
    def ahead(self) -> Forecast:
        """The look-ahead for all jobs."""
        return forecast(self.checkpoint, self.state.policy, self.now_ms, watch=self._watch)

    def starts(self, workloads: set[str]) -> Forecast:
        """The look-ahead in which these jobs start."""
        if self._whole:
            return self.ahead
        return forecast(self.checkpoint, self.state.policy, self.now_ms, workloads, self._watch)

    def start(self, workload: str) -> Start | None:
        """The start of a job."""
        return self.starts({workload}).starts.get(workload)
