# SPDX-License-Identifier: Apache-2.0
"""`dovetail` as a process, started as a fork of a process that has imported all commands.

Rules: most of what a short command costs is that Python starts and imports: half a second of CPU time. A fork has all
that. It is made by a server of forks (`multiprocessing`), which has one thread, and no lock that another one holds: the
process of the tests has threads, of gRPC among them. A fork has its own signals, output and exit status, and the
environment and folder that the test has. What is tested of the start itself (the script, its imports, its command line
in /proc) needs a real start. A fork ends with its server, and that with the process of the tests.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NoReturn, Self

from dovetail import cli
from tests.patience import PATIENCE_S

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the one ends that made it."""


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    commands = [one.name for one in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")]
    context.set_forkserver_preload([cli.__name__, *commands])
    return context


class _File:
    """A file in memory, open as long as this is there."""

    def __init__(self) -> None:
        self._number = os.memfd_create("forked")
        weakref.finalize(self, os.close, self._number)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._number}"

    def text(self) -> str:
        return os.pread(self._number, os.fstat(self._number).st_size, 0).decode()


class Forked:
    """A running command. What it prints is in files, so it never waits for a reader. As a context manager it is killed
    at the end. `run` is what it runs, a function of a module."""

    def __init__(self, *arguments: str, run: Callable[[], None] = cli.main) -> None:
        self._out, self._errors = _File(), _File()
        self._arguments = arguments
        argv = ("dovetail", *arguments)
        streams = (os.devnull, self._out.path, self._errors.path)
        start = (run, argv, streams, {**os.environ}, str(Path.cwd()))
        self._process = _server().Process(target=become, args=start, daemon=True)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._out.text()

    @property
    def stderr(self) -> str:
        return self._errors.text()

    def first_line(self) -> str:
        """Wait until it has printed a line. Fails the test if it ends before or takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while "\n" not in self.stdout:
            assert self.poll() is None and time.monotonic() < deadline, (self.stdout, self.stderr)
            time.sleep(0.05)
        return self.stdout.partition("\n")[0]

    def poll(self) -> int | None:
        """The exit status as `subprocess` has it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end, and kill it where it takes too long. The exit status as `subprocess` has it.

        Raises TimeoutError.
        """
        if not connection.wait([self._process.sentinel], timeout_s):
            raise self._late(timeout_s)
        return self._ended()

    async def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """As `wait`, while the loop goes on. Raises TimeoutError."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, over.set)
        try:
            async with asyncio.timeout(timeout_s):
                await over.wait()
        except TimeoutError:
            raise self._late(timeout_s) from None
        finally:
            loop.remove_reader(self._process.sentinel)
        return self._ended()

    def _ended(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def _late(self, timeout_s: float) -> TimeoutError:
        self.kill()
        self._process.join()
        what = f"dovetail {' '.join(self._arguments)}: it has not ended after {timeout_s:g} s"
        return TimeoutError(f"{what}; stdout:\n{self.stdout}\nstderr:\n{self.stderr}")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_forked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with Forked(*arguments) as forked:
        status = forked.wait()
    return subprocess.CompletedProcess(["dovetail", *arguments], status, forked.stdout, forked.stderr)


async def run_beside(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end while the loop goes on; it is killed if this is cancelled."""
    with Forked(*arguments) as forked:
        status = await forked.ended()
    return subprocess.CompletedProcess(["dovetail", *arguments], status, forked.stdout, forked.stderr)


def end_with_parent() -> None:
    """Kill this process when the one ends that made it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _writer(number: int, *, lines: bool) -> TextIOWrapper:
    """As the interpreter opens it where it is no terminal: what is printed and not flushed is not seen."""
    return TextIOWrapper(BufferedWriter(FileIO(number, "w", closefd=False)), line_buffering=lines)


def become(
    run: Callable[[], None],
    argv: tuple[str, ...],
    streams: Sequence[str | int],
    environment: Mapping[str, str],
    folder: str,
) -> NoReturn:
    """In the fork: be the command, and never return. `streams` are its stdin, stdout and stderr: files to open, or the
    numbers of open ones."""
    status = 1
    try:
        end_with_parent()
        for number, file in enumerate(streams):
            os.dup2(os.open(file, os.O_RDWR | os.O_APPEND) if isinstance(file, str) else file, number)
        # With one of the files that it was given the server would go on after the process of the tests.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # They stay open when a fork of this one replaces the objects.
        sys.stdin = TextIOWrapper(BufferedReader(FileIO(0, closefd=False)))
        sys.stdout, sys.stderr = _writer(1, lines=False), _writer(2, lines=True)
        logging.getLogger().handlers.clear()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [*argv]
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # A signal may come here, too.
        try:
            # As the interpreter: a thread that goes on keeps the process from its end.
            threading._shutdown()  # type: ignore[attr-defined]
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            # As the interpreter does at its end.
            traceback.print_exc()
            status = 120
        finally:
            os._exit(status)
