# SPDX-License-Identifier: Apache-2.0
"""The division of one resource between queues: first the guarantees, then the rest by priority, weight and history.

1. Each queue gets the least of its guarantee, its request and its limit. If these add up to more than the total, they
   are not scaled down (each queue stays entitled to its guarantee), and there is no rest.
2. The rest goes to the highest priority first; a lower priority gets what a higher one does not request. Within a
   priority it is divided in rounds: each queue may have the part s / sum of s. A queue that requests less gets its
   request, and what it leaves is divided among the other queues in the next round. With k = 0, s is the weight
   (weighted max-min fairness). Otherwise

       s = max(0, w + k * (w - U))

   U is the decayed usage of the queue as a part of the total. w is the part of the rest that the queue would get with
   k = 0 if it requested all of it: W / sum of W as long as no queue is satisfied. The queues that have no part because
   of their usage (s = 0) divide what the others leave by weight.
3. Parts are rounded down to whole grains (whole GPUs). The remainder goes grain by grain to the queue that lost most by
   the rounding, then to the oldest, then by name. A queue that requests less than one more grain gets just that; the
   last grain may be a part of one.

A queue with a weight of 0 or less gets its guarantee alone. All of the rest is divided unless every queue with a weight
is satisfied. A queue never gets less for more weight or a larger request, and never gets more for more usage, except
for one grain by rounding.

Source: KAI Scheduler's resource division with its time-based weights. It differs in three points. In KAI w is W divided
by the sum of W of the queues that are not satisfied yet, computed in each round; it jumps when a queue becomes
satisfied, so that more weight could yield less. Here w is the same as long as none is satisfied, and then moves
steadily. In KAI the rest stays undivided where no s is above 0; here it never does. In KAI the remainder of a high
priority may go to a lower one first; here a priority is finished before the next one.
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
    """A queue that takes part. `limit` None: no limit. `usage_ppm` is U in millionths. All amounts are in one unit."""

    name: str
    guarantee: int = 0
    limit: int | None = None
    weight: int = 1
    request: int = 0
    usage_ppm: int = 0
    priority: int = 0
    created_ms: int = 0


def divide(total: int, claimants: Sequence[Claimant], history_milli: int, grain: int) -> list[int]:
    """The part of each claimant, in their order. `history_milli` is k in thousandths (below 0: 0). The parts add up to
    the requested guarantees and, of the rest, all that queues with a weight request. Raises ValueError where the grain
    is not above 0."""
    if grain <= 0:
        raise ValueError(f"a grain of {grain}: it must be above 0")
    wanted = [max(0, c.request if c.limit is None else min(c.request, c.limit)) for c in claimants]
    due = [max(0, min(c.guarantee, want)) for c, want in zip(claimants, wanted, strict=True)]
    rest = max(0, total - sum(due))
    asking = [i for i, c in enumerate(claimants) if c.weight > 0 and wanted[i] > due[i]]
    asking.sort(key=lambda i: (-claimants[i].priority, claimants[i].created_ms, claimants[i].name))
    for _, group in groupby(asking, key=lambda i: claimants[i].priority):
        bucket = list(group)
        asks = {i: wanted[i] - due[i] for i in bucket}
        weights = _weights(rest, asks, {i: claimants[i] for i in bucket}, max(0, history_milli))
        for i, amount in _parts(rest, asks, weights, grain).items():
            due[i] += amount
            rest -= amount
        # Queues that have no part because of their usage divide what the others leave, by weight alone.
        left = {i: claimants[i].weight for i in bucket if weights[i] == 0}
        for i, amount in _parts(rest, {i: asks[i] for i in left}, left, grain).items():
            due[i] += amount
            rest -= amount
    return due


def _rounds(pool: int, asks: dict[int, int], weights: dict[int, int]) -> tuple[list[int], int]:
    """The claimants with a weight that their part of the pool does not satisfy, and what the others leave to them."""
    unsatisfied = [i for i in asks if weights[i] > 0]
    while True:
        total = sum(weights[i] for i in unsatisfied)
        satisfied = {i for i in unsatisfied if asks[i] * total <= pool * weights[i]}
        if not satisfied:
            return unsatisfied, pool
        pool -= sum(asks[i] for i in satisfied)
        unsatisfied = [i for i in unsatisfied if i not in satisfied]


def _weights(rest: int, asks: dict[int, int], claimants: dict[int, Claimant], history_milli: int) -> dict[int, int]:
    """s of each claimant, all scaled by the same factor."""
    plain = {i: claimants[i].weight for i in asks}
    if not history_milli or not rest or sum(asks.values()) <= rest:
        return plain
    return {
        i: max(0, w * (_MILLI + history_milli) * _MILLION - (claimants[i].usage_ppm * history_milli << _BITS))
        for i, w in _worths(rest, asks, plain).items()
    }


def _worths(rest: int, asks: dict[int, int], weights: dict[int, int]) -> dict[int, int]:
    """w of each claimant, in units of 2^-_BITS. The requests add up to more than the rest."""
    order = sorted(asks, key=lambda i: (asks[i] << _BITS) // weights[i])
    spent = [0, *accumulate(asks[i] for i in order)]
    heavy = [total := sum(weights.values()), *(total - w for w in accumulate(weights[i] for i in order))]

    def unsatisfied(q: int, ask: int = 0, weight: int = 0) -> bool:
        """Whether the q-th is not satisfied when a claimant before it requests everything instead of `ask`."""
        w = weights[order[q]]
        return (spent[q + 1] - ask) * w + asks[order[q]] * (heavy[q + 1] + weight) > rest * w

    satisfied = bisect_left(range(len(order)), True, key=unsatisfied)
    worths = {}
    for p, i in enumerate(order):
        w, q, pool, weight = weights[i], satisfied, rest - spent[satisfied], heavy[satisfied]
        if p < satisfied:
            q = bisect_left(range(satisfied), True, p + 1, key=partial(unsatisfied, ask=asks[i], weight=w))
            pool, weight = rest - spent[q] + asks[i], heavy[q] + w
        worths[i] = (w * pool << _BITS) // (weight * rest)
    return worths


def _parts(rest: int, asks: dict[int, int], weights: dict[int, int], grain: int) -> dict[int, int]:
    """Divide a pool by weights. The order of `asks` breaks ties."""
    unsatisfied, pool = _rounds(rest, asks, weights)
    parts = {i: asks[i] for i in asks if weights[i] > 0}
    total = sum(weights[i] for i in unsatisfied)
    lost = {}
    for i in unsatisfied:
        parts[i] = pool * weights[i] // (total * grain) * grain
        lost[i] = pool * weights[i] - parts[i] * total
    left = pool - sum(parts[i] for i in unsatisfied)
    while unsatisfied and left:
        for i in sorted(unsatisfied, key=lambda i: -lost[i]):
            more = min(grain, left, asks[i] - parts[i])
            parts[i] += more
            left -= more
    return parts
