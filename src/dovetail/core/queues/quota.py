# SPDX-License-Identifier: Apache-2.0
"""The rights of a queue: its limits, its guarantee, its fair share, and its place among its siblings.

Rules: guarantees and limits always win over history. Each question is about `more` than the queue holds now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dovetail.core.queues.accounts import Accounts
from dovetail.core.queues.fair_share import FairShare
from dovetail.core.queues.guarantees import within
from dovetail.core.queues.rates import ChargeRates
from dovetail.core.queues.reclaim import Reclaim
from dovetail.core.queues.totals import QueueTotals
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DIVIDED, GPU


class Quota:
    def __init__(
        self, tree: Tree, accounts: Accounts, rates: ChargeRates, totals: QueueTotals, fair_share: FairShare
    ) -> None:
        self._tree = tree
        self._accounts = accounts
        self._rates = rates
        self._totals = totals
        self._fair_share = fair_share
        self._limited: dict[str, bool] = {}

    def changed(self) -> None:
        """A queue was added, removed or changed."""
        self._limited.clear()

    def limited(self, queue: str) -> bool:
        """Whether the queue has anything that its pods could exceed."""
        limited = self._limited.get(queue)
        if limited is None:
            recorded_until_ms = self._accounts.recorded_until_ms
            limited = any(
                self._tree.queues[name].limit or name in recorded_until_ms for name in self._tree.known_path(queue)
            )
            self._limited[queue] = limited
        return limited

    def beyond_limit(
        self, queue: str, more: Mapping[str, int], promised: Mapping[str, Mapping[str, int]]
    ) -> tuple[str, str, int, int] | None:
        """The first limit on the way up that would be exceeded: queue, class, what it would hold, and the limit.
        `promised`, by queue and class, counts as held: it is being freed for other workloads."""
        for name in self._tree.known_path(queue):
            held = self._totals.held(name)
            kept = promised.get(name) if promised else None
            for resource, most in self._tree.queues[name].limit:
                wanted = more.get(resource, 0)
                has = held.get(resource, 0) + (kept.get(resource, 0) if kept else 0)
                if wanted and has + wanted > most:
                    return name, resource, has + wanted, most
        return None

    def excess(
        self, queue: str, more: Mapping[str, int], pledged: Mapping[str, Mapping[str, int]]
    ) -> list[tuple[str, dict[str, int]]]:
        """The limits on the way up that would be exceeded, and by how much, by queue and class, once what is `pledged`
        to other workloads has come true."""
        found = []
        for name in self._tree.known_path(queue):
            held, soon = self._totals.held(name), pledged.get(name, {})
            limit = self._tree.queues[name].limit
            over = {r: held.get(r, 0) + soon.get(r, 0) + more[r] - most for r, most in limit if more.get(r, 0)}
            if over := {resource: amount for resource, amount in over.items() if amount > 0}:
                found.append((name, over))
        return found

    def beyond_guarantee(self, queue: str, more: Mapping[str, int]) -> tuple[str, str, int, int] | None:
        """As `beyond_limit` for pods that must not be preempted, which have to stay within the guarantees. A queue that
        no object writes guarantees everything. One above the leaf without a guarantee leaves it to those below."""
        for name in self._tree.known_path(queue):
            record = self._tree.queues[name]
            guarantee = dict(record.guarantee)
            if name not in self._accounts.recorded_until_ms or (not guarantee and name != queue):
                continue
            held = self._totals.fixed.get(name, {})
            for resource in guarantee or DIVIDED:
                wanted = more.get(resource, 0)
                if wanted and held.get(resource, 0) + wanted > guarantee.get(resource, 0):
                    return name, resource, held.get(resource, 0) + wanted, guarantee.get(resource, 0)
        return None

    def share_class(self, queue: str, more: Mapping[str, int]) -> int:
        """0 where the queue stays within its guarantee with `more`, 1 where it stays within its fair share or takes its
        turn with a job that is larger than the share, else 2."""
        if within(self._tree.queues[queue].guarantee, self._totals.held(queue), more):
            return 0
        beyond = self._beyond_due(queue, more)
        return 2 if beyond and not self._turn(queue, beyond) else 1

    def _beyond_due(self, queue: str, more: Mapping[str, int]) -> list[str]:
        """The classes of which the queue would hold more than its fair share."""
        held, due = self._totals.held(queue), self._fair_share.of(queue)
        return [r for r in DIVIDED if more.get(r) and held.get(r, 0) + more[r] > due.get(r, 0)]

    def _turn(self, queue: str, beyond: Iterable[str]) -> bool:
        """Whether a job that is larger than the fair share, in these classes, counts as within it: the queue holds
        nothing else, and has used less than its part. So queues take turns with such jobs."""
        held = self._totals.held(queue)
        return not any(held.get(resource, 0) for resource in beyond) and self._fair_share.owed(queue)

    def within_guarantee(self, queue: str, more: Mapping[str, int]) -> bool:
        """Whether all queues on the way up that have a guarantee stay within it."""
        path = self._tree.known_path(queue)
        guaranteed = [name for name in path if self._tree.queues[name].guarantee]
        return bool(guaranteed) and all(self.share_class(name, more) == 0 for name in guaranteed)

    def outranks(self, queue: str, more: Mapping[str, int], other: str, others_more: Mapping[str, int]) -> bool:
        """Whether a job that is larger than its queue's fair share takes its turn before another job: the other one is
        smaller, and exceeds the share of a queue on its side, from where the paths of the two queues part down."""
        if not self.outsizes(queue, more, other, others_more):
            return False
        path = self._tree.known_path(queue)
        theirs = [name for name in self._tree.known_path(other) if name not in path]
        return any(self.share_class(name, others_more) == 2 for name in theirs)

    def outsizes(self, queue: str, more: Mapping[str, int], other: str, others_more: Mapping[str, int]) -> bool:
        """Whether a job is larger than its queue's fair share and has its turn, and another job is smaller."""
        if self._rates.of(tuple(more.items())) <= self._rates.of(tuple(others_more.items())):
            return False
        others = self._tree.known_path(other)
        mine = [name for name in self._tree.known_path(queue) if name not in others]
        beyond = {name: found for name in mine if (found := self._beyond_due(name, more))}
        return bool(beyond) and all(self._turn(name, found) for name, found in beyond.items())

    def key(self, queue: str, more: Mapping[str, int], advance_ms: int = 0) -> tuple[int, int, int, int]:
        """The place of a queue among its siblings if `more` is placed next: the least comes first. It counts as used
        for `advance_ms` already."""
        record = self._tree.queues[queue]
        used = self._accounts.ratio(queue, advance_ms * self._rates.of(tuple(more.items())) if advance_ms else 0)
        return self.share_class(queue, more), -record.priority, used, record.created_ms

    def claim_back(
        self, queue: str, amounts: Mapping[str, int], pledged: Mapping[str, Mapping[str, int]],
        less: Mapping[str, int] | None = None,
    ) -> Reclaim | None:  # fmt: skip
        """What a queue may reclaim from others for these amounts, once it has released `less`; None for nothing.
        pledged: the change of what queues hold once all decided evictions are done."""
        claim = self.claim(queue, amounts, pledged)
        if less:
            claim.count(queue, less)
        return None if claim.hopeless else claim

    def claim(self, queue: str, amounts: Mapping[str, int], pledged: Mapping[str, Mapping[str, int]]) -> Reclaim:
        """As `claim_back`, but never None."""
        return Reclaim(self._tree, self._totals, self._fair_share, pledged, queue, amounts)

    def exceeds_due(self, queue: str) -> bool:
        """Whether a queue holds more than its fair share: of GPUs if it holds some, else of any class."""
        held, due = self._totals.held(queue), self._fair_share.exact(queue)
        return any(held.get(r, 0) > due.get(r, 0) for r in ((GPU,) if held.get(GPU, 0) else DIVIDED))

    def reclaimable_queues(
        self, queue: str, amounts: Mapping[str, int], pledged: Mapping[str, Mapping[str, int]],
        less: Mapping[str, int] | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """The queues from which this one may reclaim for these amounts, once it has released `less`. The nearest come
        first, since what they give counts for the queues above them too."""
        if not self._totals.others_hold(queue) or (claim := self.claim_back(queue, amounts, pledged, less)) is None:
            return
        levels: dict[int, list[str]] = {}
        for name, pods in self._totals.priorities.items():
            if pods:
                levels.setdefault(claim.level(name), []).append(name)
        for level in sorted(levels):
            found = [name for name in levels[level] if claim.takes(name, {})]
            yield from found
            for name in found:
                claim.count(name, self._totals.held(name))
