# SPDX-License-Identifier: Apache-2.0
"""Why a job has its position in queue order: the terms of each comparison, from the top of the tree down to the job.

Rules
- The terms are the core's own (`core.queues.queue_order`). At each level, the queues with waiting jobs are compared by
  their class with their first job (within guarantee, within fair share, beyond), by priority, by usage per weight, and
  by age. Those whose first job is a scavenger come last. A control plane is compared as if its next lease was charged.
- The usage of a queue is in GPUs per unit of weight: the decayed mean that it was charged, with what it holds now
  projected a few minutes ahead.
- The time at which a queue passes another by usage is computed as if no job started or ended until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.core.queues.accounts import AHEAD_MS
from dovetail.core.queues.types import DAY_MS, GPU
from dovetail.core.queues.usage import steady
from dovetail.core.state import State
from dovetail.views.job_types import JobView
from dovetail.views.jobs import find_jobs, job_of, name_of, not_waiting, request_job
from dovetail.views.names import JobNotFound
from dovetail.views.queues import heads
from dovetail.views.rank_types import SHARE_CLASSES, Before, By, Overtaking, RankLevel, RankView, Term

_TERMS: tuple[By, ...] = ("standing", "queue priority", "usage", "queue age")
_FRACTION_BITS = 40
_MINUTE_MS = 60_000
_LONGEST_MS = 30 * DAY_MS


def rank(state: State, key: str, now_ms: int) -> RankView:
    """The position of the job "namespace/name". Raises JobNotFound if it does not exist or does not wait."""
    job = _job(state, key)
    order = state.queue.ordered()
    if job.workload not in order:
        raise JobNotFound(f"{job.name} does not wait: {not_waiting(job)}")
    queue_user, position = state.queue.queue_user(job.workload), order.index(job.workload)
    view = _Comparing(state, job, now_ms)
    priority, _, since_ms = state.rank(job.workload)
    return RankView(
        job.name, job.queue, queue_user[1] if queue_user is not None else "", position + 1, len(order), priority,
        since_ms, tuple(view.levels()), tuple(view.before(workload) for workload in order[:position]),
        tuple(view.overtaking(order)),
    )  # fmt: skip


def _job(state: State, key: str) -> JobView:
    """The first job of this name, or the request for a lease. Raises JobNotFound."""
    try:
        return find_jobs(state, key)[0]
    except JobNotFound:
        one = state.requests.negotiations.get(key)
        if one is None:
            raise
        return request_job(state, one)


class _Comparing:
    def __init__(self, state: State, job: JobView, now_ms: int) -> None:
        self._state = state
        self._job = job
        self._now_ms = max(now_ms, state.now_ms)
        self._shares, self._tree = state.shares, state.shares.tree
        self._path = self._tree.path(job.queue) if job.queue in self._tree.queues else ()
        self._heads = heads(state)

    def levels(self) -> Iterator[RankLevel]:
        for own in reversed(self._path):
            parent = self._tree.queues[own].parent
            names = [name for name in self._tree.children(parent) if name in self._heads]
            names.sort(key=lambda name: self._in_order(name, self._heads[name]))
            place = names.index(own)
            other = names[place - 1] if place else names[1] if len(names) > 1 else ""
            by: By = self._by(own, self._heads[own], other, self._heads[other]) if other else "alone"
            yield RankLevel(parent, own, tuple(map(self._term, names)), by)

    def _term(self, name: str) -> Term:
        record, head = self._tree.queues[name], self._heads[name]
        share_class, _, ratio, created_ms = self._key(name, head)
        return Term(
            name, name_of(self._state, head), share_class, record.priority, _gpus(ratio), record.weight, created_ms
        )

    def _key(self, queue: str, workload: str) -> tuple[int, int, int, int]:
        advance_ms = self._state.queue_order.terms(workload)[0] if self._is_plane(queue) else 0
        return self._shares.quota.key(queue, self._wanted(workload), advance_ms)

    def _is_plane(self, queue: str) -> bool:
        parent = self._tree.written.get(self._tree.queues[queue].parent)
        return parent is not None and parent.planes

    def _scavenges(self, workload: str) -> bool:
        """Whether the workload is a request for what is idle, which comes after all others."""
        return self._state.queue_order.terms(workload)[1]

    def _in_order(self, queue: str, workload: str) -> tuple[bool, tuple[int, int, int, int]]:
        return self._scavenges(workload), self._key(queue, workload)

    def _wanted(self, workload: str) -> Mapping[str, int]:
        return self._state.shares.wanted_next(workload)

    def _by(self, queue: str, workload: str, other: str, other_root: str) -> By:
        """The first term in which two siblings differ."""
        if self._scavenges(workload) != self._scavenges(other_root):
            return "class"
        mine, theirs = self._key(queue, workload), self._key(other, other_root)
        return next((by for by, a, b in zip(_TERMS, mine, theirs, strict=True) if a != b), "queue age")

    def before(self, workload: str) -> Before:
        """Why another job is tried before this one."""
        other = job_of(self._state, workload)
        by, text = self._against(other)
        return Before(other.name, other.queue, by, text)

    def _against(self, other: JobView) -> tuple[By, str]:
        state, pending = self._state, self._state.queue
        queue_user, theirs = pending.queue_user(self._job.workload), pending.queue_user(other.workload)
        if other.queue not in self._tree.queues or not self._tree.leaf(other.queue):
            return "no queue", "its queue takes no jobs: it is tried only to report that"
        if queue_user == theirs:
            priority, level, created_ms = state.rank(self._job.workload)
            its_priority, its_level, its_created_ms = state.rank(other.workload)
            if its_priority != priority:
                return "priority", f"priority {its_priority} is above {priority}"
            if its_level != level:
                return "service", f"less attained service: it is on level {its_level}, this on {level}"
            return "age", "it is older" if its_created_ms < created_ms else "it came first in the same second"
        if queue_user is not None and theirs is not None and queue_user[0] == theirs[0]:
            used, used_by = self._shares.accounts.user_ratio(*queue_user), self._shares.accounts.user_ratio(*theirs)
            return "user", (
                f"the usage of its user {theirs[1] or '(none)'}, {_gpus(used_by):g} GPUs, is less than that of "
                f"{queue_user[1] or '(none)'}, {_gpus(used):g}"
            )
        own, others = self._parting(other.queue)
        by = self._by(own, self._job.workload, others, other.workload)
        return by, self._in_words(by, own, self._job.workload, others, other.workload)

    def _parting(self, queue: str) -> tuple[str, str]:
        """The two siblings at which the paths to the job's queue and to another queue part."""
        mine, theirs = self._path[::-1], self._tree.path(queue)[::-1]
        return next((a, b) for a, b in zip(mine, theirs, strict=False) if a != b)

    def _in_words(self, by: By, own: str, workload: str, other: str, other_root: str) -> str:
        """Why `other` comes before `own`."""
        mine, theirs = self._key(own, workload), self._key(other, other_root)
        if by == "class":
            return f"the next one of {own} is a scavenger, that of {other} is not"
        if by == "standing":
            return f"{other} would be {SHARE_CLASSES[theirs[0]]} with it, {own} {SHARE_CLASSES[mine[0]]}"
        if by == "queue priority":
            return f"the priority of {other}, {-theirs[1]}, is above that of {own}, {-mine[1]}"
        if by == "usage":
            return (
                f"the usage / weight of {other}, {_gpus(theirs[2]):g} GPUs, is less than that of {own}, "
                f"{_gpus(mine[2]):g}"
            )
        return f"{other} is older than {own}"

    def overtaking(self, order: list[str]) -> Iterator[Overtaking]:
        yield from self._by_time()
        yield from self._by_ends()
        yield from self._by_priority(order)
        yield from self._newcomers()

    def _by_time(self) -> Iterator[Overtaking]:
        """Siblings that change places as past usage decays."""
        for own in reversed(self._path):
            for other in self._siblings(own):
                by = self._by(own, self._heads[own], other, self._heads[other])
                passing = self._passing_ms(own, other) if by == "usage" and not self._is_plane(own) else None
                if passing is None:
                    continue
                own_passes = self._in_order(own, self._heads[own]) > self._in_order(other, self._heads[other])
                ahead, behind = (own, other) if own_passes else (other, own)
                yield Overtaking(
                    f"queue {ahead}", f"queue {behind}",
                    "no job starts or ends until then, as past usage decays", passing,
                )  # fmt: skip

    def _siblings(self, own: str) -> list[str]:
        parent = self._tree.queues[own].parent
        return [name for name in self._tree.children(parent) if name in self._heads and name != own]

    def _passing_ms(self, own: str, other: str) -> int | None:
        """The time until the two change places by usage; None if they do not within 30 days."""

        def ahead(after_ms: int) -> bool:
            return self._ratio_in(own, after_ms) < self._ratio_in(other, after_ms)

        first, before_ms, after_ms = ahead(0), 0, _MINUTE_MS
        while ahead(after_ms) == first:
            before_ms, after_ms = after_ms, after_ms * 5 // 4
            if after_ms > _LONGEST_MS:
                return None
        while after_ms - before_ms > _MINUTE_MS:
            middle_ms = (before_ms + after_ms) // 2
            before_ms, after_ms = (middle_ms, after_ms) if ahead(middle_ms) == first else (before_ms, middle_ms)
        return after_ms

    def _ratio_in(self, name: str, after_ms: int) -> int:
        record, ledger = self._tree.queues[name], self._shares.accounts.of(name)
        used = ledger.at(self._now_ms + AHEAD_MS + after_ms)
        return (used << _FRACTION_BITS) // (steady(1, ledger.half_life_ms) * max(1, record.weight))

    def _by_ends(self) -> Iterator[Overtaking]:
        """How much of a queue must end before its first job is within its fair share."""
        for own in reversed(self._path):
            share_class = self._key(own, self._heads[own])[0]
            better = [name for name in self._siblings(own) if self._key(name, self._heads[name])[0] < share_class]
            if share_class < len(SHARE_CLASSES) - 1 or not better:
                continue
            more, due = self._wanted(self._heads[own]).get(GPU, 0), self._shares.due(own).get(GPU, 0)
            over = self._shares.allocated(own).get(GPU, 0) + more - due
            if more and over > 0:
                # A job larger than the whole fair share counts as within it when the queue holds nothing and its usage
                # is below its part.
                ended = f"{over / 1000:g} GPUs of {own} have ended"
                if more > due:
                    ended = f"{own} holds nothing and its usage is below its part"
                condition = f"{ended}: then its next job is {SHARE_CLASSES[1]}"
                yield Overtaking(f"queue {own}", f"queue {', '.join(better)}", condition)

    def _by_priority(self, order: list[str]) -> Iterator[Overtaking]:
        queue_user = self._state.queue.queue_user(self._job.workload)
        own = [workload for workload in order if self._state.queue.queue_user(workload) == queue_user]
        mine, where = self._state.precedence(self._job.workload)[0], f"queue {self._job.queue}"
        first = max(self._state.precedence(workload)[0] for workload in own)
        if own[0] != self._job.workload:
            condition = f"its priority is above {first}"
            yield Overtaking(self._job.name, f"all other jobs of {where}", condition)
        yield Overtaking(f"a new job of {where}", self._job.name, f"its priority is above {mine}")

    def _newcomers(self) -> Iterator[Overtaking]:
        """Queues without waiting jobs whose jobs would come first."""
        wanted = self._wanted(self._job.workload)
        names = []
        for name in self._tree.in_order():
            if name in self._heads or not self._tree.leaf(name) or self._tree.problem(name) is not None:
                continue
            own, other = self._parting(name) if self._path else ("", "")
            if own and self._shares.quota.key(other, wanted) < self._key(own, self._heads[own]):
                names.append(name)
        if names:
            condition = "it requests as much"
            yield Overtaking(f"a new job of queue {', '.join(names)}", self._job.name, condition)


def _gpus(ratio: int) -> float:
    """A usage ratio of the core, in GPUs per unit of weight."""
    return round(ratio / (1000 << _FRACTION_BITS), 3)
