# SPDX-License-Identifier: Apache-2.0
"""`dovetail watch` in a real terminal, that of tmux; and where there is none."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.cli.listed_jobs import AT
from tests.cli.watch.watched import write
from tests.patience import PATIENCE_S

NAME = "watched"


class Tmux:
    """A terminal with a shell, of a server of its own."""

    def __init__(self, folder: Path, columns: int, lines: int) -> None:
        self._socket = str(folder / "tmux")
        environment = {key: value for key, value in os.environ.items() if key not in ("TMUX", "NO_COLOR")}
        argv = ["tmux", "-S", self._socket, "-f", "/dev/null", "new-session", "-d", "-s", NAME]
        size = ["-x", str(columns), "-y", str(lines)]
        subprocess.run([*argv, *size, "env PS1='$ ' sh"], env=environment, check=True, timeout=PATIENCE_S)

    def ask(self, *arguments: str) -> str:
        argv = ["tmux", "-S", self._socket, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout

    def press(self, *keys: str) -> None:
        self.ask("send-keys", "-t", NAME, *keys)

    def type(self, text: str) -> None:
        self.ask("send-keys", "-t", NAME, "-l", text)

    def seen(self, *options: str) -> str:
        return self.ask("capture-pane", "-p", *options, "-t", NAME)

    def until(self, wanted: Callable[[str], bool], *options: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not wanted(text := self.seen(*options)):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        return text

    def shows(self, text: str) -> str:
        return self.until(lambda seen: text in seen)

    def end(self) -> None:
        self.ask("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    found = Tmux(tmp_path, 100, 30)
    yield found
    found.end()


def command(*arguments: str) -> str:
    argv = [sys.executable, "-c", "from dovetail.cli import main; main()", "watch", *arguments]
    return f"PYTHONPATH={shlex.quote(':'.join(sys.path))} {shlex.join(argv)}"


@pytest.mark.slow
def test_it_opens_switches_drills_down_and_gives_the_terminal_back(terminal: Tmux, tmp_path: Path) -> None:
    terminal.type(f"stty -a > {tmp_path}/before; echo on screen before")
    terminal.press("Enter")
    terminal.shows("on screen before\n")
    terminal.type(f"clear; echo kept; {command('-f', write(tmp_path), '--at', AT)}; echo ended with $?")
    terminal.press("Enter")
    shown = terminal.shows("ml/next").splitlines()
    assert shown[0].startswith("1 jobs  2 queue  3 nodes  7")
    assert ["job", "user", "queue", "GPUs"] in [line.split()[:4] for line in shown]
    assert terminal.ask("display-message", "-p", "-t", NAME, "#{alternate_on}") == "1\n"

    terminal.press("2")
    assert "GangDoesNotFit" in terminal.shows("waiting")
    terminal.press("3")
    terminal.shows("quarantined")
    # What is typed at once, as it comes over a slow line, does what it does key by key.
    terminal.type("1/next")
    terminal.shows("1 of 7, /next")
    terminal.press("Enter", "Enter")
    terminal.shows("Gang job.batch/ml/next: needs 4 pods, 4 exist, 0 are bound.")
    terminal.press("n")
    terminal.shows("nodes of ml/next")
    terminal.shows("g5 ")
    terminal.press("Enter")
    terminal.shows("ml/train-0-abcde")
    terminal.press("Escape")
    terminal.shows("nodes of ml/next")
    # It is drawn for another size.
    terminal.ask("resize-window", "-t", NAME, "-x", "60", "-y", "20")
    terminal.until(lambda seen: seen.splitlines()[19].startswith("enter"))

    terminal.press("q")
    shown = terminal.shows("ended with 0").splitlines()
    assert shown[0] == "kept"
    state = terminal.ask("display-message", "-p", "-t", NAME, "#{alternate_on} #{cursor_flag} #{mouse_any_flag}")
    assert state == "0 1 0\n"
    terminal.type(f"clear; stty -a > {tmp_path}/after; echo typed")
    terminal.press("Enter")
    terminal.until(lambda seen: seen.startswith("typed"))
    before, after = ((tmp_path / name).read_text().partition(";")[2] for name in ("before", "after"))
    assert settings(before) == settings(after)


def settings(printed: str) -> list[str]:
    """The settings of `stty -a` but for the size."""
    return [word for one in printed.split(";") if "rows" not in one and "columns" not in one for word in one.split()]


@pytest.mark.slow
@pytest.mark.parametrize("colours", [True, False])
def test_colours_are_for_states_alone_and_not_with_no_color(terminal: Tmux, tmp_path: Path, colours: bool) -> None:
    before = "" if colours else "NO_COLOR=1 "
    terminal.type(f"{before}{command('-f', write(tmp_path), '--at', AT)}")
    terminal.press("Enter")
    terminal.shows("ml/next")
    painted = terminal.seen("-e")
    assert ("\x1b[32mRunning" in painted) is colours
    assert ("\x1b[33mWaiting" in painted) is colours
    assert painted.count("\x1b[3") - painted.count("\x1b[39") == (painted.count("\x1b[32m") + painted.count("\x1b[33m"))
    assert "\x1b[4" not in painted.replace("\x1b[49m", "")
    terminal.press("C-c")
    terminal.until(lambda seen: "3 nodes" not in seen)


def test_without_a_terminal_it_names_what_needs_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["watch", "-f", write(tmp_path)])
    assert done.exit_code == 2 and not done.stdout
    assert done.stderr.endswith(
        "Error: watch needs a terminal; `dovetail jobs -w` prints what changes, also into a pipe\n"
    )


@pytest.mark.slow
def test_a_terminal_without_a_cursor(terminal: Tmux, tmp_path: Path) -> None:
    terminal.type(f"TERM=dumb {command('-f', write(tmp_path))}; echo ended with $?")
    terminal.press("Enter")
    shown = " ".join(terminal.shows("ended with 2").split())
    assert "needs a terminal with a cursor that moves (TERM); `dovetail jobs -w` needs none" in shown


@pytest.mark.slow
def test_bad_input_is_reported_before_the_screen_opens(terminal: Tmux, tmp_path: Path) -> None:
    terminal.type(f"{command('-f', str(tmp_path / 'none.yaml'))}; echo ended with $?")
    terminal.press("Enter")
    shown = " ".join(terminal.shows("ended with 1").split())
    assert "none.yaml" in shown and "Traceback" not in shown
