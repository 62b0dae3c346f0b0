# SPDX-License-Identifier: Apache-2.0
"""A simulated machine with NVIDIA GPUs: a library that behaves like the driver's, and the files around it.

Rules: one folder holds the machine and its state, so that several processes share it and later ones find its last
state. Changes apply to the next call of any process that uses the library. GPUs have the order of the description.
"""

from __future__ import annotations

import ctypes
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from tools.standin import library, machine
from tools.standin.description import Description, HostError, load
from tools.standin.engine import Engine
from tools.standin.readings import Readings
from tools.standin.state import divide, state_of

VARIABLE = "DOVETAIL_STANDIN"
RIGHTS = "DOVETAIL_STANDIN_RIGHTS"
"""The rights of a process: none, monitor (read MIG), config (also change MIG instances), admin (all; the default). A
container grants them by CAP_SYS_ADMIN or the device nodes of NVIDIA's capabilities."""

DEVICE_NODES = "DOVETAIL_STANDIN_DEV"
"""The folder of a process's device nodes, whose GPUs alone it sees; unset: all GPUs. MIG instances have no such
limit."""


class Part(NamedTuple):
    """An existing MIG instance. `cis` are the ids of its compute instances."""

    profile: str
    start: int
    gi: int
    cis: tuple[int, ...]


class Standin(Engine, Readings):
    """The machine `host` (a name of HOSTS, or a description as a dict) in `folder`. If the folder already holds that
    machine, its state is kept.

    `environment` has the variables by which a process uses it instead of a driver, and its host engine once that was
    started. `sysfs`, `dev`, `proc` and `driver_root` replace /sys, /dev, /proc and / (the driver's libraries and
    programs). /sys and the driver's files are written at the first access. Below the folder `cpus` machines share the
    files of equal CPUs in /sys: nothing may change them then.
    Raises StandinUnavailable without a C compiler, HostError for an invalid description.
    """

    def __init__(self, folder: Path, host: str | Mapping[str, Any], *, cpus: Path | None = None) -> None:
        self.description = load(host)
        self._cpus = cpus
        self.library = library.build(self.description.missing) / library.NAME
        self.folder = folder.absolute()
        self.dev, self.proc = self.folder / "dev", self.folder / "proc"
        self.state_file = self.folder / "state"
        self._describe(host)
        self._open(self.state_file, self.library)

    @cached_property
    def sysfs(self) -> Path:
        return self._written("sys", partial(machine.write_sysfs, cpus=self._cpus))

    @cached_property
    def driver_root(self) -> Path:
        return self._written("driver", machine.write_driver)

    @property
    def environment(self) -> dict[str, str]:
        inherited = os.environ.get("LD_LIBRARY_PATH")
        folders = [str(self.library.parent), *([str(self.dcgm.parent)] if "dcgm" in self.__dict__ else [])]
        path = ":".join([*folders, *([inherited] if inherited else [])])
        return {"LD_LIBRARY_PATH": path, VARIABLE: str(self.state_file)}

    # What happens to the machine

    def lose(self, gpu: int) -> None:
        """Let the GPU fall off the bus: it still counts, and every call for it fails."""
        self.set(gpu, lost=1)

    def remove(self, gpu: int) -> None:
        """Remove the GPU: lost for processes with the library open, absent from sysfs and for later initializations."""
        machine.remove_gpu(self.description, gpu, self.sysfs)
        self.set(gpu, gone=1)

    def restore(self, gpu: int) -> None:
        """Restore the GPU, without the XIDs that were reported in its absence."""
        machine.restore_gpu(self.description, gpu, self.sysfs)
        self.set(gpu, lost=0, gone=0)

    def mismatch(self, module: str = "535.104.05") -> None:
        """Simulate a library update while the old kernel module is loaded: initialization fails."""
        machine.write_module(module, self.sysfs, self.proc)
        with self._changing() as state:
            state.mismatch = 1

    def clear(self) -> None:
        """Remove all faults, delays and overrides, restore lost GPUs, and make the versions of library and module
        equal."""
        machine.write_module(self.description.driver, self.sysfs, self.proc)
        with self._changing() as state:
            state.mismatch = 0
            for each in (*state.fault, *state.override):
                each.used = 0
        for gpu in self.description.gpus:
            self.restore(gpu.index)

    def divide(self, gpu: int, parts: Sequence[tuple[str, int]]) -> None:
        """Set MIG mode on with these instances: pairs of profile name and start, each with one compute instance of full
        size. Raises HostError for a profile that the GPU does not have."""
        with self._changing() as state:
            self._settle(gpu)
            divide(state.gpu[gpu], parts)
            self._aggregate(gpu)

    def parts(self, gpu: int) -> tuple[Part, ...]:
        """The MIG instances, in order of their ids."""
        with self._changing() as state:
            mine = state.gpu[gpu]
            return tuple(
                Part(
                    mine.profile[instance.profile].name.decode(),
                    instance.start,
                    gi,
                    tuple(ci for ci, compute in enumerate(instance.compute) if compute.used),
                )
                for gi, instance in enumerate(mine.instance)
                if instance.used
            )

    def mig_mode(self, gpu: int) -> tuple[bool, bool]:
        """The current and the pending MIG mode."""
        with self._changing() as state:
            return bool(state.gpu[gpu].mig_mode), bool(state.gpu[gpu].mig_pending)

    def compute_mode(self, gpu: int) -> int:
        """The compute mode as NVML's number."""
        with self._changing() as state:
            return int(state.gpu[gpu].compute_mode)

    def reset(self, gpu: int) -> None:
        """Reset the GPU: removes the instances and applies the pending mode."""
        with self._changing() as state:
            self._settle(gpu)
            for instance in state.gpu[gpu].instance:
                instance.used = 0
            state.gpu[gpu].mig_mode = state.gpu[gpu].mig_pending
            self._aggregate(gpu)

    def reboot(self) -> None:
        """Reboot the machine: removes processes and instances, and sets MIG mode off from Hopper on."""
        with self._changing() as state:
            for gpu in state.gpu:
                for process in gpu.process:
                    process.used = 0
                if not gpu.mode_change_resets:
                    gpu.mig_pending = 0
        for each in self.description.gpus:
            self.reset(each.index)
        self.clear()

    def _describe(self, host: str | Mapping[str, Any]) -> None:
        wanted = json.dumps(host, sort_keys=True)
        note = self.folder / "host.json"
        if self.state_file.exists():
            if note.read_text() != wanted:
                raise HostError(f"{self.folder} holds another machine: {note.read_text()}")
            return
        self._written("dev", machine.write_dev)
        self._written("proc", machine.write_proc)
        note.write_text(wanted)
        fresh = self.folder / f"state.{uuid.uuid4().hex}"
        fresh.write_bytes(state_of(self.description, self.proc, self.dev))
        # The first process creates the machine, the others use it.
        with suppress(FileExistsError):
            os.link(fresh, self.state_file)
        fresh.unlink()

    def _written(self, name: str, write: Callable[[Description, Path], None]) -> Path:
        return machine.written_once(self.folder / name, partial(write, self.description))


@contextmanager
def loaded(standin: Standin) -> Iterator[Standin]:
    """Within this context NVIDIA's Python binding uses this machine in this process; afterwards it uses none."""
    before = os.environ.get(VARIABLE)
    _unload()
    os.environ[VARIABLE] = str(standin.state_file)
    pynvml.nvmlLib = ctypes.CDLL(str(standin.library))
    try:
        yield standin
    finally:
        _unload()
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _unload() -> None:
    """Shut down NVML as often as it was initialized in this process, and unload the library."""
    if pynvml.nvmlLib is not None:
        try:
            while True:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass
    pynvml.nvmlLib = None
    pynvml._nvmlLib_refcount = 0
    pynvml._nvmlGetFunctionPointer_cache.clear()
