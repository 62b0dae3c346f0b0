# SPDX-License-Identifier: Apache-2.0
"""One thread per GPU that reads it when asked, and at least every `PAUSE_S`.

Rules
- A slow or hung call delays its own GPU only. A request waits for a GPU at most `PATIENCE_S`; a GPU that is being read
  for longer than that is not waited for. Its last reading is used until it is `STALE_S` old.
- A GPU that is lost, or that NVML no longer counts, has no reading: its series end.
- When NVML is opened again (`shared_nvml`), each GPU is identified anew.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from msgspec import Struct

from dovetail.agent.exporter.counters import Counters
from dovetail.agent.exporter.dcgm import Dcgm
from dovetail.agent.exporter.kinds import Kind
from dovetail.agent.exporter.reading import GpuReading
from dovetail.agent.exporter.readings import DeviceReader
from dovetail.agent.exporter.shared_nvml import Session, SharedNvml
from dovetail.agent.exporter.use_hours import UseHours
from dovetail.agent.machine import nvml as codes
from dovetail.agent.machine.nvml import NvmlError

PAUSE_S = 15.0
PATIENCE_S = 1.0
STALE_S = 45.0
_AGAIN_S = 5.0
_ALL_FAIL = frozenset({codes.UNINITIALIZED, codes.DRIVER_NOT_LOADED, codes.MISMATCH, codes.LIBRARY_NOT_FOUND})
T = TypeVar("T")
log = logging.getLogger(__name__)


class Sampled(Struct, frozen=True):
    """A reading of a GPU. `since_s`: its profiling values are means from then on. `took_s`: its duration. `texts`: the
    label kinds."""

    reading: GpuReading
    since_s: float
    took_s: float
    texts: dict[str, str]


class _Gpu:
    """What the threads know of the GPU with this index. All under the sampler's condition."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.sampled: Sampled | None = None
        self.wanted_s = 0.0
        self.begun_s = 0.0
        self.ended_s = 0.0
        self.error = ""


class Sampler:
    """Reads `kinds` of all GPUs between `start` and `stop`."""

    def __init__(
        self, library: SharedNvml, kinds: Iterable[Kind], counters: Counters, use: UseHours, dcgm: Dcgm | None = None
    ) -> None:
        self._library, self._kinds, self._dcgm = library, tuple(kinds), dcgm
        self._counters, self._use = counters, use
        self._condition = threading.Condition()
        self._gpus: dict[int, _Gpu] = {}
        self._stopped = False
        self._threads: list[threading.Thread] = []
        self._count = 0
        self._errors: Counter[str] = Counter()
        self._fault = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Why GPUs are not read, as sentences for an operator."""
        with self._condition:
            gpus = (f"GPU {gpu.index} is not read: {gpu.error}" for gpu in self._gpus.values() if gpu.error)
            return (*((self._fault,) if self._fault else gpus), *self._counters.faults, *self._use.faults)

    @property
    def errors(self) -> dict[str, int]:
        """Failed calls since the start, by name."""
        with self._condition:
            return dict(self._errors)

    @property
    def count(self) -> int:
        """The number of GPUs that NVML counts."""
        return self._count

    def start(self) -> None:
        self._run(self._keep_counting, "gpu-count")

    def _run(self, work: Callable[[], None], name: str) -> None:
        # Daemon threads: the process does not wait at its exit for a call that hangs.
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, patience_s: float = 1.0) -> None:
        """End the threads, and close the library. A thread whose reading hangs is waited for until then."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        until_s = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._library.close()
        self._counters.write(now=True)
        self._use.write(now=True)

    async def read(self, not_before_s: float) -> tuple[Sampled, ...]:
        """A reading of each GPU that was begun at or after that time, or the newest one if the GPU does not answer."""
        return await asyncio.to_thread(self._read, not_before_s)

    def begin(self, not_before_s: float) -> None:
        """Begin a reading of each GPU whose newest one was begun before that time, and do not wait for it."""
        now_s = time.monotonic()
        with self._condition:
            for gpu in self._gpus.values():
                if gpu.begun_s < not_before_s:
                    gpu.wanted_s = now_s
            self._condition.notify_all()

    def _read(self, not_before_s: float) -> tuple[Sampled, ...]:
        self.begin(not_before_s)
        with self._condition:
            self._condition.wait_for(lambda: not any(self._awaited(not_before_s)), PATIENCE_S)
            oldest_s = time.monotonic() - STALE_S
            found = (gpu.sampled for gpu in self._gpus.values())
            return tuple(each for each in found if each is not None and each.reading.read_s >= oldest_s)

    def _awaited(self, not_before_s: float) -> Iterator[_Gpu]:
        late_s = time.monotonic() - PATIENCE_S
        for gpu in self._gpus.values():
            reads = gpu.begun_s > gpu.ended_s
            if (gpu.begun_s < not_before_s or reads) and not (reads and gpu.begun_s < late_s) and not self._stopped:
                yield gpu

    def _keep_counting(self) -> None:
        """Start a thread for each GPU that NVML counts."""
        while not self._stopped:
            fault = ""
            try:
                with self._library.reading() as session:
                    self._count = session.count
            except NvmlError as error:
                self._count, fault = 0, f"GPUs are not read: {error}"
            self._set_fault(fault)
            for index in range(self._count):
                with self._condition:
                    fresh = index not in self._gpus
                    gpu = self._gpus.setdefault(index, _Gpu(index))
                if fresh:
                    self._run(partial(self._keep_reading, gpu), f"gpu-{index}")
            with self._condition:
                self._condition.wait_for(lambda: self._stopped, _AGAIN_S)

    def _set_fault(self, fault: str) -> None:
        with self._condition:
            if fault != self._fault:
                log.warning("%s", fault or "GPUs are read again")
            self._fault = fault

    def _keep_reading(self, gpu: _Gpu) -> None:
        reader: DeviceReader | None = None
        generation = 0
        while True:
            with self._condition:
                gpu.begun_s = time.monotonic()
            try:
                with self._library.reading() as session:
                    if reader is None or generation != session.generation:
                        reader, generation = None, session.generation
                        reader = self._identify(session, gpu.index)
                    sampled = self._sample(session, reader) if reader is not None else None
                error = ""
            except NvmlError as caught:
                sampled, error = None, str(caught)
                reader = None
            if reader is not None and reader.errors:
                with self._condition:
                    self._errors += reader.errors
                reader.errors.clear()
            self._counters.write()
            self._use.write()
            with self._condition:
                gpu.sampled, gpu.ended_s = sampled, time.monotonic()
                if error != gpu.error:
                    log.warning("GPU %d: %s", gpu.index, error or "it is read again")
                gpu.error = error
                self._condition.notify_all()
                pause_s = PAUSE_S if sampled is not None else _AGAIN_S
                self._condition.wait_for(lambda: self._stopped or gpu.wanted_s > gpu.begun_s, pause_s)
                if self._stopped:
                    return

    def _identify(self, session: Session, index: int) -> DeviceReader | None:
        """None if NVML no longer counts a GPU with this index. Raises NvmlError."""
        if index >= session.count:
            return None
        return self._guarded(session, lambda: DeviceReader(session.nvml, index, self._kinds, self._dcgm))

    def _sample(self, session: Session, reader: DeviceReader) -> Sampled:
        begun_s = time.monotonic()
        reading = self._guarded(session, reader.read)
        for device in reading.devices:
            self._counters.apply(device)
        self._use.apply(reading)
        return Sampled(reading, reader.since_s, time.monotonic() - begun_s, reader.texts)

    def _guarded(self, session: Session, read: Callable[[], T]) -> T:
        try:
            return read()
        except NvmlError as error:
            with self._condition:
                self._errors[error.call] += 1
            if error.code in _ALL_FAIL:
                self._library.broken(session)
            elif error.code == codes.UNKNOWN:
                # A GPU fails so, and all GPUs do after a reload of the driver.
                self._library.doubtful(session)
            raise
