# SPDX-License-Identifier: Apache-2.0
"""The arrangement of many pods of one shape on nodes.

Rules: the pods use as few and as tight fabric domains as possible: level by level, from the widest, whole domains from
the largest down while the pods fill them, then the tightest domain that takes the rest. In the narrowest domain the
best nodes come first, and each is filled before the next. The native kernel does this work where it is built
(`arrange.h`); this module is its reference, and both give the same answer.
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
    """The number of pods for each slot that gets some, for up to `count` pods; as many as fit where not all do.
    `copies` is the number of pods that each slot could take, `scope` the slots that may be used, ascending (None: all),
    `levels` the domain of every slot at each fabric level, the widest first, ABSENT for none."""
    candidates = copies.nonzero()[0] if scope is None else scope[copies[scope] > 0]
    chosen = _gather(copies, score, candidates, count, levels)
    times = copies[chosen]
    if len(times):
        # All slots but the last are filled.
        times[-1] -= max(0, int(times.sum()) - count)
    return dict(zip(chosen.tolist(), times.tolist(), strict=True))


def _gather(copies: Slots, score: NDArray[np.int64], candidates: Slots, count: int, levels: Sequence[Ids]) -> Slots:
    """Slots that together take `count` pods; all candidates where these do not suffice."""
    if not levels:
        order = candidates[(-score[candidates]).argsort(kind="stable")]
        enough = int(copies[order].cumsum().searchsorted(count)) + 1
        return order[:enough]
    domains = levels[0][candidates]
    # The slots without a domain form one more domain, the last.
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
