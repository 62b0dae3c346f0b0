# SPDX-License-Identifier: Apache-2.0
"""Reads GPU health from NVML: events as they occur, and a check of all GPUs every `look_s`. It blocks, so it runs in a
thread of its own.

Rules: an event is passed on when it arrives, also between two NVML calls of a check. A lost GPU makes NVML's wait fail
for all GPUs. Then the library is reopened, and events are awaited from the GPUs that answer. While one does not answer,
each check reopens the library, as NVML finds a recovered GPU only that way. A failure of NVML as a whole is passed on
and retried after one second, then with back-off up to `look_s`.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
from msgspec import Struct

from dovetail.agent.health.health import LOST, NVML, RECOVERY, RESET_REQUIRED, GpuFault, HealthReading
from dovetail.agent.health.records import Mark
from dovetail.agent.health.watched import BY_DRIVER
from dovetail.agent.health.xids import Action
from dovetail.agent.machine import nvml as library
from dovetail.agent.machine.nvml import Nvml, NvmlError

XID = pynvml.nvmlEventTypeXidCriticalError
DOUBLE_BIT = pynvml.nvmlEventTypeDoubleBitEccError
RECOVERY_CHANGED = pynvml.nvmlEventTypeGpuRecoveryAction
# Corrected errors are not watched: a single one is harmless, a storm of them would only wake the agent, and too many of
# them raise XID 92.
_WANTED = XID | DOUBLE_BIT | RECOVERY_CHANGED

# XIDs after which the GPU is checked at once: for the driver's recommendation, and for its presence.
_CHECK_AT_ONCE = {BY_DRIVER, 79}
_NO_INSTANCE = 0xFFFFFFFF
_LONGEST_WAIT_S = 10.0
_SHORTEST_PAUSE_S = 1.0
# Errors that mean that NVML fails as a whole, for every GPU.
_ALL_FAIL = {library.UNINITIALIZED, library.DRIVER_NOT_LOADED, library.MISMATCH}
# Errors with which a GPU answers that it does not support the query.
_ANSWERED = {library.NOT_SUPPORTED, library.NO_PERMISSION, library.FUNCTION_NOT_FOUND}
_RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: Action.QUARANTINE_GPU.advice,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: Action.QUARANTINE_NODE.advice,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "end what uses NVLink or peer access with it",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: f"drain it, then {Action.QUARANTINE_GPU.advice}",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover the IMEX domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "reset its PCI bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: Action.QUARANTINE_NODE.advice,
}


class Down(Struct, frozen=True):
    """NVML fails as a whole."""

    message: str


class EventsRead(Struct, frozen=True):
    """The result of a check of all GPUs. `unwatched` are the GPUs without events: uuid and reason. `whole`: every GPU
    has reported its uuid, and answers."""

    gpus: tuple[HealthReading, ...]
    unwatched: tuple[tuple[str, str], ...]
    whole: bool = True


class GpuEvent(Struct, frozen=True):
    """`kind` is XID (with its number), DOUBLE_BIT or RECOVERY_CHANGED. `instances` are the MIG instances of the GPU,
    and `hit` the affected ones; None if the whole GPU is affected."""

    gpu: str
    kind: int
    number: int
    instances: tuple[str, ...] = ()
    hit: tuple[str, ...] | None = None


class Away(Struct, frozen=True):
    """The library is closed, because of `pause`."""


HealthEvent = Down | EventsRead | GpuEvent | Away


class GpuEvents:
    """Iterate it once. It ends within 10 seconds of `stop`. After `pause` it closes the library and yields Away; after
    `resume` it watches again. `look_s` is the interval between checks of all GPUs, in seconds."""

    def __init__(self, sysfs: Path, look_s: float = 30.0, open_library: Callable[[], Nvml] = Nvml) -> None:
        self._sysfs = sysfs
        self._look_s = look_s
        self._open_library = open_library
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._wanted.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()

    def pause(self) -> None:
        self._wanted.clear()

    def resume(self) -> None:
        self._wanted.set()

    def __iter__(self) -> Iterator[HealthEvent]:
        again_s = _SHORTEST_PAUSE_S
        while not self._stopped.is_set():
            if not self._wanted.is_set():
                yield Away()
                self._wanted.wait()
                continue
            try:
                with self._open_library() as nvml, contextlib.closing(_Watch(nvml, self._sysfs)) as watch:
                    look = watch.begin()
                    again_s = _SHORTEST_PAUSE_S if look.whole else 2 * again_s
                    yield look
                    yield from self._watch(watch, look, min(again_s, self._look_s))
            except NvmlError as error:
                yield Down(str(error))
                self._rest(min(again_s, self._look_s))
                again_s *= 2

    def _watch(self, watch: _Watch, look: EventsRead, again_s: float) -> Iterator[HealthEvent]:
        """Watch until the library must be reopened: after `again_s` if the first check was not whole. Raises NvmlError
        if NVML fails as a whole."""
        lost = waited = False
        due = time.monotonic() + (self._look_s if look.whole else again_s)
        while self._wanted.is_set() and not self._stopped.is_set():
            wait_s = due - time.monotonic()
            if wait_s <= 0:
                if lost or not watch.whole:
                    return
                found = []
                for gpu in watch.gpus:
                    found.append(watch.see(gpu))
                    yield from watch.events(0)
                yield EventsRead(tuple(found), look.unwatched)
                lost = any(seen.fault and seen.fault.code == LOST for seen in found)
                due = time.monotonic() + (0 if lost else self._look_s)
                continue
            for event in watch.events(min(wait_s, _LONGEST_WAIT_S)):
                yield event
                if event.kind == RECOVERY_CHANGED or event.number in _CHECK_AT_ONCE:
                    due = 0
            if watch.gpu_lost:
                if not waited:
                    # The wait failed right after the library was opened: pause, to avoid a busy loop.
                    self._rest(min(self._look_s, _SHORTEST_PAUSE_S))
                return
            waited = True

    def _rest(self, for_s: float) -> None:
        end = time.monotonic() + for_s
        while self._wanted.is_set() and (left_s := end - time.monotonic()) > 0:
            if self._stopped.wait(min(left_s, _LONGEST_WAIT_S)):
                return


class _Gpu(Struct, frozen=True):
    uuid: str
    handle: Any
    device: Path


class _Watch:
    """The open library with its event set. `whole`: every GPU in its count has reported its uuid, and answers.
    `gpu_lost`: no events arrive any more, as one of its GPUs is lost."""

    def __init__(self, nvml: Nvml, sysfs: Path) -> None:
        self._nvml = nvml
        self._sysfs = sysfs
        self._events = nvml.call("nvmlEventSetCreate")
        self.gpus: list[_Gpu] = []
        self.whole = True
        self.gpu_lost = False

    def close(self) -> None:
        with contextlib.suppress(NvmlError):
            self._nvml.call("nvmlEventSetFree", self._events)

    def begin(self) -> EventsRead:
        """Find the GPUs, check them, and register those that answer for events. Raises NvmlError."""
        found, unwatched = [], []
        for index in range(self._nvml.call("nvmlDeviceGetCount")):
            gpu = self._find(index)
            if gpu is None:
                self.whole = False
                continue
            seen = self.see(gpu)
            found.append(seen)
            if seen.fault and seen.fault.code == LOST:
                self.whole = False
                continue
            self.gpus.append(gpu)
            try:
                kinds = self._nvml.call("nvmlDeviceGetSupportedEventTypes", gpu.handle) & _WANTED
                self._nvml.call("nvmlDeviceRegisterEvents", gpu.handle, kinds, self._events)
                if not kinds & XID:
                    unwatched.append((gpu.uuid, "the GPU reports no XID events"))
            except NvmlError as error:
                if error.code in _ALL_FAIL:
                    raise
                unwatched.append((gpu.uuid, str(error)))
        return EventsRead(tuple(found), tuple(unwatched), self.whole)

    def _find(self, index: int) -> _Gpu | None:
        """The GPU at this index; None if it does not report its uuid: then it counts as missing."""
        try:
            handle = self._nvml.call("nvmlDeviceGetHandleByIndex", index)
            uuid = self._nvml.call("nvmlDeviceGetUUID", handle)
            bus_id = self._nvml.call("nvmlDeviceGetPciInfo", handle).busId
        except NvmlError as error:
            if error.code in _ALL_FAIL:
                raise
            return None
        text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
        # NVML writes the domain with eight digits, sysfs with four.
        return _Gpu(uuid, handle, self._sysfs / "bus/pci/devices" / text.lower()[-12:])

    def see(self, gpu: _Gpu) -> HealthReading:
        """Check one GPU. Raises NvmlError if NVML fails as a whole."""
        mark = Mark(_inode(self._sysfs / "module/nvidia"), _inode(gpu.device), self._energy_mj(gpu))
        try:
            self._ask("nvmlDeviceGetMemoryInfo", gpu.handle)
            fault = self._recovery(gpu)
        except NvmlError as error:
            if error.code in _ALL_FAIL:
                raise
            fault = _unanswered(error)
        return HealthReading(gpu.uuid, fault, mark)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call NVML; None if the GPU answers that it does not support the query. Raises NvmlError."""
        try:
            return self._nvml.call(name, *arguments)
        except NvmlError as error:
            if error.code in _ANSWERED:
                return None
            raise

    def _energy_mj(self, gpu: _Gpu) -> int | None:
        try:
            kept = self._nvml.call("nvmlDeviceGetPersistenceMode", gpu.handle)
            return int(self._nvml.call("nvmlDeviceGetTotalEnergyConsumption", gpu.handle)) if kept else None
        except NvmlError:
            return None

    def _recovery(self, gpu: _Gpu) -> GpuFault | None:
        """The recovery action that the driver requests. Drivers report it since 565; older ones at most report that a
        reset is required."""
        fields = self._ask(
            "nvmlDeviceGetFieldValues",
            gpu.handle,
            [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, pynvml.NVML_FI_DEV_RESET_STATUS],
        )
        action, reset = (f.value.uiVal if f.nvmlReturn == 0 else 0 for f in fields or ()) if fields else (0, 0)
        if action:
            todo = _RECOVERY.get(action, f"see nvidia-smi -q (action {action})")
            return GpuFault(RECOVERY, f"the driver asks for a recovery: {todo}")
        return (
            GpuFault(RESET_REQUIRED, f"the driver requires a reset: {Action.QUARANTINE_GPU.advice}") if reset else None
        )

    def events(self, wait_s: float) -> Iterator[GpuEvent]:
        """Wait for the first event, up to the time, then yield all that have arrived. Raises NvmlError."""
        wait_ms = int(wait_s * 1000)
        while not self.gpu_lost:
            try:
                data = self._nvml.call("nvmlEventSetWait_v2", self._events, wait_ms)
            except NvmlError as error:
                if error.code == library.TIMEOUT:
                    return
                if error.code != library.GPU_IS_LOST:
                    raise
                self.gpu_lost = True
                return
            yield self._event(data)
            wait_ms = 0

    def _event(self, data: Any) -> GpuEvent:
        kind, number = data.eventType, data.eventData
        address = _address(data.device)
        # A GPU that has just fallen off the bus would not report its uuid.
        uuid = next((gpu.uuid for gpu in self.gpus if _address(gpu.handle) == address), None)
        if uuid is None:
            uuid = self._nvml.call("nvmlDeviceGetUUID", data.device)
        instances = self._instances(data.device)
        hit: tuple[str, ...] | None = None
        if instances is not None and data.gpuInstanceId != _NO_INSTANCE:
            any_ci = data.computeInstanceId == _NO_INSTANCE
            hit = tuple(
                name
                for name, gi, ci in instances
                if gi == data.gpuInstanceId and (any_ci or ci == data.computeInstanceId)
            )
            if not hit and not self._gone(data.device, data.gpuInstanceId):
                hit = None
        return GpuEvent(uuid, kind, number, tuple(name for name, _, _ in instances or ()), hit)

    def _gone(self, handle: Any, gi: int) -> bool:
        """Whether the GPU no longer has this instance. An unprivileged process only sees the instances that existed
        when its container was created, and may not query others: such an instance is not visible, and not gone."""
        try:
            self._nvml.call("nvmlDeviceGetGpuInstanceById", handle, gi)
        except NvmlError as error:
            return bool(error.code == library.NOT_FOUND)
        return True

    def _instances(self, handle: Any) -> list[tuple[str, int, int]] | None:
        """The MIG instances of a GPU: uuid, GPU instance, compute instance. They are queried when needed, as they
        change. None if the query fails: then an error of one instance counts for all."""
        found = []
        try:
            for index in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
                try:
                    mig = self._nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
                except NvmlError as error:
                    if error.code in (library.NOT_FOUND, *_ANSWERED):
                        continue
                    raise
                uuid = self._nvml.call("nvmlDeviceGetUUID", mig)
                gi = self._nvml.call("nvmlDeviceGetGpuInstanceId", mig)
                found.append((uuid, gi, self._nvml.call("nvmlDeviceGetComputeInstanceId", mig)))
        except NvmlError:
            return None
        return found


def _unanswered(error: NvmlError) -> GpuFault:
    if error.code in (library.GPU_IS_LOST, library.NOT_FOUND):
        return GpuFault(LOST, f"{error}; {Action.QUARANTINE_NODE.advice}", Action.QUARANTINE_NODE)
    if error.code == library.RESET_REQUIRED:
        return GpuFault(RESET_REQUIRED, f"{error}; {Action.QUARANTINE_GPU.advice}")
    return GpuFault(NVML, f"{error}; see dmesg")


def _inode(path: Path) -> int:
    """The inode of the path; 0 if it does not exist or is not readable."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
