# SPDX-License-Identifier: Apache-2.0
"""The unhealthy GPUs: since when, why, and when they are healthy again. Pure: from observations to the list.

There are two kinds of faults. A state lasts as long as it is observed: a GPU does not answer, its driver requests a
reset, a check of its values finds it broken, or NVML fails as a whole. An event passes while the damage stays: it is
remembered (`records`) until there is evidence that its remedy was applied, and until the exit test has passed. The
remedy follows from the action of the event (`agent.health.xids`).

| action              | evidence of the remedy                                                                |
|---------------------|---------------------------------------------------------------------------------------|
| restart-application | no pod holds the GPU or one of its MIG instances any more; or as for quarantine-gpu   |
| quarantine-gpu      | the GPU answers, its driver requests no recovery, and one of: the driver has          |
|                     | requested one since the event; the driver was reloaded; the PCI device was recreated; |
|                     | the energy counter, which starts with the driver, is lower than at the event although |
|                     | persistence mode kept the driver loaded; or as for quarantine-node                    |
| quarantine-node     | the machine has another boot id                                                       |

The exit test of quarantine-gpu and quarantine-node: no other fault is observed, no error has occurred for the clean
period, and then the administrator's command, if there is one, has passed while no pod held the GPU.

When a check is switched off, its findings are dropped.
So a restart of the agent clears no fault, and a GPU that was reset while no agent ran is on probation at the next
start. A fault of a GPU affects all its MIG instances; a fault of a MIG instance affects only that instance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from dovetail.agent.health.records import HealthMemory, HealthRecord, Mark, Phase
from dovetail.agent.health.xids import Action

LOST = "lost"
NVML = "nvml"
RECOVERY = "recovery"
RESET_REQUIRED = "reset-required"


class Unhealthy(Struct, frozen=True):
    """An unhealthy device. `uuid` is that of a GPU, or of a MIG instance if only that is affected. `code` is xid-N,
    ecc-double-bit, lost, recovery, reset-required, nvml, or that of a finding; `message` states the fault and the
    remedy; `since_ms` is Unix time in ms; `next` is what happens next, or has to."""

    uuid: str
    code: str
    message: str
    since_ms: int
    action: Action = Action.QUARANTINE_GPU
    next: str = ""


class GpuFault(Struct, frozen=True):
    """A fault that lasts as long as it is observed."""

    code: str
    message: str
    action: Action = Action.QUARANTINE_GPU


class HealthReading(Struct, frozen=True):
    """The result of one check of a GPU. `fault` is None if it answers and its driver requests no recovery."""

    uuid: str
    fault: GpuFault | None = None
    mark: Mark = Mark()


class Finding(Struct, frozen=True):
    """What a check of values found (`agent.health.checks`). `uuid` is "" for a finding about the node."""

    uuid: str
    code: str
    action: Action
    message: str
    since_ms: int


class Exit(Struct, frozen=True):
    """How a quarantine ends: `clean_ms` without an error, and a command of the administrator if `tests`."""

    clean_ms: int = 600_000
    tests: bool = False


class HealthLedger:
    """The faults of one machine, starting from `memory`. `boot` is the current boot id. Times are Unix time in ms."""

    def __init__(self, memory: HealthMemory, boot: str, now_ms: int, leave: Exit) -> None:
        self._exit = leave
        if memory.boot != boot:
            quarantined = (record for record in memory.records if record.quarantines)
            records = tuple(
                record if record.clean_since_ms else _remedied(replace(record, mark=Mark()), now_ms)
                for record in quarantined
            )
            memory = HealthMemory(boot, (), records)
        self._memory = memory
        self._seen: dict[str, tuple[GpuFault, int]] = {}
        self._marks: dict[str, Mark] = {}
        self._down: tuple[str, int] | None = None
        self._findings: tuple[Finding, ...] = ()
        self._held: frozenset[str] = frozenset()
        self._failing: set[tuple[str, str]] = set()
        """Device and code of the records on probation with another fault at the last check."""

    @property
    def memory(self) -> HealthMemory:
        return self._memory

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings after which devices are still offered, and those about the node."""
        return tuple(one for one in self._findings if one.action < Action.QUARANTINE_GPU or not one.uuid)

    @property
    def unhealthy(self) -> tuple[Unhealthy, ...]:
        """The unhealthy devices, in the order in which their faults began."""
        found = [Unhealthy(r.hit, r.code, _why(r), r.since_ms, r.action, self._next(r)) for r in self._memory.records]
        found += [
            Unhealthy(uuid, fault.code, fault.message, since_ms, fault.action, fault.action.advice)
            for uuid, (fault, since_ms) in self._seen.items()
        ]
        found += [
            Unhealthy(one.uuid, one.code, one.message, one.since_ms, one.action, one.action.advice)
            for one in self._findings
            if one.uuid and one.action >= Action.QUARANTINE_GPU
        ]
        if self._down is not None:
            message, since_ms = self._down
            found += [Unhealthy(uuid, NVML, message, since_ms, next=_REPAIR) for uuid in self._memory.known]
        return tuple(sorted(found, key=lambda one: (one.since_ms, one.uuid, one.code)))

    @property
    def held_devices(self) -> frozenset[str]:
        """The GPUs and MIG instances that pods held when that was read last."""
        return self._held

    def event(self, record: HealthRecord) -> None:
        """Remember an event. It replaces an earlier record of the same device and code, and begins the clean period of
        the others of the GPU again."""
        mark = self._marks.get(record.gpu, Mark())
        others = (r for r in self._memory.records if (r.hit, r.code) != (record.hit, record.code))
        kept = (_failed(r, record.since_ms) if r.gpu == record.gpu else r for r in others)
        self._memory = replace(self._memory, records=(*kept, replace(record, mark=mark)))

    def checked(self, gpus: Collection[HealthReading], now_ms: int) -> None:
        """Take a check of all GPUs that NVML lists. A GPU seen since boot that is not listed is lost."""
        self._down = None
        listed = {gpu.uuid for gpu in gpus}
        known = tuple(sorted({*self._memory.known, *listed}))
        faults = {gpu.uuid: gpu.fault for gpu in gpus if gpu.fault is not None}
        faults |= {uuid: _GONE for uuid in known if uuid not in listed}
        before = self._seen
        self._seen = {
            uuid: (now, before[uuid][1] if uuid in before and before[uuid][0].code == now.code else now_ms)
            for uuid, now in faults.items()
        }
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        checked = (self._checked(record, by_uuid.get(record.gpu), now_ms) for record in self._memory.records)
        left = (record for record in checked if record is not None)
        self._memory = replace(self._memory, known=known, records=tuple(r for r in left if not self._passes(r, now_ms)))
        self._failing &= {(record.hit, record.code) for record in self._memory.records}
        self._marks |= {gpu.uuid: gpu.mark for gpu in gpus}

    def down(self, message: str, now_ms: int) -> None:
        """NVML fails as a whole: the state of every GPU is unknown."""
        self._down = message, self._down[1] if self._down else now_ms

    def found(self, findings: tuple[Finding, ...]) -> None:
        """Take the findings of the checks of values. A finding about a GPU that lasts keeps its time and its numbers,
        so that it is reported once. Findings about the node count GPUs: a new count is a new finding."""
        before = {_identity(one): one for one in self._findings}
        self._findings = tuple(before.get(_identity(one), one) for one in findings)

    def only(self, keeps: Callable[[HealthRecord], bool]) -> tuple[HealthRecord, ...]:
        """Drop the records for which `keeps` is false, and return them."""
        released = tuple(record for record in self._memory.records if not keeps(record))
        kept = tuple(record for record in self._memory.records if record not in released)
        self._memory = replace(self._memory, records=kept)
        return released

    def held(self, uuids: Collection[str]) -> None:
        """Take the GPUs and MIG instances that pods hold, and drop the records that waited for the other ones."""
        self._held = frozenset(uuids)
        kept = (r for r in self._memory.records if r.quarantines or set(r.devices) & self._held)
        self._memory = replace(self._memory, records=tuple(kept))

    def to_test(self, now_ms: int) -> str | None:
        """A GPU or MIG instance for which only the exit test is left, and that no pod holds; None if there is none."""
        for record in self._memory.records:
            same = [r for r in self._memory.records if r.hit == record.hit]
            held = any(self._held.intersection(r.devices) for r in same)
            if self._exit.tests and not held and all(self._clean(r, now_ms) for r in same):
                return record.hit
        return None

    def tested(self, uuid: str, failure: str, now_ms: int) -> None:
        """Take the result of the exit test: the last line of its output if it failed, "" if it passed."""

        def after(record: HealthRecord) -> HealthRecord:
            if record.hit != uuid or not record.clean_since_ms:
                return record
            return replace(_failed(record, now_ms), failure=failure) if failure else replace(record, tested=True)

        records = (after(record) for record in self._memory.records)
        self._memory = replace(self._memory, records=tuple(r for r in records if not self._passes(r, now_ms)))

    def _checked(self, record: HealthRecord, gpu: HealthReading | None, now_ms: int) -> HealthRecord | None:
        """The record after a check of its GPU; None if the check is evidence of the remedy, and nothing else is
        wanted."""
        if record.clean_since_ms > now_ms:
            # The clock has gone back.
            record = replace(record, clean_since_ms=now_ms)
        if gpu is None:
            return record
        requested = gpu.fault is not None and gpu.fault.code in (RECOVERY, RESET_REQUIRED)
        if record.phase is Phase.PROBATION:
            if requested:
                return replace(record, clean_since_ms=0, tested=False, asked=True)
            return self._on_probation(record, now_ms)
        if record.action == Action.QUARANTINE_NODE:
            return record
        if gpu.fault is not None:
            return replace(record, asked=record.asked or requested)
        before = (record.mark, self._marks.get(record.gpu, record.mark))
        if record.asked or any(gpu.mark.is_after_reset(mark) for mark in before):
            return _remedied(replace(record, mark=gpu.mark), now_ms) if record.quarantines else None
        # An event before the first check gets its mark from that check.
        return replace(record, mark=gpu.mark) if record.mark == Mark() else record

    def _on_probation(self, record: HealthRecord, now_ms: int) -> HealthRecord:
        """The clean period begins when another fault is observed first, and again when it has ended."""
        key, failing = (record.hit, record.code), self._hindered(record)
        if failing == (key in self._failing):
            return record
        self._failing ^= {key}
        return _failed(record, now_ms)

    def _hindered(self, record: HealthRecord) -> bool:
        """Whether another fault of the GPU is observed now."""
        closing = (one.uuid for one in self._findings if one.action >= Action.QUARANTINE_GPU)
        return record.gpu in self._seen or any(uuid in (record.gpu, record.hit) for uuid in closing)

    def _clean(self, record: HealthRecord, now_ms: int) -> bool:
        """Whether the clean period is over."""
        since_ms = record.clean_since_ms
        return bool(since_ms) and now_ms - since_ms >= self._exit.clean_ms and not self._hindered(record)

    def _passes(self, record: HealthRecord, now_ms: int) -> bool:
        return self._clean(record, now_ms) and (record.tested or not self._exit.tests)

    def _next(self, record: HealthRecord) -> str:
        """What happens next, or has to."""
        if record.phase is Phase.OPEN:
            return record.action.advice
        if self._hindered(record):
            return _OTHERS_FIRST
        end = datetime.fromtimestamp((record.clean_since_ms + self._exit.clean_ms) // 1000, UTC)
        test = " and the exit test passes then" if self._exit.tests else ""
        return f"it is offered again if no error occurs until {end:%Y-%m-%dT%H:%M:%SZ}{test}"


def _remedied(record: HealthRecord, now_ms: int) -> HealthRecord:
    return replace(record, clean_since_ms=now_ms, tested=False, asked=False)


def _failed(record: HealthRecord, now_ms: int) -> HealthRecord:
    """The clean period of a record on probation begins again."""
    return replace(record, clean_since_ms=now_ms, tested=False) if record.clean_since_ms else record


def _why(record: HealthRecord) -> str:
    return f"{record.message} (the exit test failed: {record.failure})" if record.failure else record.message


_OTHERS_FIRST = "the clean period begins when the other faults of the GPU have ended"
_REPAIR = "see dmesg; load the driver anew, or reboot the node"
_GONE = GpuFault(
    LOST, f"the GPU is gone: NVML no longer lists it; {Action.QUARANTINE_NODE.advice}", Action.QUARANTINE_NODE
)


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.uuid, finding.code, "" if finding.uuid else finding.message
