# SPDX-License-Identifier: Apache-2.0
"""NVML, opened once for the threads that read the GPUs.

Rules
- NVML counts how often a process has opened it: it is closed, and finds returned GPUs when it is opened again, only
  when every part of the process has closed it. So this part closes it when another part is about to open it anew
  (`close`), and while another part needs it alone (`pause`). A reading that hangs is waited for at most `_PATIENCE_S`.
- After an error of NVML as a whole (a driver reload) the next reading opens it again, at most once per second.
- `generation` counts the openings. Handles are valid within one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from dovetail.agent.machine.nvml import UNINITIALIZED, Nvml, NvmlError

_PATIENCE_S = 5.0
_AGAIN_S = 1.0
YOUNG_S = 30.0
"""A session that is younger is not opened anew because one GPU fails."""


class Session(Struct, frozen=True):
    """An opening of the library; `count` is the number of GPUs."""

    nvml: Nvml
    generation: int
    count: int


class SharedNvml:
    def __init__(self, open_library: Callable[[], Nvml] = Nvml) -> None:
        self._open_library = open_library
        self._condition = threading.Condition()
        self._session: Session | None = None
        self._generation = 0
        self._readers = 0
        self._paused = 0
        self._tried_s = float("-inf")
        self._error: NvmlError | None = None

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """The open library for the block. Raises NvmlError if it cannot be opened, or is paused."""
        with self._condition:
            session = self._opened()
            self._readers += 1
        try:
            yield session
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    def _opened(self) -> Session:
        if self._paused:
            raise NvmlError("nvmlInit", UNINITIALIZED, "NVML is closed while a GPU is changed")
        if self._session is not None:
            return self._session
        if self._error is not None and time.monotonic() - self._tried_s < _AGAIN_S:
            raise self._error
        self._tried_s = time.monotonic()
        try:
            nvml = self._open_library().__enter__()
            self._generation += 1
            self._session = Session(nvml, self._generation, nvml.call("nvmlDeviceGetCount"))
            self._error = None
        except NvmlError as error:
            self._error = error
            raise
        return self._session

    def broken(self, session: Session) -> None:
        """NVML as a whole failed in this session: open it anew."""
        with self._condition:
            if self._session is session:
                self._shut()

    def doubtful(self, session: Session) -> None:
        """Perhaps NVML as a whole failed in this session: open it anew if it is not young."""
        with self._condition:
            if self._session is session and time.monotonic() - self._tried_s >= YOUNG_S:
                self._shut()

    def close(self) -> None:
        """Close the library when the readings that go on have ended; the next reading opens it again."""
        with self._condition:
            self._condition.wait_for(lambda: not self._readers, _PATIENCE_S)
            self._shut()

    def _shut(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.nvml.__exit__(None, None, None)

    def pause(self) -> None:
        """Close the library, and keep it closed until `resume`."""
        with self._condition:
            self._paused += 1
        self.close()

    def resume(self) -> None:
        with self._condition:
            self._paused -= 1
