# SPDX-License-Identifier: Apache-2.0
"""The attained service of each job, in queues where the job with the least comes first (least attained service).

Rules: a job is a gang, else all pods of one controller, else a pod. Its attained service is the charged rate times the
time that its pods ran, whether the work was lost or not, and including pods that are gone: a job that is evicted and
comes back keeps its service. Service counts in levels, so that jobs change places a few times in their lives only:
level 0 is below 16 GPU hours, and each level begins at 16 times the service of the level below. Within a level age
decides, and no job preempts another. A pod counts from its start at the rate that it is charged now. A job is forgotten
when none of its pods has run for a day, or when none runs and JOBS_KEPT other such jobs of the queue had more service.

Source: Tiresias (Gu et al., NSDI'19), discretized two-dimensional least attained service.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dovetail.core.queues.types import DAY_MS

JOBS_KEPT = 500
"""Jobs kept in each queue, beside those that run. A Kubernetes object has room for that many."""
_LEVEL_MILLI_MS = 16 * 3_600_000 * 1000
"""Where level 1 begins: 16 GPU hours in milli-GPU times ms."""
_LEVEL_BITS = 4
"""Each level begins at 2^4 times the service of the one below."""


def level(served_milli_ms: int) -> int:
    """The level of this service; 0 below the first threshold."""
    return -(-(served_milli_ms // _LEVEL_MILLI_MS).bit_length() // _LEVEL_BITS)


def level_after_ms(served_milli_ms: int, rate_milli: int) -> int:
    """The time until a job that is charged this rate reaches its next level."""
    above = _LEVEL_MILLI_MS << _LEVEL_BITS * level(served_milli_ms)
    return -(-(above - served_milli_ms) // rate_milli)


class _Service(Struct):
    """The service of a job is `past + rate * now - begun`. `past` is that of pods that are gone, `rate` the sum of the
    rates of running pods, and `begun` the sum of their rate times start."""

    past: int = 0
    rate: int = 0
    begun: int = 0
    ended_ms: int = 0

    def at(self, now_ms: int) -> int:
        return self.past + max(0, self.rate * now_ms - self.begun)


class _Run(Struct, frozen=True):
    queue: str
    job: str
    rate: int
    since_ms: int


def _forgotten(idle: _Service, now_ms: int) -> bool:
    return idle.ended_ms < now_ms - DAY_MS


class Attained:
    """By queue, for the queues that order their jobs by attained service."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, _Service]] = {}
        self._idle: dict[str, dict[str, None]] = {}
        """By queue: the jobs without running pods."""
        self._runs: dict[str, _Run] = {}
        self._levels: dict[str, tuple[int, int | None]] = {}
        """By queue: the highest level of its running jobs, and when one of them reaches its next level. Kept until a
        pod of the queue starts or ends."""

    def put(self, uid: str, queue: str, job: str, rate: int, since_ms: int) -> None:
        """Count the pod as running since then."""
        run = _Run(queue, job, rate, since_ms)
        if self._runs.get(uid) != run:
            self.forget(uid)
            self._runs[uid] = run
            self._move(run, 1)

    def since_ms(self, uid: str) -> int | None:
        """Since when the pod counts; None where it does not."""
        run = self._runs.get(uid)
        return run.since_ms if run is not None else None

    def uids(self) -> list[str]:
        """The running pods that count."""
        return list(self._runs)

    def end(self, uid: str, at_ms: int) -> None:
        """The pod ran until then. Its job keeps the service."""
        run = self._runs.get(uid)
        if run is not None:
            self.forget(uid)
            service = self._services[run.queue][run.job]
            service.past += run.rate * max(0, at_ms - run.since_ms)
            service.ended_ms = max(service.ended_ms, at_ms)

    def forget(self, uid: str) -> None:
        """Count the pod as if it had never run."""
        run = self._runs.pop(uid, None)
        if run is not None:
            self._move(run, -1)

    def _move(self, run: _Run, sign: int) -> None:
        services = self._services.setdefault(run.queue, {})
        idle = self._idle.setdefault(run.queue, {})
        if sign > 0 and run.job in idle and _forgotten(services[run.job], run.since_ms):
            del services[run.job], idle[run.job]
        service = services.setdefault(run.job, _Service())
        service.rate += sign * run.rate
        service.begun += sign * run.rate * run.since_ms
        if service.rate:
            idle.pop(run.job, None)
        else:
            idle[run.job] = None
        self._levels.pop(run.queue, None)

    def tidy(self, now_ms: int) -> None:
        """Forget the idle jobs with the least service where there are too many. To find them takes a look at all: so
        it waits until there are twice as many as are kept."""
        for queue, idle in self._idle.items():
            if len(idle) > 2 * JOBS_KEPT:
                services = self._services[queue]
                kept = [job for job in idle if services[job].past and not _forgotten(services[job], now_ms)]
                if len(kept) > 2 * JOBS_KEPT:
                    kept = sorted(kept, key=lambda job: (-services[job].past, job))[:JOBS_KEPT]
                for job in idle.keys() - kept:
                    del services[job], idle[job]

    def level(self, queue: str, job: str, now_ms: int) -> int:
        """The level of a job."""
        service = self._services.get(queue, {}).get(job)
        if service is None or (job in self._idle[queue] and _forgotten(service, now_ms)):
            return 0
        return level(service.at(now_ms))

    def highest(self, queue: str, now_ms: int) -> int:
        """The highest level of the running jobs of the queue."""
        return self._known(queue, now_ms)[0]

    def next_ms(self, queue: str, now_ms: int) -> int | None:
        """When a running job of the queue reaches its next level; None where none runs."""
        return self._known(queue, now_ms)[1]

    def turned(self, after_ms: int, now_ms: int) -> list[str]:
        """The queues in which a job reached its next level between these times."""
        known = [(queue, self._known(queue, after_ms)[1]) for queue in self._services]
        turned = [queue for queue, due_ms in known if due_ms is not None and due_ms <= now_ms]
        for queue in turned:
            del self._levels[queue]
        return turned

    def _known(self, queue: str, now_ms: int) -> tuple[int, int | None]:
        known = self._levels.get(queue)
        if known is None:
            running = [(one.at(now_ms), one.rate) for one in self._services.get(queue, {}).values() if one.rate]
            highest = max((level(served) for served, _ in running), default=0)
            soonest = min((level_after_ms(served, rate) for served, rate in running), default=None)
            known = self._levels[queue] = highest, now_ms + soonest if soonest is not None else None
        return known

    def queues(self) -> Iterable[str]:
        """The queues in which a job has run."""
        return self._services

    def past(self, queue: str, now_ms: int) -> tuple[tuple[str, int], ...]:
        """The service of the queue's jobs from pods that are gone, the most first, as `restore` takes it."""
        idle = self._idle.get(queue, {})
        had = [
            (job, one.past)
            for job, one in self._services.get(queue, {}).items()
            if one.past and not (job in idle and _forgotten(one, now_ms))
        ]
        return tuple(sorted(had, key=lambda one: (-one[1], one[0])))

    def ends(self, now_ms: int) -> tuple[tuple[str, str, int], ...]:
        """By queue and job of `past`, when the last pod that is gone ended."""
        services = self._services
        return tuple([(q, job, services[q][job].ended_ms) for q in services for job, _ in self.past(q, now_ms)])

    def restore_ends(self, ends: Iterable[tuple[str, str, int]]) -> None:
        """Have the jobs that were restored end then."""
        for queue, job, ended_ms in ends:
            self._services[queue][job].ended_ms = ended_ms

    def restore(self, queue: str, past: Iterable[tuple[str, int]], at_ms: int) -> None:
        """Continue from the service of pods that were gone by then."""
        services = self._services.setdefault(queue, {})
        idle = self._idle.setdefault(queue, {})
        for service in services.values():
            service.past = 0
        for job, had in past:
            if job not in services:
                services[job], idle[job] = _Service(), None
            service = services[job]
            service.past, service.ended_ms = had, at_ms
        self._levels.pop(queue, None)

    def drop(self, queue: str) -> None:
        """Forget a queue that is gone, or that orders its jobs by age now."""
        for uid in [uid for uid, run in self._runs.items() if run.queue == queue]:
            del self._runs[uid]
        self._services.pop(queue, None)
        self._idle.pop(queue, None)
        self._levels.pop(queue, None)
