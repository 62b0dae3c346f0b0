# SPDX-License-Identifier: Apache-2.0
"""On which slots so many pods of one shape go.

Rules: they take up as few and as tight fabric domains as can be: level by level, from the widest, whole domains from
the largest down while they are needed whole, then the tightest that takes the rest. In the narrowest domain the best
nodes come first, and each is filled before the next. Where the native kernel was built it does this work (`arrange.h`);
what is here says the same and says what is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.columns import ABSENT, Ids

Slots = NDArray[np.int64]


def arrange(
    copies: Slots, score: NDArray[np.int64], scope: Slots | None, count: int, levels: Sequence[Ids]
) -> dict[int, int]:
    """Slots for up to `count` pods, and how many of them go to each; as many as fit where not all do. `copies` is how
    many each slot could take, `scope` the slots that may be used, ascending (None: all), `levels` the domain of every
    slot at each level, the widest first, ABSENT for none."""
    candidates = copies.nonzero()[0] if scope is None else scope[copies[scope] > 0]
    chosen = _gather(copies, score, candidates, count, levels)
    times = copies[chosen]
    if len(times):
        # All but the last are filled.
        times[-1] -= max(0, int(times.sum()) - count)
    return dict(zip(chosen.tolist(), times.tolist(), strict=True))


def _gather(copies: Slots, score: NDArray[np.int64], candidates: Slots, count: int, levels: Sequence[Ids]) -> Slots:
    """Slots that together take `count` pods; all candidates where they do not suffice."""
    if not levels:
        order = candidates[(-score[candidates]).argsort(kind="stable")]
        enough = int(copies[order].cumsum().searchsorted(count)) + 1
        return order[:enough]
    domains = levels[0][candidates]
    # Slots without a domain are one more, the last.
    known = np.where(domains == ABSENT, domains.max(initial=0) + 1, domains)
    sums = np.bincount(known, weights=copies[candidates]).astype(np.int64)
    order = (-sums).argsort(kind="stable")
    sums = sums[order]
    lacking = count - sums.cumsum() + sums
    suffices = sums >= lacking
    if not suffices.any():
        return candidates
    whole = int(suffices.argmax())
    left, count = sums[whole:], int(lacking[whole])
    last = order[whole + int((left == left[left >= count].min()).argmax())]
    taken = np.zeros(len(sums), dtype=np.bool_)
    taken[order[:whole]] = True
    rest = _gather(copies, score, candidates[known == last], count, levels[1:])
    return np.concatenate((candidates[taken[known]], rest))
