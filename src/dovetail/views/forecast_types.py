# SPDX-License-Identifier: Apache-2.0
"""What a look-ahead finds: starts of jobs, victims, and pods that leave nodes in maintenance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dovetail.core.devices.collectives import AllReduce
from dovetail.core.reasons import Expected, Refusal, When

if TYPE_CHECKING:
    from dovetail.core.bargaining.types import LeaseAlternative, Offer
    from dovetail.views.job_types import JobView

PLACED = "Placed"
Watch = Callable[[int, int], None]


class ForecastPlace(Struct, frozen=True):
    """The node of a pod. `gpus` are the indices of its GPUs, empty if not known. `mbps` is the bandwidth between them
    in MB/s, 0 for fewer than two GPUs or if not known."""

    pod: str
    node: str
    gpus: tuple[int, ...] = ()
    mbps: int = 0
    ideal_mbps: int = 0


class Start(Struct, frozen=True):
    """The start of a waiting job. `at_once`: the next step starts it. `places` are the nodes of the pods that start
    first. `refusal` is that of the next step, if there is one. For a LeaseRequest `offers` are what its agent is
    offered then, and `granted` is what it has after that. `all_reduce` is what its pods can expect in
    these places, None where that is not known."""

    job: JobView
    expected: Expected
    at_once: bool = False
    places: tuple[ForecastPlace, ...] = ()
    refusal: Refusal | None = None
    offers: tuple[Offer, ...] = ()
    granted: LeaseAlternative | None = None
    all_reduce: AllReduce | None = None

    @property
    def state(self) -> str:
        """Placed if the next step starts it, else NotYet or Never. The refusal of a request is that of its first
        alternative: another one may start."""
        if self.at_once:
            return PLACED
        if self.granted is not None:
            return When.NOT_YET
        return self.refusal.when if self.refusal is not None else When.NOT_YET


class ForecastVictim(Struct, frozen=True):
    """A pod that is evicted, or a lease that is revoked, for the job `for_job` ("": its queue is drained) at `at_ms`.
    `lost_milli_ms` is the work that is lost with it and the pods evicted together with it, in milli-GPU times ms."""

    pod: str
    node: str
    gpus_milli: int
    for_job: str
    cause: str
    at_ms: int
    lost_milli_ms: int
    message: str


class ForecastDrain(Struct, frozen=True):
    """A pod is evicted as its node is in maintenance, or as its queue is drained. `moves`: room is kept for it
    elsewhere."""

    moves: bool
    lost_milli_ms: int


class Forecast(Struct):
    """`starts` by workload: in the order of the starts, then jobs without a known start. `held_milli` are the GPUs that
    each queue holds after the next step. `whole` is false if the look-ahead ended at its bound. `drained` are pods
    (uid) that leave nodes in maintenance, `ends` when they, and the pods that were asked for, have left their nodes."""

    now_ms: int
    starts: dict[str, Start] = field(default_factory=dict)
    victims: list[ForecastVictim] = field(default_factory=list)
    held_milli: dict[str, int] = field(default_factory=dict)
    until_ms: int = 0
    whole: bool = True
    drained: dict[str, ForecastDrain] = field(default_factory=dict)
    ends: dict[str, Expected] = field(default_factory=dict)
