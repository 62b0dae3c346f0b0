# SPDX-License-Identifier: Apache-2.0
"""Commands in forks: they print and end as processes of their own do, and none is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import forked
from tests.forked import Forked, run_forked

DOVETAIL = Path(sys.executable).with_name("dovetail")


@pytest.mark.parametrize("arguments", [("--version",), ("why",), ("nonsense",), ("why", "p", "--kubeconfig", "/none")])
def test_a_fork_prints_and_ends_as_a_process_of_its_own(arguments: tuple[str, ...]) -> None:
    started = subprocess.run([DOVETAIL, *arguments], capture_output=True, text=True, check=False)
    found = run_forked(*arguments)
    assert (found.returncode, found.stdout, found.stderr) == (started.returncode, started.stdout, started.stderr)


@pytest.fixture
def _endless(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        print("it runs")
        time.sleep(60)

    monkeypatch.setattr(forked, "main", run)


@pytest.mark.usefixtures("_endless")
async def test_one_that_takes_too_long_is_killed_and_says_what_it_printed() -> None:
    with Forked("why", "p") as first, Forked("top") as second:
        assert first.first_line() == second.first_line() == "it runs"
        with pytest.raises(TimeoutError, match=r"dovetail why p: it has not ended after 0\.1 s; stdout:\nit runs"):
            first.wait(0.1)
        with pytest.raises(TimeoutError, match=r"dovetail top: it has not ended after 0\.1 s"):
            await second.ended(0.1)
        assert first.returncode == second.returncode == -9


@pytest.mark.usefixtures("_endless")
def test_none_is_left_behind() -> None:
    with Forked("top") as command:
        command.first_line()
    assert command.returncode == -9
    made: list[Forked] = []

    def run() -> None:
        made.append(Forked("top"))
        made[0].first_line()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert made[0].wait(30) == -9
