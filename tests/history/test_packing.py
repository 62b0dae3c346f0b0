# SPDX-License-Identifier: Apache-2.0
"""How many nodes the holds of a period need, against a replay that keeps a list for each node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.history.packing import Piece, fits, nodes_needed, ordered

GPUS = 4
pieces = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, GPUS)).map(
        lambda one: Piece(one[0], one[0] + one[1], one[2])
    ),
    max_size=12,
)


def fits_by_hand(some: list[Piece], nodes: int) -> bool:
    on: list[list[Piece]] = [[] for _ in range(nodes)]
    for piece in ordered(some):
        free = [GPUS - sum(one.gpus for one in held if one.end_ms > piece.start_ms) for held in on]
        enough = [(room, node) for node, room in enumerate(free) if room >= piece.gpus]
        if not enough:
            return False
        on[min(enough)[1]].append(piece)
    return True


@given(pieces, st.integers(0, 6))
def test_as_by_hand(some: list[Piece], nodes: int) -> None:
    assert fits(ordered(some), nodes, GPUS) == fits_by_hand(some, nodes)


@given(pieces)
def test_the_number_is_proven_and_not_below_the_peak(some: list[Piece]) -> None:
    needed = nodes_needed(some, GPUS, 12)
    peak = max((sum(one.gpus for one in some if one.start_ms <= at < one.end_ms) for at in range(15)), default=0)
    assert needed is not None and fits_by_hand(some, needed) and needed * GPUS >= peak


@pytest.mark.parametrize(
    ("some", "most", "needed"),
    [
        ([], 3, 0),
        ([Piece(0, 9, 3), Piece(0, 9, 3)], 3, 2),
        ([Piece(0, 5, 3), Piece(5, 9, 3)], 3, 1),
        ([Piece(0, 9, 4), Piece(1, 9, 1)], 1, None),
        # Of those that begin at one time the largest first: the smallest first would need a third node.
        ([Piece(0, 9, gpus) for gpus in (1, 2, 2, 3)], 3, 2),
    ],
)
def test_examples(some: list[Piece], most: int, needed: int | None) -> None:
    """Two pods of three GPUs need two nodes of four, though six GPUs were held at most."""
    assert nodes_needed(some, GPUS, most) == needed
