# SPDX-License-Identifier: Apache-2.0
"""The division of one resource between queues: first the guarantees, then the rest by priority, weight and history.

1. Each queue gets the least of its guarantee, its request and its limit. Where these sum to more than there is, they
   are not scaled down (each stays entitled to its own), and there is no rest.
2. The rest goes to the highest priority first; a lower one gets what a higher one does not ask for. Within a priority
   it is divided in rounds: each may have the part s / sum of s, one that asks for less gets what it asks for, and what
   it leaves is divided among the others again. With k = 0, s is the weight (weighted max-min). Else

       s = max(0, w + k * (w - U))

   with U the decayed share of what there is that it used, and w the part of the rest that it would get with k = 0 if it
   asked for all of it: W / sum of W while none is satisfied. A queue without a part for its history (s = 0) gets, by
   weight, what the others leave.
3. Parts are floored to whole grains (whole GPUs). What that leaves goes grain by grain to the queue that lost most by
   it, then to the oldest, then by name. One that asks for less than a grain more gets that; the last grain may be a
   part of one.

A weight of 0 or less gets its guarantee alone. All of the rest is divided unless every queue of a weight is satisfied.
More weight or a larger request never get less, and a queue that used more never gets more: but for one grain, as
flooring goes.

Source: KAI Scheduler's resource division with its time-based weights. It differs in three points. There w is W by the
sum of W of those that are not satisfied yet, anew in each round; that jumps when one becomes satisfied, so that more
weight could get less. Here it is the same while none is satisfied, and moves steadily. There the rest stays undivided
where no s is above 0; here it never does. There what flooring leaves to a high priority may go to a lower one first;
here a priority is done with before the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, groupby

from msgspec import Struct

_MILLI = 1000
_MILLION = 1_000_000
_BITS = 64


class Claimant(Struct, frozen=True):
    """Who takes part. `limit` None: no limit. `usage_ppm` is U in millionths. Amounts are in one unit."""

    name: str
    guarantee: int = 0
    limit: int | None = None
    weight: int = 1
    request: int = 0
    usage_ppm: int = 0
    priority: int = 0
    created_ms: int = 0


def divide(total: int, claimants: Sequence[Claimant], history_milli: int, grain: int) -> list[int]:
    """What each is due, in the order of the claimants. `history_milli` is k in thousandths (below 0: 0). The sum is
    what is guaranteed and asked for, and of the rest all that somebody of a weight asks for. Raises ValueError where
    the grain is not above 0."""
    if grain <= 0:
        raise ValueError(f"a grain of {grain}: it must be above 0")
    wanted = [max(0, c.request if c.limit is None else min(c.request, c.limit)) for c in claimants]
    given = [max(0, min(c.guarantee, want)) for c, want in zip(claimants, wanted, strict=True)]
    rest = max(0, total - sum(given))
    asking = [i for i, c in enumerate(claimants) if c.weight > 0 and wanted[i] > given[i]]
    asking.sort(key=lambda i: (-claimants[i].priority, claimants[i].created_ms, claimants[i].name))
    for _, group in groupby(asking, key=lambda i: claimants[i].priority):
        bucket = list(group)
        asks = {i: wanted[i] - given[i] for i in bucket}
        weights = _weights(rest, asks, {i: claimants[i] for i in bucket}, max(0, history_milli))
        for i, amount in _parts(rest, asks, weights, grain).items():
            given[i] += amount
            rest -= amount
        # Who has no part for its history gets what the others left by its weight alone.
        left = {i: claimants[i].weight for i in bucket if weights[i] == 0}
        for i, amount in _parts(rest, {i: asks[i] for i in left}, left, grain).items():
            given[i] += amount
            rest -= amount
    return given


def _rounds(pool: int, asks: dict[int, int], weights: dict[int, int]) -> tuple[list[int], int]:
    """Who of a weight is not content with its part of the pool, and what the others leave to them."""
    hungry = [i for i in asks if weights[i] > 0]
    while True:
        total = sum(weights[i] for i in hungry)
        content = {i for i in hungry if asks[i] * total <= pool * weights[i]}
        if not content:
            return hungry, pool
        pool -= sum(asks[i] for i in content)
        hungry = [i for i in hungry if i not in content]


def _weights(rest: int, asks: dict[int, int], claimants: dict[int, Claimant], history_milli: int) -> dict[int, int]:
    """s of each, all times the same number."""
    plain = {i: claimants[i].weight for i in asks}
    if not history_milli or not rest or sum(asks.values()) <= rest:
        return plain
    return {
        i: max(0, w * (_MILLI + history_milli) * _MILLION - (claimants[i].usage_ppm * history_milli << _BITS))
        for i, w in _worths(rest, asks, plain).items()
    }


def _worths(rest: int, asks: dict[int, int], weights: dict[int, int]) -> dict[int, int]:
    """w of each, in parts of 2^_BITS. The asks are more than the rest."""
    order = sorted(asks, key=lambda i: (asks[i] << _BITS) // weights[i])
    spent = [0, *accumulate(asks[i] for i in order)]
    heavy = [total := sum(weights.values()), *(total - w for w in accumulate(weights[i] for i in order))]

    def hungry(q: int, ask: int = 0, weight: int = 0) -> bool:
        """Whether the q-th is not content, one that comes before it asking for all instead of this."""
        w = weights[order[q]]
        return (spent[q + 1] - ask) * w + asks[order[q]] * (heavy[q + 1] + weight) > rest * w

    content = bisect_left(range(len(order)), True, key=hungry)
    worths = {}
    for p, i in enumerate(order):
        w, q, pool, weight = weights[i], content, rest - spent[content], heavy[content]
        if p < content:
            q = bisect_left(range(content), True, p + 1, key=partial(hungry, ask=asks[i], weight=w))
            pool, weight = rest - spent[q] + asks[i], heavy[q] + w
        worths[i] = (w * pool << _BITS) // (weight * rest)
    return worths


def _parts(rest: int, asks: dict[int, int], weights: dict[int, int], grain: int) -> dict[int, int]:
    """The division of a pool by weights. Asks are in the order in which equals come."""
    hungry, pool = _rounds(rest, asks, weights)
    parts = {i: asks[i] for i in asks if weights[i] > 0}
    total = sum(weights[i] for i in hungry)
    lost = {}
    for i in hungry:
        parts[i] = pool * weights[i] // (total * grain) * grain
        lost[i] = pool * weights[i] - parts[i] * total
    left = pool - sum(parts[i] for i in hungry)
    while hungry and left:
        for i in sorted(hungry, key=lambda i: -lost[i]):
            more = min(grain, left, asks[i] - parts[i])
            parts[i] += more
            left -= more
    return parts
