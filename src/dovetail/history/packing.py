# SPDX-License-Identifier: Apache-2.0
"""How many nodes the holds of a period need: they are replayed on fewer nodes.

Rules
- A piece is what one pod holds of one node, from the first to the last moment; parts of a GPU stay on the GPU that they
  share, which is one piece. A piece is on one node, and is not moved.
- The replay places each piece, when it begins, on the node with the least room that is enough. Of pieces that begin at
  one time the largest comes first; what ends then has ended. So a number of nodes is proven by the run that fits.
- GPUs alone are counted: neither CPU and memory, nor which GPUs of a node or which nodes of a gang belong together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from msgspec import Struct


class Piece(Struct, frozen=True):
    """So many GPUs of one node for a time."""

    start_ms: int
    end_ms: int
    gpus: int


def fits(pieces: Sequence[Piece], nodes: int, node_gpus: int) -> bool:
    """Whether the pieces, in the order of `ordered`, fit on so many nodes."""
    by_free: list[set[int]] = [set() for _ in range(node_gpus)] + [set(range(nodes))]
    free_of = [node_gpus] * nodes
    ends: list[tuple[int, int, int]] = []
    for piece in pieces:
        while ends and ends[0][0] <= piece.start_ms:
            _, node, gpus = heappop(ends)
            by_free[free_of[node]].remove(node)
            free_of[node] += gpus
            by_free[free_of[node]].add(node)
        free = next((free for free in range(piece.gpus, node_gpus + 1) if by_free[free]), None)
        if free is None:
            return False
        node = by_free[free].pop()
        free_of[node] -= piece.gpus
        by_free[free_of[node]].add(node)
        heappush(ends, (piece.end_ms, node, piece.gpus))
    return True


def ordered(pieces: Iterable[Piece]) -> list[Piece]:
    """In the order in which they are placed."""
    return sorted((one for one in pieces if one.end_ms > one.start_ms), key=lambda one: (one.start_ms, -one.gpus))


def nodes_needed(pieces: Iterable[Piece], node_gpus: int, most: int) -> int | None:
    """The fewest nodes, up to `most`, of which the replay shows that they are enough; None if `most` are not."""
    some = ordered(pieces)
    found = bisect_left(range(most), True, key=lambda nodes: fits(some, nodes, node_gpus))
    return found if found < most or fits(some, most, node_gpus) else None
