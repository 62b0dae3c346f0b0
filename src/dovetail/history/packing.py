# SPDX-License-Identifier: Apache-2.0
"""How many nodes the holds of a period need: they are replayed on fewer nodes.

Rules
- A piece is what one pod holds of one node, from the first to the last moment; parts of a GPU stay on the GPU that they
  share, which is one piece. A piece is on one node, and is not moved.
- The replay places each piece, when it begins, on a node with the fewest free GPUs that are enough. Of pieces that
  begin at one time the largest comes first; what ends then has ended. So a number of nodes is proven by the run that
  fits.
- Where the CPUs and the memory of a node are known the requests of its pods have to fit, too. Of nodes with as many
  free GPUs `_TRIES` are tried, so that time is bounded: the answer may be too large for that, and never too small.
- Neither which GPUs of a node nor which nodes of a gang belong together is counted, and no pods without GPUs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import islice

from msgspec import Struct

_TRIES = 16


class Piece(Struct, frozen=True):
    """So many GPUs of one node for a time, and what its pods request of the node's CPUs and memory."""

    start_ms: int
    end_ms: int
    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0


class NodeSize(Struct, frozen=True):
    """The GPUs of a node, and the CPUs and memory that pods can request there; 0 where these are not known."""

    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def counts(self) -> bool:
        """Whether CPUs and memory are known."""
        return bool(self.cpu_milli and self.memory_mib)


def fits(pieces: Sequence[Piece], nodes: int, size: NodeSize) -> bool:
    """Whether the pieces, in the order of `ordered`, fit on so many nodes."""
    by_free: list[set[int]] = [set() for _ in range(size.gpus)] + [set(range(nodes))]
    free_of, cpu_of, memory_of = [size.gpus] * nodes, [size.cpu_milli] * nodes, [size.memory_mib] * nodes
    ends: list[tuple[int, int, int]] = []
    counts = size.counts
    for number, piece in enumerate(pieces):
        while ends and ends[0][0] <= piece.start_ms:
            _, over, node = heappop(ends)
            ended = pieces[over]
            by_free[free_of[node]].remove(node)
            free_of[node] += ended.gpus
            cpu_of[node] += ended.cpu_milli
            memory_of[node] += ended.memory_mib
            by_free[free_of[node]].add(node)
        found = next(
            (
                node
                for free in range(piece.gpus, size.gpus + 1)
                for node in islice(by_free[free], _TRIES)
                if not counts or (cpu_of[node] >= piece.cpu_milli and memory_of[node] >= piece.memory_mib)
            ),
            None,
        )
        if found is None:
            return False
        by_free[free_of[found]].remove(found)
        free_of[found] -= piece.gpus
        cpu_of[found] -= piece.cpu_milli
        memory_of[found] -= piece.memory_mib
        by_free[free_of[found]].add(found)
        heappush(ends, (piece.end_ms, number, found))
    return True


def ordered(pieces: Iterable[Piece]) -> list[Piece]:
    """In the order in which they are placed."""
    return sorted(
        (one for one in pieces if one.end_ms > one.start_ms),
        key=lambda one: (one.start_ms, -one.gpus, -one.cpu_milli, -one.memory_mib),
    )


def nodes_needed(pieces: Iterable[Piece], size: NodeSize, most: int) -> int | None:
    """The fewest nodes, up to `most`, of which the replay shows that they are enough; None if `most` are not."""
    some = ordered(pieces)
    found = bisect_left(range(most), True, key=lambda nodes: fits(some, nodes, size))
    return found if found < most or fits(some, most, size) else None
