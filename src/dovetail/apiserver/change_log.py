# SPDX-License-Identifier: Apache-2.0
"""Where the writes of a store go besides its memory: nowhere, or to a file from which the store begins again."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.objects import Object


class StoredContents(Struct):
    """What a log has kept. Objects and changes are with the name of their collection; changes are in their order."""

    version: int = 1
    floor: int = 0
    """The newest version whose change is not kept."""
    objects: list[tuple[str, Object]] = []
    changes: list[tuple[str, StoreChange]] = []


class ChangeLog(Protocol):
    """The writes of one store, in their order."""

    @property
    def failed(self) -> bool:
        """Whether a write could not be kept: what is in memory may be more than what is."""

    def contents(self) -> StoredContents:
        """What was kept until now."""

    def append(self, collection: str, change: StoreChange) -> int:
        """Takes a write. Returns the bytes of its document, 0 where they are not measured.

        Raises a 503 Failure if an earlier write could not be kept.
        """

    def forget(self, version: int) -> None:
        """Changes up to this version are not needed any more."""

    async def written(self) -> None:
        """Returns when all that was appended so far is kept. Raises a 503 Failure if some of it cannot be."""

    async def close(self) -> None:
        """Keeps what was appended, and ends."""


class MemoryLog:
    """Keeps nothing: the store ends with its process."""

    failed = False

    def contents(self) -> StoredContents:
        return StoredContents()

    def append(self, collection: str, change: StoreChange) -> int:
        return 0

    def forget(self, version: int) -> None:
        pass

    async def written(self) -> None:
        pass

    async def close(self) -> None:
        pass
