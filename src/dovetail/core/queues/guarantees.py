# SPDX-License-Identifier: Apache-2.0
"""The effective guarantees, where the queues below another are guaranteed more than it can provide.

Rules: a queue provides to the queues below it the effective part of its own guarantee of a resource class; if it names
none for the class, what it gets for them from above; never more than its limit. If the guarantees right below it add up
to more, each is scaled in proportion to what is written, in whole grains. The remainder goes grain by grain to the
queue that lost most by the rounding, then to the oldest, then by name (`division`). So the guarantee of one queue never
voids that of another. The guarantees of the top level are never scaled: nodes come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.queues.division import Claimant, divide
from dovetail.core.queues.types import GPU, GPU_CLASSES, MODEL_PREFIX, Amounts, Queue

ByClass = dict[str, int]
"""Amounts by resource class."""


class Scaled(Struct, frozen=True):
    """The guarantees right below `parent` add up to `written`, of which only `bound` is effective: the effective
    guarantee of the parent, or its limit (`by`)."""

    parent: str
    resource: str
    written: int
    bound: int
    by: str


class Guarantees(Struct, frozen=True):
    """The effective guarantee of each queue for itself and those below it, by name and class, and what was scaled."""

    effective: dict[str, ByClass]
    scaled: tuple[Scaled, ...]

    def of(self, queue: Queue) -> Queue:
        """The queue with its effective guarantee."""
        effective = self.effective.get(queue.name)
        if effective is None or all(effective[resource] == amount for resource, amount in queue.guarantee):
            return queue
        counts = tuple([(resource, effective[resource]) for resource, _ in queue.guarantee])
        return replace(queue, guarantee=counts)


def guarantees(queues: Mapping[str, Queue], order: Sequence[str], children: Mapping[str, Iterable[str]]) -> Guarantees:
    """The effective guarantees of queues that can be used. `order` names each queue before those below it."""
    written: dict[str, ByClass] = {}
    for name in reversed(order):
        written[name] = _written(queues[name], [written[child] for child in children.get(name, ()) if child in written])
    effective = {name: written[name] for name in order if not queues[name].parent}
    scaled: list[Scaled] = []
    for name in order:
        below = [child for child in children.get(name, ()) if child in written]
        effective |= {child: dict(written[child]) for child in below}
        for resource in sorted({resource for child in below for resource in written[child]}):
            claims = {child: written[child][resource] for child in below if written[child].get(resource, 0) > 0}
            limit = dict(queues[name].limit).get(resource)
            bound, by = effective[name][resource], "guarantee"
            if limit is not None and limit <= bound:
                bound, by = limit, "limit"
            if sum(claims.values()) <= bound:
                continue
            scaled.append(Scaled(name, resource, sum(claims.values()), bound, by))
            for child, amount in _parts(queues, claims, bound, _grain(resource)).items():
                effective[child][resource] = amount
    return Guarantees(effective, tuple(scaled))


def within(
    guarantee: Amounts, held: Mapping[str, int], more: Mapping[str, int], less: Mapping[str, int] | None = None
) -> bool:  # fmt: skip
    """Whether a queue that holds `held` stays within its guarantee with `more` and without `less`, in every class that
    the guarantee names. A guarantee that names no class of GPUs guarantees nothing to a job with GPUs."""
    named = {resource: amount for resource, amount in guarantee if more.get(resource, 0)}
    if not named or (more.get(GPU, 0) and GPU_CLASSES.isdisjoint(named)):
        return False
    gone = less or {}
    return all(held.get(r, 0) - gone.get(r, 0) + more[r] <= amount for r, amount in named.items())


def _written(queue: Queue, below: Iterable[ByClass]) -> ByClass:
    """The guarantee of the queue. Classes that it does not name have the sum of those below it, within its limit."""
    found: ByClass = {}
    for amounts in below:
        for resource, amount in amounts.items():
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
    """Whole GPUs: a job that needs a GPU cannot use a part of one."""
    return 1000 if resource == GPU or resource.startswith(MODEL_PREFIX) else 1
