# SPDX-License-Identifier: Apache-2.0
"""The health of the GPUs of this machine: a thread watches NVML's events, and each change is reported at once.

Rules
- `agent.health.gpu_events` waits in NVML. `agent.health.watched` defines which errors count, `agent.health.health`
  which GPUs are unhealthy and until when.
- A change is reported within milliseconds of the event. Then it is written to a file, so that a restart of the agent
  clears no fault. If the write fails, the state is kept in memory, and the write is retried at every check.
- A damaged file is set aside, and its readable part counts. Both failures show in `faults`; neither ends the process.
- Findings of checks that are switched off are dropped at the start.
- GPUs without events are reported, and count as healthy.
- When idle, this costs a few NVML calls every 30 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.health.gpu_events import DOUBLE_BIT, XID, Away, Down, EventsRead, GpuEvent, GpuEvents, HealthEvent
from dovetail.agent.health.health import HealthLedger, HealthMemory, HealthRecord, Unhealthy
from dovetail.agent.health.watched import BY_DRIVER, Watched
from dovetail.agent.health.xids import Action
from dovetail.agent.machine.nvml import Nvml

__all__ = ["HealthWatch", "Unhealthy"]
logger = logging.getLogger(__name__)
_XID, _DOUBLE_BIT = "xid-", "ecc-double-bit"


class HealthWatch:
    """Calls `changed` in the event loop with all unhealthy devices, at the first check and at each change.

    checkpoint: the file with the remembered events.
    holders: returns the uuids of the GPUs and MIG instances that pods hold now; for a replica the uuid of its GPU. It
    is called only while a GPU waits for its pods to end; if it raises OSError, no fault is cleared.
    watched: which errors count, see `agent.health.watched`.
    sysfs, proc: the mount points. look_s: the interval between checks of all GPUs, in seconds.
    """

    def __init__(
        self,
        changed: Callable[[tuple[Unhealthy, ...]], None],
        *,
        checkpoint: Path,
        holders: Callable[[], Awaitable[Collection[str]]],
        watched: Watched,
        sysfs: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        look_s: float = 30.0,
        open_library: Callable[[], Nvml] = Nvml,
    ) -> None:
        self._changed = changed
        self._checkpoint = CheckpointFile(checkpoint, HealthMemory)
        self._holders = holders
        self._watched = watched
        self._events = GpuEvents(sysfs, look_s, open_library)
        self._boot = _boot_id(proc)
        self._reported: tuple[Unhealthy, ...] | None = None
        self._thread: threading.Thread | None = None
        self._away = asyncio.Event()
        self._faults = {"read": "", "write": ""}
        self.on_event: Callable[[GpuEvent], None] = lambda _: None
        """Called with each event of a GPU, before it counts."""
        self.unwatched: tuple[tuple[str, str], ...] = ()
        """The GPUs without events: uuid and reason."""
        self.answered = False
        """Whether all GPUs have answered in one check, or the checks are switched off."""

    @property
    def faults(self) -> tuple[str, ...]:
        """The current faults of the checkpoint file, as sentences for an operator."""
        return tuple(fault for fault in self._faults.values() if fault)

    async def run(self) -> None:
        """Watch until cancelled."""
        self._remember()
        if self._watched.none:
            logger.warning("the health of GPUs is not watched: health checks are switched off")
            self.answered = True
            self._write()
            self._changed(())
            return
        loop, happened = asyncio.get_running_loop(), asyncio.Queue[HealthEvent | BaseException]()

        def wait() -> None:
            # The loop may be closed before a wait in NVML ends.
            with contextlib.suppress(RuntimeError):
                try:
                    for seen in self._events:
                        loop.call_soon_threadsafe(happened.put_nowait, seen)
                except BaseException as error:
                    loop.call_soon_threadsafe(happened.put_nowait, error)

        # A daemon thread outside the loop's executor: the process does not wait for it at exit.
        self._thread = threading.Thread(target=wait, name="nvml-events", daemon=True)
        self._thread.start()
        try:
            while True:
                seen = await happened.get()
                if isinstance(seen, BaseException):
                    raise seen
                await self._take(seen)
        finally:
            self._events.stop()

    def _remember(self) -> None:
        """Load the state that an earlier process wrote."""
        left, wrong = self._checkpoint.rescue()
        if wrong:
            self._faults["read"] = f"unhealthy GPUs of before may be forgotten: {wrong}"
            logger.error("%s", self._faults["read"])
        self._written = None if wrong else left
        self._ledger = HealthLedger(left or HealthMemory(), self._boot)
        for record in self._ledger.only(lambda record: self._watched.makes_unhealthy(_xid(record.code))):
            logger.warning(
                "%s is no longer unhealthy because of %s: its check is switched off", record.hit, record.code
            )

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep NVML closed for the block, which begins within 10 seconds: a GPU can be reset, or its MIG mode changed,
        only while no process has it open. The check after the block finds the changes made meanwhile."""
        if self._thread is None or not self._thread.is_alive():
            yield
            return
        self._away.clear()
        self._events.pause()
        try:
            await self._away.wait()
            yield
        finally:
            self._events.resume()

    async def _take(self, seen: HealthEvent) -> None:
        now_ms = time.time_ns() // 1_000_000
        match seen:
            case Away():
                self._away.set()
                return
            case Down():
                self._ledger.down(seen.message, now_ms)
            case EventsRead():
                self.answered |= seen.whole
                self._ledger.checked(seen.gpus, now_ms)
                self._log_unwatched(seen.unwatched)
            case GpuEvent():
                self.on_event(seen)
                for record in _records(seen, self._watched, now_ms):
                    self._ledger.event(record)
        self._report()
        if isinstance(seen, EventsRead) and self._ledger.waits_for_pods:
            try:
                self._ledger.held(await self._holders())
            except OSError as error:
                logger.warning("cannot read which pods hold GPUs, so no fault is cleared: %s", error)
            self._report()

    def _report(self) -> None:
        unhealthy = self._ledger.unhealthy
        if unhealthy != self._reported:
            for fault in set(unhealthy) - set(self._reported or ()):
                logger.error("%s is unhealthy (%s): %s", fault.uuid, fault.code, fault.message)
            for fault in set(self._reported or ()) - set(unhealthy):
                logger.warning("%s has recovered from %s", fault.uuid, fault.code)
            self._reported = unhealthy
            self._changed(unhealthy)
        self._write()

    def _write(self) -> None:
        if self._ledger.memory == (self._written or HealthMemory()):
            return
        fault = ""
        try:
            self._checkpoint.write(self._ledger.memory, over=True)
            self._written = self._ledger.memory
        except CheckpointError as error:
            fault = f"a restart of the agent will forget which GPUs are unhealthy: {error}"
        if fault != self._faults["write"]:
            self._faults["write"] = fault
            logger.error("%s", fault or "the list of unhealthy GPUs is written again")
            self._changed(self._reported or ())

    def _log_unwatched(self, unwatched: tuple[tuple[str, str], ...]) -> None:
        for uuid, reason in unwatched:
            if (uuid, reason) not in self.unwatched:
                logger.warning("the events of %s cannot be watched, it counts as healthy: %s", uuid, reason)
        self.unwatched = unwatched


def _records(event: GpuEvent, watched: Watched, now_ms: int) -> list[HealthRecord]:
    """The records to remember for an event; empty if it does not count."""
    xid: int | None
    if event.kind == DOUBLE_BIT:
        xid, code, action, name = None, _DOUBLE_BIT, Action.QUARANTINE_GPU, "double-bit ECC error"
    elif event.kind == XID and event.number != BY_DRIVER:
        meaning = watched.table.meaning(event.number)
        action, name = meaning.action, meaning.name
        xid, code, name = event.number, f"{_XID}{event.number}", f"XID {event.number}, {name}"
    else:
        return []
    counts = watched.makes_unhealthy(xid)
    logger.warning("%s: %s%s", ", ".join(event.hit or (event.gpu,)), name, "" if counts else " (does not count)")
    if not counts:
        return []
    # An error that is only to be noted counts if it was enabled: until its application ends.
    action = max(action, Action.RESTART_APPLICATION)
    hit = [(uuid, (uuid,)) for uuid in event.hit] if event.hit is not None else [(event.gpu, event.instances)]
    message = f"{name}: {action.advice}"
    return [HealthRecord(uuid, event.gpu, code, message, now_ms, action, (uuid, *more)) for uuid, more in hit]


def _xid(code: str) -> int | None:
    """The XID in the code of a remembered event; None for an ECC error."""
    return int(code.removeprefix(_XID)) if code != _DOUBLE_BIT else None


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
