# SPDX-License-Identifier: Apache-2.0
"""What parts of a state give for the marks of a checkpoint (`core.marks`).

Rule: types that are read from a file are in modules that are not compiled (`dovetail.__native__`): mypyc leaves nothing
of the types of fields but whether they are classes."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.queues.amounts import Amounts

_Parts = tuple[tuple[str, Amounts], ...] | None


class FairShareDivision(Struct, frozen=True):
    """What is due to each queue, in whole GPUs, exactly, and without history (None: not worked out); when it was
    divided, and what queues hold or request more or less since. `compared` was due when queues were last compared;
    None: what is due now."""

    due: _Parts
    exact: _Parts
    lasting: _Parts
    divided_ms: int
    moved: tuple[tuple[str, str, int], ...]
    compared: _Parts = None


class NextMark(Struct, frozen=True):
    """The queue and user that come next, with what the fewest pods of their first workload want, for how many ms that
    counts as used already, and whether it is a scavenger's."""

    queue: str
    user: str
    wanted: Amounts
    advance_ms: int
    scavenges: bool


class OrderMarks(Struct, frozen=True):
    """How queues and users were compared since that was last renewed. `follows`: by the shares that they have now."""

    best: tuple[tuple[str, NextMark | None], ...] = ()
    keys: tuple[tuple[str, NextMark, tuple[int, int, int, int]], ...] = ()
    ratios: tuple[tuple[str, str, int], ...] = ()
    turns: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = ()
    follows: bool = False


class QueuePlace(Struct, frozen=True):
    """The place of a waiting workload: its rank, its queue and user, and whether it is `parked`, or `aside` where no
    change of the cluster wakes it."""

    workload: str
    rank: tuple[int, ...]
    queue: str
    user: str
    state: str
