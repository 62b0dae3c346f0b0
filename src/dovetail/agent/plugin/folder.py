# SPDX-License-Identifier: Apache-2.0
"""Watches a folder by inotify: a wait ends when an entry is created, removed or renamed.

Rules: while the folder does not exist, its nearest existing parent is watched. If the kernel refuses the watch, waits
end after `BLIND_S`. A wait does not return what has changed: the caller reads the folder.
Source: inotify(7).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path

BLIND_S = 10.0
_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x40, 0x80, 0x400, 0x800
_ONLY_FOLDERS = 0x01000000
_MASK = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS


class PluginFolder:
    """The folder `path`, watched from `open` to `close`. `fault` is why the kernel does not watch it, else "". `turn`
    grows with every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""
        self.turn = 0
        self._file = -1
        self._watch = -1
        self._watched: Path | None = None
        self._changed = asyncio.Event()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def open(self) -> None:
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            self.fault = f"inotify_init1: {os.strerror(ctypes.get_errno())}"
            return
        asyncio.get_running_loop().add_reader(self._file, self._heard)
        self._aim()

    def close(self) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1
        self.wake()

    async def changed(self, since: int, timeout_s: float = 86_400.0) -> None:
        """Returns when something has changed since `turn` was `since`, or after this time."""
        if self.fault and self._file >= 0:
            self._aim()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, BLIND_S) if self.fault else timeout_s):
                while self.turn == since:
                    await self._changed.wait()

    def _heard(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._file, 65536):
                pass
        self._aim()
        self.wake()

    def wake(self) -> None:
        """End all waits."""
        self.turn += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _aim(self) -> None:
        """Watch the folder, or its nearest existing parent."""
        for _ in range(8):
            # A folder can come or go while the watch is set: then repeat.
            nearest = _nearest(self.path)
            watch = self._libc.inotify_add_watch(self._file, os.fsencode(nearest), _MASK)
            if watch < 0:
                self.fault = f"inotify_add_watch {nearest}: {os.strerror(ctypes.get_errno())}"
                continue
            if watch != self._watch and self._watch >= 0:
                # Fails if the kernel has removed the watch together with the folder.
                self._libc.inotify_rm_watch(self._file, self._watch)
            self._watch, self._watched, self.fault = watch, nearest, ""
            if _nearest(self.path) == nearest:
                return


def _nearest(path: Path) -> Path:
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path
