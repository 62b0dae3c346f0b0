# SPDX-License-Identifier: Apache-2.0
"""Keys of a terminal, as they are pressed.

Rules
- The terminal gives each key at once and does not show it. Ctrl-C stays a signal. At the end, however it comes, the
  terminal is as it was.
- A key is a character, or one of the names in `_SEQUENCES`. An escape that nothing follows in the same read is the
  Escape key: terminals send the bytes of a sequence together. Unknown sequences are no key.
"""

from __future__ import annotations

import asyncio
import os
import re
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_SEQUENCES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1bOA": "up", "\x1bOB": "down",
    "\x1bOC": "right", "\x1bOD": "left", "\x1b[5~": "page-up", "\x1b[6~": "page-down", "\x1b[H": "home",
    "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b": "escape",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\t": "tab",
}  # fmt: skip
_KEY = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b\x1b?|.", re.DOTALL)
_READ_BYTES = 1024


def keys_of(text: str) -> Iterator[str]:
    """The keys in what a terminal has sent."""
    for found in _KEY.findall(text):
        if found in _SEQUENCES:
            yield _SEQUENCES[found]
        elif found.isprintable():
            yield found


@contextmanager
def pressed(terminal: int) -> Iterator[asyncio.Queue[str]]:
    """A queue of the keys that are pressed on this terminal (a file descriptor); "q" when it is closed."""
    before = termios.tcgetattr(terminal)
    keys: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            data = os.read(terminal, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(terminal)
            keys.put_nowait("q")
        for key in keys_of(data.decode(errors="ignore")):
            keys.put_nowait(key)

    try:
        tty.setcbreak(terminal)
        loop.add_reader(terminal, read)
        yield keys
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
