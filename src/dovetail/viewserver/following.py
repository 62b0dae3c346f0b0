# SPDX-License-Identifier: Apache-2.0
"""The copy of the scheduler's state, kept by its calls of the core, and the objects that it has reported."""

from __future__ import annotations

import asyncio

from dovetail.core.state import State
from dovetail.kube.translate.reported import ReportedObjects
from dovetail.recording.stream import HEAD_BYTES, REPORTED, StreamedCopy


class Following:
    """Follows the frames of a reader. `begun`: there is a state. `scheduler_name` is that of our pods."""

    def __init__(self, reader: asyncio.StreamReader, scheduler_name: str) -> None:
        self.begun = asyncio.Event()
        self.objects = ReportedObjects(scheduler_name)
        self._reader = reader
        self._copy = StreamedCopy()
        self._moved = asyncio.Event()

    @property
    def state(self) -> State:
        return self._copy.state

    @property
    def frames(self) -> int:
        """The number of frames so far."""
        return self._copy.frames

    async def beyond(self, frames: int) -> None:
        """Wait for more frames than these."""
        while self.frames <= frames:
            self._moved.clear()
            await self._moved.wait()

    async def run(self) -> None:
        """Follow until the stream ends. Raises what `StreamedCopy.take` raises."""
        while True:
            try:
                head = await self._reader.readexactly(HEAD_BYTES)
                payload = await self._reader.readexactly(int.from_bytes(head[1:], "big"))
            except asyncio.IncompleteReadError:
                return
            if head[:1] == REPORTED:
                self.objects.take(payload)
            self._copy.take(head + payload)
            if self._copy.begun:
                self.begun.set()
            self._moved.set()
            # The requests come between two frames.
            await asyncio.sleep(0)
