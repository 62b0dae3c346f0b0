# SPDX-License-Identifier: Apache-2.0
"""The unhealthy GPUs: since when, why, and when they are healthy again. Pure: from observations to the list.

There are two kinds of faults. A state lasts as long as it is observed: a GPU does not answer, its driver requests a
reset, or NVML fails as a whole. An event passes while the damage stays: it is remembered until there is evidence that
its remedy was applied. The remedy follows from the action of the event (`agent.health.xids`).

| action              | evidence of the remedy                                                                |
|---------------------|---------------------------------------------------------------------------------------|
| restart-application | no pod holds the GPU or one of its MIG instances any more; or as for quarantine-gpu   |
| quarantine-gpu      | the GPU answers, its driver requests no recovery, and one of: the driver has          |
|                     | requested one since the event; the driver was reloaded; the PCI device was recreated; |
|                     | the energy counter, which starts with the driver, is lower than at the event although |
|                     | persistence mode kept the driver loaded; or as for quarantine-node                    |
| quarantine-node     | the machine has another boot id                                                       |

When a check is switched off, its findings are dropped.
So a restart of the agent clears no fault, and a GPU that was reset while no agent ran is healthy at the next start.
A fault of a GPU affects all its MIG instances; a fault of a MIG instance affects only that instance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.agent.health.xids import Action

LOST = "lost"
NVML = "nvml"
RECOVERY = "recovery"
RESET_REQUIRED = "reset-required"


class Unhealthy(Struct, frozen=True):
    """An unhealthy device. `uuid` is that of a GPU, or of a MIG instance if only that is affected. `code` is xid-N,
    ecc-double-bit, lost, recovery, reset-required or nvml; `message` states the fault and the remedy; `since_ms` is
    Unix time in ms."""

    uuid: str
    code: str
    message: str
    since_ms: int
    action: Action = Action.QUARANTINE_GPU


class Mark(Struct, frozen=True):
    """The values that change with a reset of a GPU. `driver` and `device` are the sysfs inodes of the kernel module and
    of the PCI device, which the kernel never reuses in one boot; 0: not readable. `energy_mj` is None if persistence
    mode is off, as the counter may then restart without a reset, or if there is no counter."""

    driver: int = 0
    device: int = 0
    energy_mj: int | None = None

    def is_after_reset(self, before: Mark) -> bool:
        """Whether the GPU was reset between `before` and this mark."""
        return (
            (0 not in (self.driver, before.driver) and self.driver != before.driver)
            or (0 not in (self.device, before.device) and self.device != before.device)
            or (self.energy_mj is not None and before.energy_mj is not None and self.energy_mj < before.energy_mj)
        )


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


class HealthRecord(Struct, frozen=True):
    """A remembered event. `hit` is the uuid of the affected GPU or MIG instance, `gpu` that of its GPU; `devices` are
    the affected uuids that pods may hold. `asked`: the driver has requested a recovery since."""

    hit: str
    gpu: str
    code: str
    message: str
    since_ms: int
    action: Action = field(name="remedy")
    devices: tuple[str, ...]
    mark: Mark = Mark()
    asked: bool = False


class HealthMemory(Struct, frozen=True):
    """The state that survives a restart of the agent: `known` are the GPUs seen since boot `boot`."""

    boot: str = ""
    known: tuple[str, ...] = ()
    records: tuple[HealthRecord, ...] = ()


class HealthLedger:
    """The faults of one machine, starting from `memory`. `boot` is the current boot id."""

    def __init__(self, memory: HealthMemory, boot: str) -> None:
        self._memory = memory if memory.boot == boot else HealthMemory(boot)
        self._seen: dict[str, tuple[GpuFault, int]] = {}
        self._marks: dict[str, Mark] = {}
        self._down: tuple[str, int] | None = None

    @property
    def memory(self) -> HealthMemory:
        return self._memory

    @property
    def unhealthy(self) -> tuple[Unhealthy, ...]:
        """The unhealthy devices, in the order in which their faults began."""
        found = [Unhealthy(r.hit, r.code, r.message, r.since_ms, r.action) for r in self._memory.records]
        found += [
            Unhealthy(uuid, fault.code, fault.message, since_ms, fault.action)
            for uuid, (fault, since_ms) in self._seen.items()
        ]
        if self._down is not None:
            message, since_ms = self._down
            found += [Unhealthy(uuid, NVML, message, since_ms) for uuid in self._memory.known]
        return tuple(sorted(found, key=lambda one: (one.since_ms, one.uuid, one.code)))

    @property
    def waits_for_pods(self) -> bool:
        """Whether a fault will be cleared as soon as no pod holds the device."""
        return any(record.action <= Action.RESTART_APPLICATION for record in self._memory.records)

    def event(self, record: HealthRecord) -> None:
        """Remember an event. It replaces an earlier record of the same device and code."""
        mark = self._marks.get(record.gpu, Mark())
        others = tuple(r for r in self._memory.records if (r.hit, r.code) != (record.hit, record.code))
        self._memory = replace(self._memory, records=(*others, replace(record, mark=mark)))

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
        checked = [self._checked(record, by_uuid.get(record.gpu)) for record in self._memory.records]
        self._memory = replace(self._memory, known=known, records=tuple(record for record in checked if record))
        self._marks |= {gpu.uuid: gpu.mark for gpu in gpus}

    def down(self, message: str, now_ms: int) -> None:
        """NVML fails as a whole: the state of every GPU is unknown."""
        self._down = message, self._down[1] if self._down else now_ms

    def only(self, keeps: Callable[[HealthRecord], bool]) -> tuple[HealthRecord, ...]:
        """Drop the records for which `keeps` is false, and return them."""
        released = tuple(record for record in self._memory.records if not keeps(record))
        kept = tuple(record for record in self._memory.records if record not in released)
        self._memory = replace(self._memory, records=kept)
        return released

    def held(self, uuids: Collection[str]) -> None:
        """Take the GPUs and MIG instances that pods hold, and drop the records that waited for the other ones."""
        kept = (r for r in self._memory.records if r.action > Action.RESTART_APPLICATION or set(r.devices) & set(uuids))
        self._memory = replace(self._memory, records=tuple(kept))

    def _checked(self, record: HealthRecord, gpu: HealthReading | None) -> HealthRecord | None:
        """The record after a check of its GPU; None if the check is evidence of the remedy."""
        if gpu is None or record.action == Action.QUARANTINE_NODE:
            return record
        if gpu.fault is not None:
            return replace(record, asked=record.asked or gpu.fault.code in (RECOVERY, RESET_REQUIRED))
        before = (record.mark, self._marks.get(record.gpu, record.mark))
        if record.asked or any(gpu.mark.is_after_reset(mark) for mark in before):
            return None
        # An event before the first check gets its mark from that check.
        return replace(record, mark=gpu.mark) if record.mark == Mark() else record


_GONE = GpuFault(
    LOST, f"the GPU is gone: NVML no longer lists it; {Action.QUARANTINE_NODE.advice}", Action.QUARANTINE_NODE
)
