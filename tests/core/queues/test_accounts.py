# SPDX-License-Identifier: Apache-2.0
"""What a queue has used before it has used anything."""

from __future__ import annotations

import pytest

from dovetail.core.queues.accounts import Accounts
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import Queue, Usage

HOUR_OF_A_GPU = 1_000 * 3_600_000


def used_by_a_new_queue(weight: int, *siblings: tuple[int, int]) -> int:
    """Beside siblings with these weights and usages."""
    tree = Tree()
    accounts = Accounts(tree)
    others = [Queue(f"old-{i}", weight=w, usage=Usage(0, used)) for i, (w, used) in enumerate(siblings)]
    for queue in (*others, Queue("new", weight=weight)):
        tree.put(queue)
        accounts.begin(queue)
    return accounts.of("new").at(0)


@pytest.mark.parametrize(
    ("weight", "siblings", "expected"),
    [
        (1, (), 0),
        (1, ((1, 2 * HOUR_OF_A_GPU), (1, 4 * HOUR_OF_A_GPU)), 3 * HOUR_OF_A_GPU),
        (2, ((1, 2 * HOUR_OF_A_GPU), (4, 4 * HOUR_OF_A_GPU)), 3 * HOUR_OF_A_GPU),
        (1, ((1, 2 * HOUR_OF_A_GPU), (1, 0)), 2 * HOUR_OF_A_GPU),
        # What rounding left of a past is none: half of the mean would be a gift.
        (1, ((1, 2 * HOUR_OF_A_GPU), (1, 1)), 2 * HOUR_OF_A_GPU),
        (0, ((1, 2 * HOUR_OF_A_GPU),), 0),
    ],
)
def test_a_new_queue_begins_with_the_mean_of_its_siblings_by_weight(
    weight: int, siblings: tuple[tuple[int, int], ...], expected: int
) -> None:
    assert used_by_a_new_queue(weight, *siblings) == pytest.approx(expected, rel=1e-6)
