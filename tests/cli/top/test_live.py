# SPDX-License-Identifier: Apache-2.0
"""`dovetail top` on a pseudoterminal: keys in, frames out, and the terminal as it was."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.top.test_top import Cluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow
_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A pseudoterminal of 100 x 30 with the command on it."""

    def __init__(self, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.output = ""
        self._arguments = arguments
        self._arrived = asyncio.Event()

    async def start(self) -> None:
        call = [sys.executable, "-c", "from dovetail.cli import main; main()", "top", *self._arguments]
        ends = {"stdin": self.theirs, "stdout": self.theirs, "stderr": self.theirs}
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = await asyncio.create_subprocess_exec(*call, **ends, env=environment)
        os.set_blocking(self.ours, False)
        asyncio.get_running_loop().add_reader(self.ours, self._read)

    def _read(self) -> None:
        self.output += os.read(self.ours, 1 << 16).decode(errors="replace")
        self._arrived.set()

    @property
    def frame(self) -> str:
        return _CODE.sub("", self.output.rpartition("\x1b[?2026h")[2])

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.frame:
                self._arrived.clear()
                await self._arrived.wait()

    async def press(self, keys: str, text: str) -> None:
        os.write(self.ours, keys.encode())
        await self.shows(text)

    async def end(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            code = await self.process.wait()
        await asyncio.sleep(0.1)
        asyncio.get_running_loop().remove_reader(self.ours)
        return code


async def test_keys_on_a_terminal(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "kubeconfig")
    await cluster.start()
    terminal = Terminal("--kubeconfig", str(tmp_path / "kubeconfig"))
    try:
        await terminal.start()
        await terminal.shows("default/notebook")
        await terminal.press("j", "dovetail top jobs")
        await terminal.press("\x1b[B\r", "jobs > default/train-0")
        await terminal.press("\r", "tensor cores are busy")
        await terminal.press("\x1b", "jobs > default/train-0")
        await terminal.press("/note\r", "filter: note")
        await terminal.press("?", "dovetail top: keys")
        os.write(terminal.ours, b"xq")
        assert await terminal.end() == 0
    finally:
        if terminal.process.returncode is None:
            terminal.process.kill()
        await cluster.playground.stop()
    assert terminal.output.startswith("\x1b[?1049h\x1b[?25l")
    assert terminal.output.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(terminal.theirs) == terminal.before


async def test_an_interrupt_gives_the_terminal_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "kubeconfig")
    await cluster.start()
    terminal = Terminal("--kubeconfig", str(tmp_path / "kubeconfig"))
    try:
        await terminal.start()
        await terminal.shows("default/notebook")
        terminal.process.send_signal(2)
        assert await terminal.end() == 130
    finally:
        if terminal.process.returncode is None:
            terminal.process.kill()
        await cluster.playground.stop()
    assert terminal.output.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(terminal.theirs) == terminal.before
