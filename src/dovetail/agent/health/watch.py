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

from msgspec import Struct

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.health.exit_test import ExitTest
from dovetail.agent.health.gpu_events import DOUBLE_BIT, XID, Away, Down, EventsRead, GpuEvent, GpuEvents, HealthEvent
from dovetail.agent.health.health import Exit, Finding, HealthLedger, Unhealthy
from dovetail.agent.health.records import HealthMemory, HealthRecord
from dovetail.agent.health.watched import BY_DRIVER, Watched
from dovetail.agent.health.xids import Action

__all__ = ["HealthReport", "HealthWatch", "Unhealthy"]
logger = logging.getLogger(__name__)
_XID, _DOUBLE_BIT = "xid-", "ecc-double-bit"


class HealthReport(Struct, frozen=True):
    """The unhealthy devices, the findings after which devices are still offered, and the devices that pods held when
    that was read last."""

    unhealthy: tuple[Unhealthy, ...] = ()
    findings: tuple[Finding, ...] = ()
    held: frozenset[str] = frozenset()


class HealthWatch:
    """Calls `changed` in the event loop with the health of the devices, at the first check and at each change.

    checkpoint: the file with the remembered events.
    holders: returns the uuids of the GPUs and MIG instances that pods hold now; for a replica the uuid of its GPU. It
    is called only while a GPU is unhealthy; if it raises OSError, no fault is cleared.
    watched: which errors count, see `agent.health.watched`.
    clean_s: how long no error may occur before a quarantine ends. exit_test: the administrator's test, None for none.
    events: reads NVML. proc: the mount point of procfs.
    """

    def __init__(
        self,
        changed: Callable[[HealthReport], None],
        *,
        checkpoint: Path,
        holders: Callable[[], Awaitable[Collection[str]]],
        watched: Watched,
        events: GpuEvents,
        clean_s: float = 600.0,
        exit_test: ExitTest | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._changed = changed
        self._checkpoint = CheckpointFile(checkpoint, HealthMemory)
        self._holders = holders
        self._watched = watched
        self._events = events
        self._boot = _boot_id(proc)
        self._exit = Exit(int(clean_s * 1000), tests=exit_test is not None)
        self._exit_test = exit_test
        self._testing: asyncio.Task[None] | None = None
        self._ledger: HealthLedger | None = None
        self._reported: HealthReport | None = None
        self._asked: frozenset[str] = frozenset()
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
            self._changed(HealthReport())
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
            if self._testing is not None:
                self._testing.cancel()

    def take(self, findings: tuple[Finding, ...]) -> None:
        """Take the findings of the checks of values."""
        if self._ledger is not None and not self._watched.none:
            self._ledger.found(findings)
            self._report()

    def _remember(self) -> None:
        """Load the state that an earlier process wrote."""
        left, wrong = self._checkpoint.rescue()
        if wrong:
            self._faults["read"] = f"unhealthy GPUs of before may be forgotten: {wrong}"
            logger.error("%s", self._faults["read"])
        self._written = None if wrong else left
        self._ledger = HealthLedger(left or HealthMemory(), self._boot, _now_ms(), self._exit)
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
        assert self._ledger is not None
        now_ms = _now_ms()
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
        devices = frozenset(one.uuid for one in self._ledger.unhealthy)
        if devices and (isinstance(seen, EventsRead) or devices != self._asked):
            self._asked = devices
            try:
                self._ledger.held(await self._holders())
            except OSError as error:
                logger.warning("cannot read which pods hold GPUs, so no fault is cleared: %s", error)
            self._report()
        if isinstance(seen, EventsRead):
            self._test(now_ms)

    def _test(self, now_ms: int) -> None:
        """Begin the exit test of a device that waits for it, one after the other."""
        assert self._ledger is not None
        free = self._testing is None or self._testing.done()
        if self._exit_test is not None and free and (uuid := self._ledger.to_test(now_ms)) is not None:
            self._testing = asyncio.create_task(self._run_test(self._exit_test, self._ledger, uuid))

    async def _run_test(self, test: ExitTest, ledger: HealthLedger, uuid: str) -> None:
        logger.warning("%s: the exit test begins", uuid)
        failure = await test.run(uuid)
        logger.warning("%s: the exit test has %s", uuid, f"failed: {failure}" if failure else "passed")
        ledger.tested(uuid, failure, _now_ms())
        self._report()

    def _report(self) -> None:
        assert self._ledger is not None
        found = HealthReport(self._ledger.unhealthy, self._ledger.findings, self._ledger.held_devices)
        before = self._reported
        if found != before:
            faults, faults_before = _by_code(found.unhealthy), _by_code(before.unhealthy if before else ())
            for key in faults.keys() - faults_before.keys():
                logger.error("%s is unhealthy (%s): %s", *key, faults[key].message)
            for key in faults_before.keys() - faults.keys():
                logger.warning("%s has recovered from %s", *key)
            for finding in set(found.findings) - set(before.findings if before else ()):
                logger.warning("%s: %s: %s", finding.uuid or "this node", finding.code, finding.message)
            self._reported = found
            self._changed(found)
        self._write()

    def _write(self) -> None:
        assert self._ledger is not None
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
            self._changed(self._reported or HealthReport())

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


def _by_code(unhealthy: tuple[Unhealthy, ...]) -> dict[tuple[str, str], Unhealthy]:
    return {(one.uuid, one.code): one for one in unhealthy}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _xid(code: str) -> int | None:
    """The XID in the code of a remembered event; None for an ECC error."""
    return int(code.removeprefix(_XID)) if code != _DOUBLE_BIT else None


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
