# SPDX-License-Identifier: Apache-2.0
"""NUMA masks and the hints that a kubelet's managers give its Topology Manager.

A mask is an int with bit i set for NUMA node i. A hint states that a request can be met within `mask`, and with
`preferred` that it cannot be met by fewer nodes of the empty machine. A hint without a mask has no preference.

A manager returns a dict from resource to hints. An empty dict: no opinion. None for a resource: any nodes will do. An
empty list: it cannot be met. (topologymanager/topology_manager.go and bitmask/bitmask.go of Kubernetes v1.37.)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import combinations
from typing import NamedTuple


class Hint(NamedTuple):
    mask: int | None
    preferred: bool


Hints = dict[str, list[Hint] | None]

NO_HINT = Hint(None, False)
"""The Topology Manager's decision, as a manager reads it, where there is none (policy none)."""


def mask_of(ids: Iterable[int]) -> int:
    mask = 0
    for numa in ids:
        mask |= 1 << numa
    return mask


def ids_of(mask: int) -> tuple[int, ...]:
    """The NUMA ids of a mask, in ascending order."""
    ids = []
    while mask:
        low = mask & -mask
        ids.append(low.bit_length() - 1)
        mask ^= low
    return tuple(ids)


def narrowness(mask: int) -> tuple[int, int]:
    """The key by which upstream orders masks: fewer nodes first, then the smaller number."""
    return mask.bit_count(), mask


@cache
def masks_over(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Every non-empty subset of `ids` by size, within a size in the order of `ids` (bitmask.IterateBitMasks)."""
    return tuple(mask_of(subset) for size in range(1, len(ids) + 1) for subset in combinations(ids, size))
