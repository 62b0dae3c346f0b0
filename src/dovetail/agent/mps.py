# SPDX-License-Identifier: Apache-2.0
"""CUDA MPS: the control daemons through which several containers compute on one GPU at the same time.

Rules
- One daemon for each resource that is shared by MPS (by the name that it is offered under), with `pipe` and `log` below
  `folder/<resource>`. It is a child of
  this process: when it ends, it is started anew, later after each failure; one that does not answer is killed. One that
  answers at the start, of an agent that was killed, is kept.
- Its GPUs are in the compute mode EXCLUSIVE_PROCESS while it is responsible for them, so that nobody goes past it. What
  mode they had is written down first, and put back when MPS ends for them, also by the next agent.
- With n replicas a client has 100 / n per cent of the threads and 1 / n of the memory of a GPU. The daemon enforces it
  from before its first client on; the container's variables say it, and can only lower it.
- A GPU is refused, with the reason: one in MIG mode (a daemon of its own for each instance would be needed), and one
  that cannot have so many clients.
Source: NVIDIA, Multi-Process Service, and k8s-device-plugin cmd/mps-control-daemon, which does the same.
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
from msgspec import Struct

from dovetail.agent import nvml as library
from dovetail.agent.cdi import Edits, Mount
from dovetail.agent.checkpoint import Checkpoint
from dovetail.agent.config import Config
from dovetail.agent.host import Gpu, Host
from dovetail.agent.illness import Illness
from dovetail.agent.nvml import Nvml, NvmlError

logger = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
VOLTA = (7, 0)
MOST_CLIENTS, MOST_CLIENTS_BEFORE_VOLTA = 48, 16
"""Of one GPU. Volta is where clients began to submit work themselves (compute capability 7.0)."""

_POLL_S = 0.1
_LONGEST_PAUSE_S = 60.0
_PERCENTAGE = "get_default_active_thread_percentage"
_MOUNTED = ("rw", "nosuid", "nodev", "rbind", "rprivate")


class MpsError(Exception):
    """MPS cannot be used; the text says why and what to do."""


class Share(Struct, frozen=True):
    """What one resource's daemon looks after: the GPUs in the order of their indices, each offered `replicas` times."""

    resource: str
    gpus: tuple[Gpu, ...]
    replicas: int

    @property
    def percentage(self) -> int:
        return 100 // self.replicas

    def limit_mib(self, gpu: Gpu) -> int:
        return gpu.memory_mib // self.replicas


def most_clients(gpu: Gpu) -> int:
    """How many clients an MPS server can have on this GPU; the smaller number where its capability is not known."""
    return MOST_CLIENTS if gpu.compute is not None and gpu.compute >= VOLTA else MOST_CLIENTS_BEFORE_VOLTA


def refusal(gpu: Gpu, replicas: int) -> str:
    """Why a GPU cannot be shared by MPS so often; "" where it can."""
    if gpu.mig is not None:
        return f"GPU {gpu.index} is in MIG mode, where MPS is not supported: share its instances by timeSlicing"
    if replicas > (most := most_clients(gpu)):
        compute = ".".join(map(str, gpu.compute)) if gpu.compute else "unknown"
        return f"GPU {gpu.index} (compute capability {compute}) can have {most} MPS clients, not {replicas}"
    return ""


class MpsDaemons:
    """folder: where the daemons' folders are, at the same path here, on the host and in containers. shm: what on the
    host is the daemons' /dev/shm, through which they talk to clients; containers get it as theirs.
    changed: called when a daemon came up or went down, never by `update`. check_s: how often a daemon has to answer;
    answer_s: how long it may take; first_pause_s: before the first new start, twice as long after each failure, at most
    a minute.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shm: Path,
        changed: Callable[[], None] = lambda: None,
        control: str = CONTROL,
        open_library: Callable[[], Nvml] = Nvml,
        check_s: float = 60.0,
        answer_s: float = 10.0,
        first_pause_s: float = 1.0,
    ) -> None:
        self._folder = folder
        self._shm = shm
        self._changed = changed
        self._control = control
        self._open_library = open_library
        self._times = _Times(check_s, answer_s, first_pause_s)
        # The compute modes from before MPS, by uuid.
        self._modes = Checkpoint(folder / "compute-modes.json", dict[str, int])
        self._daemons: dict[str, _Daemon] = {}
        self._refused: dict[tuple[str, str], str] = {}

    async def update(self, host: Host, config: Config) -> None:
        """Have the daemons that the configuration wants for these GPUs, and no others. A daemon whose GPUs or limits
        changed ends, and with it its clients. Never raises for a daemon that does not come up: see `problem`. Raises
        CheckpointError where it cannot be remembered which compute modes to put back."""
        self._refused = {}
        shares = {}
        for shared in config.sharing.values():
            if shared.strategy == "mps":
                share = self._share(shared.renamed, shared.replicas, host, config.mig_strategy == "mixed")
                if share.gpus:
                    shares[share.resource] = share
        for resource in [r for r, daemon in self._daemons.items() if shares.get(r) != daemon.share]:
            await self._daemons.pop(resource).close()
        wanted = {gpu.uuid for share in shares.values() for gpu in share.gpus}
        if wanted:
            self._open_shm()
        failed = self._set_modes(wanted)
        for resource, share in shares.items():
            refused = {gpu.uuid: failed[gpu.uuid] for gpu in share.gpus if gpu.uuid in failed}
            self._refused |= {(resource, uuid): reason for uuid, reason in refused.items()}
            for uuid, reason in refused.items():
                logger.error("no MPS for %s of %s: %s", resource, uuid, reason)
            if len(refused) < len(share.gpus) and resource not in self._daemons:
                folder = self._folder / resource
                self._daemons[resource] = _Daemon(share, folder, self._control, self._changed, self._times)

    async def close(self) -> None:
        """End all daemons, and with them their clients, and put the compute modes back."""
        daemons, self._daemons = self._daemons, {}
        for daemon in daemons.values():
            await daemon.close()
        self._set_modes(set())

    @property
    def ill(self) -> tuple[Illness, ...]:
        """The GPUs whose replicas cannot be given out now, since MPS does not work for them."""
        found = {gpu.uuid: daemon.problem for daemon in self._daemons.values() for gpu in daemon.share.gpus}
        found |= {uuid: reason for (_, uuid), reason in self._refused.items()}
        return tuple(Illness(uuid, "mps", problem, 0) for uuid, problem in found.items() if problem)

    def problem(self, resource: str, uuid: str) -> str:
        """Why replicas of the GPU cannot be given out as this resource now; "" where they can."""
        if reason := self._refused.get((resource, uuid)):
            return reason
        daemon = self._daemons.get(resource)
        if daemon is None or all(gpu.uuid != uuid for gpu in daemon.share.gpus):
            return f"{uuid} is not shared by MPS as {resource}"
        return daemon.problem

    def client(self, resource: str, uuids: Sequence[str]) -> Edits:
        """What a container gets that has replicas of these GPUs. Raises MpsError where there is no daemon for it."""
        for uuid in uuids:
            if problem := self.problem(resource, uuid):
                raise MpsError(problem)
        share = self._daemons[resource].share
        pipe = str(self._folder / resource / "pipe")
        given = [gpu for gpu in share.gpus if gpu.uuid in uuids]
        limits = ",".join(f"{i}={share.limit_mib(gpu)}M" for i, gpu in enumerate(given))
        return Edits(
            env=(
                ("CUDA_MPS_PIPE_DIRECTORY", pipe),
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(share.percentage)),
                # Limits are by the container's own numbers, which are those of the bus only if told so.
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits),
            ),
            mounts=(Mount(pipe, pipe, _MOUNTED), Mount(str(self._shm), "/dev/shm", _MOUNTED)),
        )

    def _share(self, resource: str, replicas: int, host: Host, mixed: bool) -> Share:
        gpus = []
        for gpu in host.gpus:
            if gpu.mig is not None and mixed:
                # Its instances are resources of their own.
                continue
            if reason := refusal(gpu, replicas):
                self._refused[resource, gpu.uuid] = reason
                logger.error("no MPS for %s: %s", resource, reason)
            else:
                gpus.append(gpu)
        return Share(resource, tuple(gpus), replicas)

    def _open_shm(self) -> None:
        """Clients of any user write there."""
        try:
            self._shm.mkdir(parents=True, exist_ok=True)
            if stat.S_IMODE(self._shm.stat().st_mode) != 0o1777:
                self._shm.chmod(0o1777)
        except OSError as error:
            logger.error("MPS clients that are not root will not reach their daemon: %s", error)

    def _set_modes(self, wanted: set[str]) -> dict[str, str]:
        """Have these GPUs, and no others, in the exclusive mode; why not, by uuid. Raises CheckpointError."""
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


class _Times(NamedTuple):
    check_s: float
    answer_s: float
    first_pause_s: float


class _Daemon:
    """One control daemon, kept alive by a task of its own until `close`."""

    def __init__(self, share: Share, folder: Path, control: str, changed: Callable[[], None], times: _Times) -> None:
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
        with contextlib.suppress(MpsError):
            await self._ask("quit")
        await self._end(self._times.answer_s)

    async def _keep(self) -> None:
        pause_s = self._times.first_pause_s
        while True:
            try:
                await self._begin()
                self._say("")
                while True:
                    await self._wait()
                    await self._percentage()
                    pause_s = self._times.first_pause_s
            except MpsError as error:
                self._say(f"the MPS daemon of {self.share.resource} does not run: {error}")
            await self._end(0)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            if problem:
                logger.error("%s", problem)
            self.problem = problem
            self._changed()

    async def _begin(self) -> None:
        """Raises MpsError. Afterwards it runs, with its limits."""
        try:
            for name in ("pipe", "log"):
                (self._folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MpsError(f"cannot make {self._folder}: {error.strerror}") from error
        try:
            await self._percentage()
            logger.info("%s: an MPS daemon of an earlier agent is kept", self.share.resource)
        except MpsError:
            await self._start()
        for gpu in self.share.gpus:
            await self._ask(f"set_default_device_pinned_mem_limit {gpu.uuid} {self.share.limit_mib(gpu)}M")
        await self._ask(f"set_default_active_thread_percentage {self.share.percentage}")
        if await self._percentage() != self.share.percentage:
            raise MpsError(f"it did not take the limit of {self.share.percentage} % of the threads")

    async def _start(self) -> None:
        # Said by the program itself where it cannot start, and what it logs in the foreground.
        with (self._folder / "log/output").open("wb") as output:
            self._process = await self._execute(("-f",), asyncio.subprocess.DEVNULL, output)
        for _ in range(max(1, int(self._times.answer_s / _POLL_S))):
            if self._process.returncode is not None:
                raise MpsError(self._how_it_ended())
            with contextlib.suppress(MpsError):
                await self._percentage()
                return
            await asyncio.sleep(_POLL_S)
        raise MpsError(f"it does not answer; its log is in {self._folder / 'log'}")

    async def _wait(self) -> None:
        """Until it is to be asked again. Raises MpsError where it has ended."""
        if self._process is None:
            await asyncio.sleep(self._times.check_s)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), self._times.check_s)
            raise MpsError(self._how_it_ended())

    def _how_it_ended(self) -> str:
        status = self._process.returncode if self._process else None
        try:
            lines = (self._folder / "log/output").read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
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
        """Whether it answers at all. Raises MpsError."""
        answer = await self._ask(_PERCENTAGE)
        try:
            return float(answer)
        except ValueError:
            raise MpsError(f"to {_PERCENTAGE} it answers {answer!r}") from None

    async def _ask(self, command: str) -> str:
        """What the daemon answers. Raises MpsError where it does not."""
        process = await self._execute((), asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        try:
            answer, _ = await asyncio.wait_for(process.communicate(f"{command}\n".encode()), self._times.answer_s)
        except TimeoutError:
            raise MpsError(f"to {command!r} it does not answer within {self._times.answer_s:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = answer.decode(errors="replace").strip()
        if process.returncode:
            raise MpsError(f"to {command!r} it answers {text!r}")
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
            raise MpsError(f"{self._control} cannot be started ({error.strerror}): {hint}") from error
