# SPDX-License-Identifier: Apache-2.0
"""The administrator's test of a device: bounded in time and output, and its last line is the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dovetail.agent.health.exit_test import ExitTest
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("echo bad; exit 0", ""),
        ("echo one; echo two; echo; exit 3", "two"),
        ("echo one >&2; exit 1", "one"),
        ("exit 7", "it ended with exit code 7"),
        ("kill -9 $$", "it was ended by signal 9"),
        (r"printf 'a\033[31mb\377\n'; exit 1", "a [31mb\ufffd"),
        ("yes | head -c 3000000; exit 1", "y"),
        ("yes | head -c 3000000 | tr -d '\\n'; exit 1", "y" * 500),
    ],
)
async def test_the_outcome(script: str, failure: str) -> None:
    assert await ExitTest(("sh", "-c", script), 60).run("GPU-1") == failure


async def test_a_test_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    assert await ExitTest(("sh", "-c", script), 1).run("GPU-1") == "it did not end within 1 s"
    child = int((tmp_path / "child").read_text())
    async with asyncio.timeout(PATIENCE_S):
        while runs(child):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_command_that_is_not_there() -> None:
    assert await ExitTest(("/nowhere/dcgmi", "diag"), 1).run("GPU-1") == (
        "/nowhere/dcgmi cannot be started: No such file or directory"
    )
