# SPDX-License-Identifier: Apache-2.0
"""Many pods go to as few and as tight domains as can be, and the kernel chooses the slots that Python does."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail.core.cluster.columns import ABSENT
from dovetail.core.placing import kernel
from dovetail.core.placing.arrangement import Slots, arrange

Case = tuple[Slots, NDArray[np.int64], Slots | None, int, tuple[NDArray[np.int32], ...]]


def drawn(seed: int) -> Case:
    """Slots of domains within domains, some of them full, some in no domain, and so many pods."""
    dice = random.Random(seed)
    size = dice.choice((1, 2, 5, 12, 40, 130))
    copies = np.array([dice.choice((0, 0, 1, 1, 2, 5)) for _ in range(size)], dtype=np.int64)
    score = np.array([dice.choice((-3, 0, 7, 2**40)) for _ in range(size)], dtype=np.int64)
    levels, inside, numbers = [], [0] * size, 1
    for _ in range(dice.choice((0, 1, 2, 3))):
        reported = [(inside[slot], dice.choice((ABSENT, 0, 1, 2))) for slot in range(size)]
        distinct = sorted(set(reported))
        dice.shuffle(distinct)
        inside = [distinct.index(one) for one in reported]
        numbers = max(numbers, len(distinct))
        levels.append(
            np.array([ABSENT if reported[s][1] == ABSENT else inside[s] for s in range(size)], dtype=np.int32)
        )
    scope = None
    if dice.random() < 0.5:
        scope = np.array(sorted(dice.sample(range(size), dice.randint(0, size))), dtype=np.int64)
    return copies, score, scope, dice.choice((1, 2, 3, 7, 20, int(copies.sum()) or 1)), tuple(levels)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_pods_take_as_few_and_as_tight_domains_as_can_be(first: int) -> None:
    for seed in range(first, first + 100):
        few_and_tight(seed)


def few_and_tight(seed: int) -> None:
    copies, score, scope, count, levels = drawn(seed)
    found = arrange(copies, score, scope, count, levels)
    allowed = set(range(len(copies)) if scope is None else scope.tolist())
    assert set(found) <= allowed
    assert all(1 <= times <= copies[slot] for slot, times in found.items())
    total = sum(int(copies[slot]) for slot in allowed)
    assert sum(found.values()) == min(count, total)
    inside = allowed
    for level in levels:
        sums: dict[int, int] = {}
        for slot in inside:
            if copies[slot]:
                sums[int(level[slot])] = sums.get(int(level[slot]), 0) + int(copies[slot])
        falling = sorted(sums.values(), reverse=True)
        touched = {int(level[slot]) for slot in found}
        fewest = next((k for k in range(1, len(falling) + 1) if sum(falling[:k]) >= count), len(falling))
        assert len(touched) == fewest
        if fewest != 1 or total < count:
            return
        (only,) = touched
        assert sums[only] == min(one for one in falling if one >= count)
        inside = {slot for slot in inside if int(level[slot]) == only}
    if total >= count:
        # Within the narrowest domain nobody better is left out.
        best = sorted((slot for slot in inside if copies[slot]), key=lambda slot: (-score[slot], slot))
        assert list(found) == best[: len(found)]


def test_the_kernel_chooses_the_same_slots_in_the_same_order() -> None:
    if not kernel.BUILT:
        pytest.skip("there is no kernel to compare")
    for seed in range(400):
        case = drawn(seed)
        assert list(kernel.arrange(*case).items()) == list(arrange(*case).items()), seed


def test_the_kernel_refuses_arrays_that_do_not_belong_together() -> None:
    if not kernel.BUILT:
        pytest.skip("there is no kernel to ask")
    copies, score = np.ones(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    with pytest.raises(ValueError, match="not of one size"):
        kernel.arrange(copies, score[:3].copy(), None, 1, ())
    with pytest.raises(ValueError, match="not of one size"):
        kernel.arrange(copies, score, None, 1, (np.zeros(3, dtype=np.int32),))
    with pytest.raises(TypeError, match="items of 8 bytes, not of 4"):
        kernel.arrange(copies, score, None, 1, (score,))  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="slot 4 of 4"):
        kernel.arrange(copies, score, np.array([4], dtype=np.int64), 1, ())
