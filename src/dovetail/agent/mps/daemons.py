# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemons of a machine, through which several containers compute on one GPU at the same time.

Rules
- One daemon for each resource that is shared by MPS (by its offered name), with `pipe` and `log` below
  `folder/<resource>`. It is a child of this process: when it ends, it is started again, with growing pauses after
  failures; a daemon that does not answer is killed. A daemon of a killed process that still answers is kept. A daemon
  goes on if GPUs are lost; it ends, with its clients, if other GPUs or other limits are wanted.
- Its GPUs are in the compute mode EXCLUSIVE_PROCESS, so that no process uses them without the daemon. Their earlier
  mode is recorded first, and put back when MPS ends for them, also by the next process. Source: NVIDIA, Multi-Process
  Service, and k8s-device-plugin cmd/mps-control-daemon, which does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import pynvml

from dovetail.agent.checkpoint import CheckpointFile
from dovetail.agent.machine import nvml as library
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.mps.shares import MpsShare, by_resource

logger = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
_POLL_S = 0.1
_LONGEST_PAUSE_S = 60.0
_PERCENTAGE = "get_default_active_thread_percentage"


class DaemonError(Exception):
    """A daemon does not work; the message has the reason and the remedy."""


class MpsDaemons:
    """`folder` has the daemons' folders, at the same path here, on the host and in containers. `shm` is the host's
    folder that is the daemons' /dev/shm, through which they communicate with clients. `changed` is called when a daemon
    came up or went down, never by `update`. `check_s`: the period of checks; `answer_s`: the timeout of an answer;
    `first_pause_s`: the pause before the first restart, doubled after each failure, at most a minute."""

    def __init__(
        self,
        folder: Path,
        *,
        shm: Path,
        control: str = CONTROL,
        open_library: Callable[[], Nvml] = Nvml,
        check_s: float = 60.0,
        answer_s: float = 10.0,
        first_pause_s: float = 1.0,
    ) -> None:
        self.changed: Callable[[], None] = _ignore
        self._folder = folder
        self._shm = shm
        self._control = control
        self._open_library = open_library
        self._times = _Times(check_s, answer_s, first_pause_s)
        # The compute modes from before MPS, by uuid.
        self._modes = CheckpointFile(folder / "compute-modes.json", dict[str, int])
        self._daemons: dict[str, _Daemon] = {}
        self._refused: dict[tuple[str, str], str] = {}

    async def update(self, wanted: Sequence[MpsShare]) -> None:
        """Run these daemons, and no others. A daemon that does not come up raises nothing: see `problem`. Raises
        CheckpointError if the compute modes to put back cannot be recorded."""
        shares = by_resource(wanted)
        for resource, daemon in list(self._daemons.items()):
            if resource not in shares or not daemon.share.covers(shares[resource]):
                await self._daemons.pop(resource).close()
        gpus = {uuid for share in wanted for uuid in share.limits}
        if gpus:
            self._open_shm()
        failed = self._set_modes(gpus)
        self._refused = {
            (resource, uuid): failed[uuid]
            for resource, share in shares.items()
            for uuid in share.limits
            if uuid in failed
        }
        for (resource, uuid), reason in self._refused.items():
            logger.error("no MPS for %s of %s: %s", resource, uuid, reason)
        for resource, share in shares.items():
            if resource not in self._daemons and any((resource, uuid) not in self._refused for uuid in share.limits):
                folder = self._folder / resource
                self._daemons[resource] = _Daemon(share, folder, self._control, self._notify, self._times)

    def _notify(self) -> None:
        self.changed()

    async def close(self) -> None:
        """End all daemons, and with them their clients, and put the compute modes back."""
        daemons, self._daemons = self._daemons, {}
        for daemon in daemons.values():
            await daemon.close()
        self._set_modes(set())

    def problem(self, resource: str, uuid: str) -> str:
        """Why replicas of the GPU cannot be allocated as this resource now, "" if they can."""
        if reason := self._refused.get((resource, uuid)):
            return reason
        daemon = self._daemons.get(resource)
        return daemon.problem if daemon is not None else f"no MPS daemon runs for {resource}"

    def _open_shm(self) -> None:
        """Create the folder so that clients of any user can write to it."""
        try:
            self._shm.mkdir(parents=True, exist_ok=True)
            if stat.S_IMODE(self._shm.stat().st_mode) != 0o1777:
                self._shm.chmod(0o1777)
        except OSError as error:
            logger.error("MPS clients that are not root will not reach their daemon: %s", error)

    def _set_modes(self, wanted: set[str]) -> dict[str, str]:
        """Set the exclusive mode on these GPUs, and the earlier mode on all others. Returns failures by uuid. Raises
        CheckpointError."""
        before = self._modes.read() or {}
        if not wanted and not before:
            return {}
        failed: dict[str, str] = {}
        try:
            with self._open_library() as nvml:
                for uuid in wanted - before.keys():
                    try:
                        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid)
                        before[uuid] = nvml.call("nvmlDeviceGetComputeMode", handle)
                    except NvmlError as error:
                        failed[uuid] = str(error)
                self._modes.write(before)
                for uuid in sorted(before):
                    mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if uuid in wanted else before[uuid]
                    try:
                        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid)
                        nvml.call("nvmlDeviceSetComputeMode", handle, mode)
                    except NvmlError as error:
                        failed[uuid] = f"the compute mode cannot be set: {error}"
                        # A GPU that is no longer there has no mode to be put back.
                        if error.code != library.NOT_FOUND:
                            continue
                    if uuid not in wanted:
                        del before[uuid]
                self._modes.write(before)
        except NvmlError as error:
            return {uuid: str(error) for uuid in wanted}
        for uuid in failed.keys() - wanted:
            logger.error("%s stays in the exclusive compute mode: %s", uuid, failed[uuid])
        return failed


def _ignore() -> None:
    return


class _Times(NamedTuple):
    check_s: float
    answer_s: float
    first_pause_s: float


class _Daemon:
    """One control daemon, kept alive by a task of its own until `close`."""

    def __init__(self, share: MpsShare, folder: Path, control: str, changed: Callable[[], None], times: _Times) -> None:
        self.share = share
        self.problem = f"the MPS daemon of {share.resource} has not started yet"
        self._folder = folder
        self._control = control
        self._changed = changed
        self._times = times
        self._process: asyncio.subprocess.Process | None = None
        self._environment = os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with contextlib.suppress(DaemonError):
            await self._ask("quit")
        await self._end(self._times.answer_s)

    async def _keep(self) -> None:
        pause_s = self._times.first_pause_s
        while True:
            try:
                await self._begin()
                self._report("")
                while True:
                    await self._wait()
                    await self._percentage()
                    pause_s = self._times.first_pause_s
            except DaemonError as error:
                self._report(f"the MPS daemon of {self.share.resource} does not run: {error}")
            await self._end(0)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            if problem:
                logger.error("%s", problem)
            self.problem = problem
            self._changed()

    async def _begin(self) -> None:
        """Start the daemon, or keep one that answers, and set its limits. Raises DaemonError."""
        try:
            for name in ("pipe", "log"):
                (self._folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DaemonError(f"cannot make {self._folder}: {error.strerror}") from error
        try:
            await self._percentage()
            logger.info("%s: an MPS daemon of an earlier process is kept", self.share.resource)
        except DaemonError:
            await self._start()
        for uuid, limit in self.share.limits.items():
            await self._ask(f"set_default_device_pinned_mem_limit {uuid} {limit}M")
        await self._ask(f"set_default_active_thread_percentage {self.share.percentage}")
        if await self._percentage() != self.share.percentage:
            raise DaemonError(f"it did not accept the limit of {self.share.percentage} % of the threads")

    async def _start(self) -> None:
        # The program's own messages, also if it cannot start.
        with (self._folder / "log/output").open("wb") as output:
            self._process = await self._execute(("-f",), asyncio.subprocess.DEVNULL, output)
        for _ in range(max(1, int(self._times.answer_s / _POLL_S))):
            if self._process.returncode is not None:
                raise DaemonError(self._how_it_ended())
            with contextlib.suppress(DaemonError):
                await self._percentage()
                return
            await asyncio.sleep(_POLL_S)
        raise DaemonError(f"it does not answer; its log is in {self._folder / 'log'}")

    async def _wait(self) -> None:
        """Wait until the next check. Raises DaemonError if the daemon has ended."""
        if self._process is None:
            await asyncio.sleep(self._times.check_s)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), self._times.check_s)
            raise DaemonError(self._how_it_ended())

    def _how_it_ended(self) -> str:
        status = self._process.returncode if self._process else None
        try:
            lines = (self._folder / "log/output").read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"it ended with status {status}: {last}; its log is in {self._folder / 'log'}"

    async def _end(self, within_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), within_s)
        # With its servers, which are in the same group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def _percentage(self) -> float:
        """The daemon's thread percentage; also the check that it answers. Raises DaemonError."""
        answer = await self._ask(_PERCENTAGE)
        try:
            return float(answer)
        except ValueError:
            raise DaemonError(f"to {_PERCENTAGE} it answers {answer!r}") from None

    async def _ask(self, command: str) -> str:
        """Send a command and return the answer. Raises DaemonError."""
        process = await self._execute((), asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        try:
            answer, _ = await asyncio.wait_for(process.communicate(f"{command}\n".encode()), self._times.answer_s)
        except TimeoutError:
            raise DaemonError(f"to {command!r} it does not answer within {self._times.answer_s:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = answer.decode(errors="replace").strip()
        if process.returncode:
            raise DaemonError(f"to {command!r} it answers {text!r}")
        return text

    async def _execute(
        self, arguments: Sequence[str], stdin: int, output: int | IO[bytes]
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._control,
                *arguments,
                env=self._environment,
                start_new_session=True,
                stdin=stdin,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            hint = "it comes with NVIDIA's driver; a container needs the driver capability `compute`"
            raise DaemonError(f"{self._control} cannot be started ({error.strerror}): {hint}") from error
