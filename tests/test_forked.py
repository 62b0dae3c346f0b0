# SPDX-License-Identifier: Apache-2.0
"""Commands in forks: they print and end as processes of their own do, and none is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.forked import Forked, run_forked
from tests.paths import ROOT

DOVETAIL = Path(sys.executable).with_name("dovetail")


@pytest.mark.parametrize("arguments", [("--version",), ("why",), ("nonsense",), ("why", "p", "--kubeconfig", "/none")])
def test_a_fork_prints_and_ends_as_a_process_of_its_own(arguments: tuple[str, ...]) -> None:
    started = subprocess.run([DOVETAIL, *arguments], capture_output=True, text=True, check=False)
    found = run_forked(*arguments)
    assert (found.returncode, found.stdout, found.stderr) == (started.returncode, started.stdout, started.stderr)


def endless() -> None:
    print("it runs", flush=True)
    time.sleep(60)


async def test_one_that_takes_too_long_is_killed_and_says_what_it_printed() -> None:
    with Forked("why", "p", run=endless) as first, Forked("top", run=endless) as second:
        assert first.first_line() == second.first_line() == "it runs"
        with pytest.raises(TimeoutError, match=r"dovetail why p: it has not ended after 0\.1 s; stdout:\nit runs"):
            first.wait(0.1)
        with pytest.raises(TimeoutError, match=r"dovetail top: it has not ended after 0\.1 s"):
            await second.ended(0.1)
        assert first.poll() == second.poll() == -9


def test_none_is_left_behind() -> None:
    with Forked("top", run=endless) as command:
        command.first_line()
    assert command.poll() == -9


def test_it_ends_with_the_process_of_the_tests() -> None:
    program = (
        "from tests.forked import Forked; from tests.test_forked import endless; command = Forked('top', run=endless);"
        "command.first_line(); print(command.pid, flush=True); import os; os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    deadline = time.monotonic() + 20
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < deadline, "it is left behind"
        time.sleep(0.05)


def test_it_has_the_environment_and_the_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORKED", "here")
    with Forked(run=_shown) as command:
        assert command.first_line() == f"here {tmp_path}"


def _shown() -> None:
    print(os.environ["FORKED"], Path.cwd())


def _leaves_a_thread() -> None:
    print("not flushed")
    threading.Thread(target=time.sleep, args=(60,)).start()


def test_a_thread_that_goes_on_keeps_it_from_its_end_and_what_is_not_flushed_is_not_seen() -> None:
    """As with a process of its own."""
    with Forked("top", run=_leaves_a_thread) as command:
        with pytest.raises(TimeoutError):
            command.wait(0.5)
        assert command.stdout == ""
