# SPDX-License-Identifier: Apache-2.0
"""A planned layout under the requests of a trace: times, replicas and cost.

Rules
- A request goes to the replica with the fewest requests. Of a disaggregated plan it goes through prefill, the
  hand-over of its cache, and decode.
- Fixed: the replicas of the plan all the time. By need: every SYNC_S the number is that which `dovetail serve replicas`
  would desire: the requests in all replicas, divided by the target of the role. A difference of a tenth is ignored. It
  at most doubles at a time, or rises by four, and falls to the largest need of the last STABLE_S (defaults of
  Kubernetes' HorizontalPodAutoscaler). A replica that is added answers after the start-up time of the plan; one that is
  taken away ends its requests.
- The first number by need is that for the rate of the first minute.
- GPUs cost from the begin of the start-up until the replica has ended its requests, at most until the last arrival.
  What is in the queue then is still served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from msgspec import Struct

from dovetail.advice.serve.replica_queue import QueuedRequest, ReplicaLimits, ReplicaQueue, StepTimes
from dovetail.advice.serve.request_trace import RequestTrace
from dovetail.advice.serve.types import PREFILL, SimulatedRun, TimePercentiles, WantedServing

FIXED, BY_NEED = "fixed", "by need"
SYNC_S, STABLE_S = 15.0, 300.0
_TOLERATED_PART = 10
_FIRST_S, _MINUTE_S = 60.0, 60.0
_MOST_AFTER_S = 6 * 3600.0
"""How long after the last arrival requests are still served; those that are not done then are unfinished."""

SimulationWatch = Callable[[int, int], None]
"""Gets the requests that have arrived, and all of them."""


class SimulatedRole(Struct, frozen=True):
    """The replicas of a role: their number in the plan, the most that there can be, the requests of one that decide the
    need, its GPUs, and how it computes."""

    role: str
    replicas: int
    most: int
    target: int
    gpus: int
    times: StepTimes
    limits: ReplicaLimits


class SimulatedPlan(Struct, frozen=True):
    """The roles in the order in which a request goes through them. `rate` are the requests per second that their
    replicas are to have at most. `hand_over_s` is the time for the cache of a token of its prompt, `start_s` the
    start-up of a replica."""

    roles: tuple[SimulatedRole, ...]
    rate: float
    start_s: int
    hand_over_s: float
    micro_usd_per_gpu_hour: int | None


class _Pool:
    """The replicas of a role, as time goes on."""

    def __init__(self, role: SimulatedRole, start_s: float, end_s: float, first: int, *, scales: bool) -> None:
        self._role, self._start_s, self._end_s, self._scales = role, start_s, end_s, scales
        self.ended: list[QueuedRequest] = []
        self._active = [self._replica(0.0) for _ in range(first)]
        self._ending: list[ReplicaQueue] = []
        self._needs = deque([(0.0, first)])
        self._sync_s = 0.0
        self._held_s = 0.0
        """Seconds of replicas that ended."""
        self.numbers: list[tuple[int, int]] = []
        """Replicas by the minute."""
        self.most_queued = 0

    def _replica(self, since_s: float) -> ReplicaQueue:
        role = self._role
        return ReplicaQueue(role.times, role.limits, since_s, self.ended.append, role.role == PREFILL)

    def add(self, request: QueuedRequest) -> None:
        """A request that arrives."""
        self.until(request.at_s)
        ready = [one for one in self._active if one.since_s <= request.at_s] or self._active
        min(ready, key=lambda one: one.load).add(request)

    def until(self, now_s: float) -> None:
        """Let time pass, with the scaling that is due."""
        while self._sync_s <= now_s:
            self._advance(self._sync_s)
            if self._scales:
                self._scale(self._sync_s)
            self.most_queued = max(self.most_queued, sum(one.queued for one in self._active))
            if self._sync_s % _MINUTE_S == 0:
                self.numbers.append((int(self._sync_s), len(self._active)))
            self._sync_s += SYNC_S
        self._advance(now_s)

    def _advance(self, now_s: float) -> None:
        for one in self._active:
            one.advance(now_s)
        for one in self._ending:
            one.advance(now_s)
        for one in [one for one in self._ending if not one.load]:
            self._held_s += self._held_by(one, now_s)
            self._ending.remove(one)

    def _scale(self, now_s: float) -> None:
        load = sum(one.load for one in self._active)
        need = min(self._role.most, max(1, ceil(load / self._role.target)))
        now = len(self._active)
        if abs(need - now) * _TOLERATED_PART <= now:
            need = now
        self._needs.append((now_s, need))
        while self._needs[0][0] < now_s - STABLE_S:
            self._needs.popleft()
        number = max(min(need, max(2 * now, now + 4)), min(now, max(one for _, one in self._needs)))
        while len(self._active) < number:
            self._active.append(self._replica(now_s + self._start_s))
        while len(self._active) > number:
            least = min(self._active, key=lambda one: one.load)
            self._active.remove(least)
            self._ending.append(least)

    def finish(self, now_s: float) -> None:
        """Serve what is there until it is done, or for `_MOST_AFTER_S`."""
        end_s = now_s + _MOST_AFTER_S
        while now_s < end_s and any(one.load for one in (*self._active, *self._ending)):
            now_s += SYNC_S
            self.until(now_s)

    def _held_by(self, one: ReplicaQueue, now_s: float) -> float:
        """The time for which the replica held GPUs until then. Replicas of the first moment were there before."""
        return max(0.0, min(now_s, self._end_s) - max(0.0, one.since_s - self._start_s))

    @property
    def gpu_s(self) -> float:
        """The time for which GPUs were held until the last arrival."""
        there = sum(self._held_by(one, self._end_s) for one in (*self._active, *self._ending))
        return (self._held_s + there) * self._role.gpus


def simulate(
    plan: SimulatedPlan, trace: RequestTrace, wanted: WantedServing, scaling: str,
    watch: SimulationWatch = lambda done, of: None,
) -> SimulatedRun:  # fmt: skip
    """Run the requests through the plan."""
    total = len(trace.requests)
    first_rate = sum(one.at_s < _FIRST_S for one in trace.requests) / min(_FIRST_S, trace.seconds)
    arrivals: Sequence[QueuedRequest] = [
        QueuedRequest(number, one.at_s, one.input, one.output, 1.0) for number, one in enumerate(trace.requests)
    ]
    pools: list[_Pool] = []
    first_s: dict[int, float] = {}
    for stage, role in enumerate(plan.roles):
        scales = scaling == BY_NEED
        first = ceil(role.replicas * first_rate / plan.rate) if scales else role.replicas
        pool = _Pool(role, plan.start_s, trace.seconds, min(role.most, max(1, first)), scales=scales)
        for number, one in enumerate(arrivals):
            if number % 64 == 0:
                watch(stage * total + number, len(plan.roles) * total)
            pool.add(one)
        pool.finish(max(trace.seconds, arrivals[-1].at_s) if arrivals else trace.seconds)
        pools.append(pool)
        if stage + 1 < len(plan.roles):
            arrivals = sorted(
                (
                    QueuedRequest(one.number, one.end_s + one.input * plan.hand_over_s, one.input, one.output, 0.0)
                    for one in pool.ended
                ),
                key=lambda one: (one.at_s, one.number),
            )
        else:
            first_s = {one.number: one.first_s for one in pool.ended}
    return _run(plan, trace, wanted, scaling, pools, first_s)


def _run(
    plan: SimulatedPlan, trace: RequestTrace, wanted: WantedServing, scaling: str, pools: Sequence[_Pool],
    first_s: dict[int, float],
) -> SimulatedRun:  # fmt: skip
    done = pools[-1].ended
    ttft = {one.number: first_s[one.number] - trace.requests[one.number].at_s for one in done}
    tpot = {one.number: (one.end_s - first_s[one.number]) / (one.output - 1) for one in done if one.output > 1}
    met = sum(
        ttft[one.number] * 1000 <= wanted.ttft_ms and tpot.get(one.number, 0.0) * 1e6 <= wanted.tpot_us for one in done
    )
    gpu_s = sum(pool.gpu_s for pool in pools)
    price = plan.micro_usd_per_gpu_hour
    minutes = [dict(pool.numbers) for pool in pools]
    return SimulatedRun(
        scaling,
        _percentiles([value * 1000 for value in ttft.values()]),
        _percentiles([value * 1e6 for value in tpot.values()]),
        met * 1000 // len(trace.requests),
        len(trace.requests) - len(done),
        max(pool.most_queued for pool in pools),
        tuple(
            (minute, tuple(one[minute] for one in minutes))
            for minute in minutes[0]
            if minute <= trace.seconds and all(minute in one for one in minutes)
        ),
        tuple(role.target for role in plan.roles),
        round(gpu_s),
        None if price is None else round(gpu_s * price / 3600),
    )


def _percentiles(values: Iterable[float]) -> TimePercentiles | None:
    """None without a value."""
    ordered = sorted(values)
    if not ordered:
        return None
    return TimePercentiles(*(ceil(ordered[min(len(ordered) - 1, len(ordered) * one // 100)]) for one in (50, 95, 99)))
