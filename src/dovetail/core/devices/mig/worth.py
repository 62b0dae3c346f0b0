# SPDX-License-Identifier: Apache-2.0
"""The worth of a card as it is partitioned: how much of the later requests it is expected to serve.

Rules: each card is modelled alone. Requests come to it at random, all together OFFERED_CARDS times what it could hold.
A request that fits is placed at its best start; one that does not fit is lost. All running instances end at the same
rate. A served request counts the square of its share of the card: its share is its value, and the chance that no other
card has room for it grows with its share, too. A state is worth what is served within HORIZON mean run times from it
on. The next instance goes where the worth falls least, on any card.

That the worth of many cards is close to the sum of the single ones is the separable rule of Ott and Krishnan
("Separable routing", 1992) for telephone calls. The worth is computed by value iteration in steps so short that at most
one event happens in each (uniformization), in integers: it is the same on every machine.
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
"""The worth of a request for a whole card is 2^24."""
_NONE = -(2**60)


def worths(
    legal: Collection[int], kinds: Sequence[int], shares_milli: Sequence[int], weights: Sequence[int]
) -> dict[int, int]:
    """The worth of each valid state, a set of occupied places, as bits. With a state, `legal` contains all its subsets.
    For each kind of request, `kinds` are the places that serve it, `shares_milli` is its share of a card, and `weights`
    its frequency; all states are worth 0 where no kind is requested."""
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
    # The last entry is for invalid states.
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
    """The indices of the others in the sorted states; the number of states for those that are not among them."""
    found = np.minimum(states.searchsorted(others), len(states) - 1)
    return np.where(known & (states[found] == others), found, len(states))


def _coarse(weights: Sequence[int]) -> list[int]:
    """The weights in parts of 1,024, which keeps all sums small; a weight above 0 stays above 0."""
    total = max(sum(weights), 1)
    return [max((weight << _WEIGHTS_BITS) // total, 1) if weight else 0 for weight in weights]
