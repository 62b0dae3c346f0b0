# SPDX-License-Identifier: Apache-2.0
"""Changes on trial: what happens in a `with` block is undone at its end unless it was kept.

Rules: trials nest; a kept inner one belongs to the outer. Changes are undone in reverse order, and with them what they
announced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from msgspec import Struct

from dovetail.core.cluster.changes import Changes
from dovetail.core.cluster.kubelets import KubeletEntry
from dovetail.core.cluster.placement import Placement
from dovetail.core.decisions import ClaimGrant
from dovetail.core.dra.types import Allocation


class Evicted(Struct):
    """What undoes the eviction of a pod in a trial: its placement with its MIG instances and grants, the last entry of
    its node's kubelet, the order of the pods there, the pods that inherited grants, and what its own claims had."""

    placement: Placement
    slices: tuple[int, ...]
    grants: tuple[ClaimGrant, ...]
    books: KubeletEntry | None
    order: tuple[str, ...]
    heirs: list[tuple[Placement, tuple[ClaimGrant, ...]]]
    vacated: list[Allocation]


class Trial:
    """What happens in the `with` block; undone at its end unless `keep()` was called."""

    __slots__ = ("_announced", "_log", "_outer", "_state", "kept")

    def __init__(self, state: Undoable) -> None:
        self._state = state
        self._log: list[Placement | Evicted] = []
        self.kept = False

    def keep(self) -> None:
        self.kept = True

    def placed(self) -> list[Placement]:
        """The placements that were made in it and are still there, in order."""
        return [done for done in self._log if isinstance(done, Placement)]

    def __enter__(self) -> Trial:
        state = self._state
        self._outer, self._announced = state.undo, state.changes.count
        state.undo = self._log
        return self

    def __exit__(self, *raised: object) -> None:
        state = self._state
        state.undo = self._outer
        if not self.kept:
            for done in reversed(self._log):
                state.reverse(done)
            state.changes.rewind(self._announced)
        elif self._outer is not None:
            self._outer.extend(self._log)


class Undoable(ABC):
    """A state whose changes can be undone; `changes` is what it has announced."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.undo: list[Placement | Evicted] | None = None
        """What the running trial has done, in order; None where none runs."""

    def trial(self) -> Trial:
        """A change to the state that is undone unless kept. Trials nest; a kept inner one belongs to the outer."""
        return Trial(self)

    @abstractmethod
    def reverse(self, done: Placement | Evicted) -> None:
        """Undo one change, the last that is not undone."""

    def mark(self) -> int:
        """A point inside the running trial to `rewind` to."""
        assert self.undo is not None, "mark() outside of a trial"
        return len(self.undo)

    def rewind(self, mark: int) -> None:
        """Undo what the running trial did since `mark`."""
        assert self.undo is not None, "rewind() outside of a trial"
        announced = self.changes.count
        while len(self.undo) > mark:
            self.reverse(self.undo.pop())
        self.changes.rewind(announced)
