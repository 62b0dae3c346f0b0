# SPDX-License-Identifier: Apache-2.0
"""How many nodes the holds of a period need, against a replay that keeps a list for each node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.history.packing import NodeSize, Piece, fits, nodes_needed, ordered

GPUS = 4
SIZE = NodeSize(GPUS)
HOST = NodeSize(GPUS, 8, 8)
pieces = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, GPUS)).map(
        lambda one: Piece(one[0], one[0] + one[1], one[2])
    ),
    max_size=12,
)
hosted = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, GPUS), st.integers(0, 8), st.integers(0, 8)).map(
        lambda one: Piece(one[0], one[0] + one[1], *one[2:])
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
    assert fits(ordered(some), nodes, SIZE) == fits_by_hand(some, nodes)


@given(pieces)
def test_the_number_is_proven_and_not_below_the_peak(some: list[Piece]) -> None:
    needed = nodes_needed(some, SIZE, 12)
    peak = max((sum(one.gpus for one in some if one.start_ms <= at < one.end_ms) for at in range(15)), default=0)
    assert needed is not None and fits_by_hand(some, needed) and needed * GPUS >= peak


@given(hosted, st.integers(0, 4))
def test_what_fits_with_cpus_and_memory_is_within_them_at_each_moment(some: list[Piece], nodes: int) -> None:
    if not fits(ordered(some), nodes, HOST):
        return
    for at in range(15):
        held = [one for one in some if one.start_ms <= at < one.end_ms]
        for amount, room in (("gpus", GPUS), ("cpu_milli", 8), ("memory_mib", 8)):
            assert sum(getattr(one, amount) for one in held) <= room * nodes
    # And what fits so fits with GPUs alone, or on a node for each piece.
    assert fits(ordered(some), len(some), HOST)


@pytest.mark.parametrize(
    ("pieces", "needed"),
    [
        ([Piece(0, 9, 1, 5, 1)] * 3, 3),
        ([Piece(0, 9, 1, 1, 5)] * 3, 3),
        ([Piece(0, 9, 1, 4, 4)] * 4, 2),
        ([Piece(0, 5, 1, 8, 1), Piece(5, 9, 1, 8, 1)], 1),
        # The node with the fewest free GPUs has no CPUs left: the other one is taken.
        ([Piece(0, 9, 2, 8, 1), Piece(1, 9, 1, 1, 1)], 2),
    ],
)
def test_gpus_that_are_stranded_beside_full_cpus_are_not_free(pieces: list[Piece], needed: int) -> None:
    assert nodes_needed(pieces, HOST, 9) == needed
    assert nodes_needed(pieces, SIZE, 9) == 1


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
    assert nodes_needed(some, SIZE, most) == needed
