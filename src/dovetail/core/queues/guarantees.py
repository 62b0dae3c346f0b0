# SPDX-License-Identifier: Apache-2.0
"""What counts of the guarantees that are written, where the queues below another have more than it can give them.

Rules: a queue gives to those below it what counts of its own guarantee of a resource class or, where it names none,
what it gets for them from above; never more than its limit. Where those right below it are guaranteed more in all, each
gets its part by what is written, in whole grains; what that leaves goes grain by grain to who lost most by it, then to
the oldest, then by name (`division`). So nobody is shut out by what is written for another. What the queues at the top
have in all is never scaled down: nodes come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.queues.division import Claimant, divide
from dovetail.core.queues.types import GPU, GPU_CLASSES, MODEL_PREFIX, Amounts, Queue

Given = dict[str, int]
"""By resource class."""


class Scaled(Struct, frozen=True):
    """Of `written`, what the queues right below `parent` are guaranteed in all, only `bound` counts: what counts of the
    guarantee of the parent, or its limit (`by`)."""

    parent: str
    resource: str
    written: int
    bound: int
    by: str


class Guarantees(Struct, frozen=True):
    """What each queue has for itself and for those below it, by name and class, and what was `scaled` down."""

    given: dict[str, Given]
    scaled: tuple[Scaled, ...]

    def of(self, queue: Queue) -> Queue:
        """The queue with what counts of its guarantee."""
        given = self.given.get(queue.name)
        if given is None or all(given[resource] == amount for resource, amount in queue.guarantee):
            return queue
        counts = tuple([(resource, given[resource]) for resource, _ in queue.guarantee])
        return replace(queue, guarantee=counts)


def guarantees(queues: Mapping[str, Queue], order: Sequence[str], children: Mapping[str, Iterable[str]]) -> Guarantees:
    """Of queues that can be used, `order` naming each before those below it."""
    written: dict[str, Given] = {}
    for name in reversed(order):
        written[name] = _written(queues[name], [written[child] for child in children.get(name, ()) if child in written])
    given = {name: written[name] for name in order if not queues[name].parent}
    scaled: list[Scaled] = []
    for name in order:
        below = [child for child in children.get(name, ()) if child in written]
        given |= {child: dict(written[child]) for child in below}
        for resource in sorted({resource for child in below for resource in written[child]}):
            claims = {child: written[child][resource] for child in below if written[child].get(resource, 0) > 0}
            limit = dict(queues[name].limit).get(resource)
            bound, by = given[name][resource], "guarantee"
            if limit is not None and limit <= bound:
                bound, by = limit, "limit"
            if sum(claims.values()) <= bound:
                continue
            scaled.append(Scaled(name, resource, sum(claims.values()), bound, by))
            for child, amount in _parts(queues, claims, bound, _grain(resource)).items():
                given[child][resource] = amount
    return Guarantees(given, tuple(scaled))


def within(
    guarantee: Amounts, held: Mapping[str, int], more: Mapping[str, int], less: Mapping[str, int] | None = None
) -> bool:  # fmt: skip
    """Whether a queue that holds this stays within its guarantee with so much more, and so much `less` of what it
    holds, in every class that the guarantee names. A guarantee that names no class of GPUs guarantees nothing to a job
    with GPUs."""
    named = {resource: amount for resource, amount in guarantee if more.get(resource, 0)}
    if not named or (more.get(GPU, 0) and GPU_CLASSES.isdisjoint(named)):
        return False
    gone = less or {}
    return all(held.get(r, 0) - gone.get(r, 0) + more[r] <= amount for r, amount in named.items())


def _written(queue: Queue, below: Iterable[Given]) -> Given:
    """What the queue is guaranteed and, of classes that it does not name, what those below it are, within its limit."""
    found: Given = {}
    for given in below:
        for resource, amount in given.items():
            found[resource] = found.get(resource, 0) + amount
    limit = dict(queue.limit)
    found = {resource: min(amount, limit.get(resource, amount)) for resource, amount in found.items()}
    return found | dict(queue.guarantee)


def _parts(queues: Mapping[str, Queue], claims: Mapping[str, int], bound: int, grain: int) -> dict[str, int]:
    claimants = [
        Claimant(name, weight=amount, request=amount, created_ms=queues[name].created_ms)
        for name, amount in claims.items()
    ]
    return dict(zip(claims, divide(bound, claimants, 0, grain), strict=True))


def _grain(resource: str) -> int:
    """Whole GPUs: a part of one is of no use to a job that wants one."""
    return 1000 if resource == GPU or resource.startswith(MODEL_PREFIX) else 1
