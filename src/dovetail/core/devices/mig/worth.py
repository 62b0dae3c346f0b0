# SPDX-License-Identifier: Apache-2.0
"""What a card is worth as it is divided now: how much of what comes later it is expected to serve.

Rules: a card is looked at as if it were alone. Requests come to it at random, all together OFFERED_CARDS times what it
could hold; each that fits has to be taken, at its best place; one that does not fit is lost. Whatever runs ends at the
same rate. What is served counts the square of its share of the card: it is worth its share, and the chance that nobody
else has room for it grows with its share, too. A state is worth what is served within HORIZON mean run times from it
on. The next instance goes where this falls least, on whichever card that is.

That the worth of many cards is close to the sum of what each is worth alone is the separable rule of Ott and Krishnan
("Separable routing", 1992) for telephone calls. The worth is worked out by value iteration in steps that are so short
that at most one thing happens in each (uniformization), in integers: it is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

OFFERED_CARDS = 3
HORIZON = 2
"""In mean run times."""
_CARD_MILLI = 1000
_WEIGHTS_BITS = 10
_WORTH_BITS = 24
"""Of one request that asks for a whole card."""
_NONE = -(2**60)


def worths(
    legal: Collection[int], kinds: Sequence[int], shares_milli: Sequence[int], weights: Sequence[int]
) -> dict[int, int]:
    """The worth of each legal state, a set of places that are taken, as bits. `legal` has all parts of its members.
    Of each kind of request, `kinds` are the places that serve it, `shares_milli` is how much of a card it takes, and
    `weights` is how often it is asked for; all states are worth 0 where nothing is."""
    weights = _coarse(weights)
    comes = [weight * OFFERED_CARDS * _CARD_MILLI for weight in weights]
    ends = sum(weight * share for weight, share in zip(weights, shares_milli, strict=True))
    if not ends:
        return dict.fromkeys(legal, 0)
    gains = [(share**2 << _WORTH_BITS) // _CARD_MILLI**2 for share in shares_milli]
    states = np.array(sorted(legal), dtype=np.int64)
    places = [[1 << bit for bit in range(own.bit_length()) if own >> bit & 1] for own in kinds]
    after = [np.array([_numbers(states, states | bit, states & bit == 0) for bit in own]) for own in places]
    before = [_numbers(states, states ^ bit, states & bit != 0) for own in places for bit in own]
    rate = sum(comes) + ends * max(state.bit_count() for state in legal)
    # The last entry stands for what is not legal.
    worth = np.zeros(len(states) + 1, dtype=np.int64)
    for _ in range(HORIZON * rate // ends):
        worth[-1] = _NONE
        change = np.zeros(len(states), dtype=np.int64)
        for often, gain, following in zip(comes, gains, after, strict=True):
            if often and len(following):
                best = worth[following].max(axis=0)
                change += np.where(best > _NONE, often * (best + gain - worth[:-1]), 0)
        for earlier in before:
            change += np.where(earlier < len(states), ends * (worth[earlier] - worth[:-1]), 0)
        worth[:-1] += change // rate
    return dict(zip(states.tolist(), worth.tolist(), strict=False))


def _numbers(states: NDArray[np.int64], others: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The places of the others among the sorted states; where they are none, the number of the states."""
    found = np.minimum(states.searchsorted(others), len(states) - 1)
    return np.where(known & (states[found] == others), found, len(states))


def _coarse(weights: Sequence[int]) -> list[int]:
    """The same in the parts of 1,024 that keep all sums small; what is asked for at all stays above 0."""
    total = max(sum(weights), 1)
    return [max((weight << _WEIGHTS_BITS) // total, 1) if weight else 0 for weight in weights]
