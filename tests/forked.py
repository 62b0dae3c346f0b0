# SPDX-License-Identifier: Apache-2.0
"""`dovetail` as a process, started as a fork of the process of the tests.

Rules: most of what a short command costs is that Python starts and imports: half a second of CPU time. A fork has all
that, and what the first one still has to import this process imports for the next ones. A fork has its own signals,
output and exit status. What is tested of the start itself (the script, its imports, its command line in /proc) needs a
real start. A fork also has all open files of this process, and the pipes to pytest-xdist are among them, so it never
outlives the thread that made it: a test that fails would else keep the whole run from its end.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import weakref
from contextlib import suppress
from importlib import import_module
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from typing import NoReturn, Self

from dovetail.cli import main
from tests.patience import PATIENCE_S

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread ends that made it."""


class _File:
    """A file in memory, open as long as this is there."""

    def __init__(self) -> None:
        self.number = os.memfd_create("forked")
        weakref.finalize(self, os.close, self.number)

    def text(self) -> str:
        # The command writes at the offset that it shares with this process.
        return os.pread(self.number, os.fstat(self.number).st_size, 0).decode()


class Forked:
    """A running command. What it prints is in files, so it never waits for a reader. As a context manager it is killed
    at the end."""

    def __init__(self, *arguments: str) -> None:
        self._out, self._errors, self._imports = (_File() for _ in range(3))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(parent, ("dovetail", *arguments), self._out.number, self._errors.number, self._imports.number)
        self._end = os.pidfd_open(self.pid)
        self._arguments = arguments
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()

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
        return self._wait_ms(0)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end, and kill it where it takes too long. The exit status as `subprocess` has it.

        Raises TimeoutError.
        """
        status = self._wait_ms(int(timeout_s * 1000))
        if status is None:
            self.kill()
            self._wait_ms(None)
            raise TimeoutError(self._late(timeout_s))
        return status

    def _late(self, timeout_s: float) -> str:
        what = f"dovetail {' '.join(self._arguments)}: it has not ended after {timeout_s:g} s"
        return f"{what}; stdout:\n{self.stdout}\nstderr:\n{self.stderr}"

    async def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """As `wait`, while the loop goes on. Raises TimeoutError."""
        if self.returncode is None:
            loop, over = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self._end, over.set)
            try:
                async with asyncio.timeout(timeout_s):
                    await over.wait()
            except TimeoutError:
                self.kill()
                self._wait_ms(None)
                raise TimeoutError(self._late(timeout_s)) from None
            finally:
                loop.remove_reader(self._end)
        return self.wait()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait_ms(self, limit_ms: int | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._end, select.POLLIN)
            if poll.poll(limit_ms):
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                os.close(self._end)
                for module in self._imports.text().split():
                    # Some are put there by others, and cannot be imported by their name.
                    with suppress(ImportError):
                        import_module(module)
        return self.returncode


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


def _writer(number: int) -> TextIOWrapper:
    return TextIOWrapper(BufferedWriter(FileIO(number, "w")), line_buffering=True)


def _become(parent: int, argv: tuple[str, ...], out: int, errors: int, imports: int) -> NoReturn:
    """In the fork: be the command, and never return."""
    status, known = 1, {*sys.modules}
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(status)
        # The loop of the test that called is not this one's to wake.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, errors)):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = TextIOWrapper(BufferedReader(FileIO(0))), _writer(1), _writer(2)
        logging.getLogger().handlers.clear()
        sys.argv = [*argv]
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # A signal may come here, too: without the exit a second process would go on with the tests.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(imports, "\n".join(module for module in sys.modules if module not in known).encode())
        finally:
            os._exit(status)
