# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node give shares: of those that are opened, whole GPUs aside.

Rules: a GPU is opened while parts of it are allocated and some is left; `Nodes.gpu_parts` has how much, and 0 for
every other GPU. The tightest GPU that suffices comes first, and of equals the one with the lowest number.
"""

from __future__ import annotations

from dovetail.core.cluster.nodes import Nodes


def tightest_opened(parts: list[int], share: int) -> tuple[int, ...]:
    """The GPU with the least left that suffices, the first of equals; empty where none does."""
    fitting = [gpu for gpu, part in enumerate(parts) if part >= share]
    return (min(fitting, key=parts.__getitem__),) if fitting else ()


def tightest_gpu(nodes: Nodes, slot: int, share: int) -> int:
    """The opened GPU with the least room that suffices, the first of equals; else the first whole one; else -1."""
    opened = tightest_opened(nodes.gpu_parts[:, slot].tolist(), share)
    if opened:
        return opened[0]
    free = int(nodes.gpu_free_bits[slot])
    return (free & -free).bit_length() - 1


def replicas(nodes: Nodes, slot: int, parts: list[int], share: int, count: int) -> tuple[int, ...]:
    """Different GPUs with so much left of each, where `parts` is left: the tightest, or of several the ones that most
    could take from."""
    if count == 1:
        return tightest_opened(parts, share)
    fitting, seats = [gpu for gpu, part in enumerate(parts) if part >= share], nodes.gpu_seats[:, slot].tolist()
    return tuple(sorted(fitting, key=lambda gpu: -min(parts[gpu] // share, seats[gpu]))[:count])
