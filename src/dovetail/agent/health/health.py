# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are ill, since when, why, and when they are well again. Pure: told what was seen, it says who is ill.

Two kinds of illness. One lasts as long as it is seen: a GPU that does not answer, one that its driver wants reset, NVML
as a whole. The other is an event, which passes while the harm stays: it is remembered until something shows that its
remedy (`agent.health.xids`) has happened.

| remedy      | has happened when                                                                            |
|-------------|----------------------------------------------------------------------------------------------|
| APPLICATION | no pod holds the GPU or one of its MIG instances any more; or as for RESET                   |
| RESET       | the GPU answers, its driver asks for nothing, and one of: the driver had asked for something |
|             | since the event; the driver was loaded anew; the GPU's PCI device was made anew; the energy  |
|             | counter, which runs since the driver came up, is lower than at the event while persistence   |
|             | mode kept the driver up; or as for REBOOT                                                    |
| REBOOT      | the machine has another boot id                                                              |

Where a check is switched off, what it had found is no illness any more.
So a restart of the agent heals nothing, and a GPU that was reset while no agent ran is well at the next start.
An illness of a GPU is one of all its MIG instances; that of a MIG instance hits it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from dovetail.agent.health.xids import Remedy

LOST = "lost"
NVML = "nvml"
RECOVERY = "recovery"
RESET_REQUIRED = "reset-required"


class Unhealthy(Struct, frozen=True):
    """`uuid` of a GPU, or of a MIG instance that alone is hit. `code` is xid-N, ecc-double-bit, lost, recovery,
    reset-required or nvml; `message` says what happened and what to do; `since_ms` is Unix time."""

    uuid: str
    code: str
    message: str
    since_ms: int


class Mark(Struct, frozen=True):
    """What tells one life of a GPU from the next. `driver` and `device` are the inodes in sysfs of the kernel module
    and of the PCI device, which the kernel never gives twice in one boot; 0: not readable. `energy_mj` is None where
    persistence mode is off or nobody counts: then it may begin anew without a reset."""

    driver: int = 0
    device: int = 0
    energy_mj: int | None = None

    def is_after_reset(self, before: Mark) -> bool:
        """Whether `before` was another life."""
        return (
            (0 not in (self.driver, before.driver) and self.driver != before.driver)
            or (0 not in (self.device, before.device) and self.device != before.device)
            or (self.energy_mj is not None and before.energy_mj is not None and self.energy_mj < before.energy_mj)
        )


class Ill(Struct, frozen=True):
    """What is wrong with a GPU as long as it is seen."""

    code: str
    message: str


class HealthReading(Struct, frozen=True):
    """One look at a GPU. `ill` is None where it answers and its driver asks for nothing."""

    uuid: str
    ill: Ill | None = None
    mark: Mark = Mark()


class HealthRecord(Struct, frozen=True):
    """An event that is remembered. `hit` is the GPU or MIG instance; `gpu` the card; `devices` the uuids that pods may
    hold of what was hit. `asked`: the driver has asked for something since."""

    hit: str
    gpu: str
    code: str
    message: str
    since_ms: int
    remedy: Remedy
    devices: tuple[str, ...]
    mark: Mark = Mark()
    asked: bool = False


class HealthMemory(Struct, frozen=True):
    """What outlives the process: `known` are the GPUs that were there since boot `boot`."""

    boot: str = ""
    known: tuple[str, ...] = ()
    records: tuple[HealthRecord, ...] = ()


class HealthLedger:
    """The illnesses of one machine, from `memory` on. `boot` is the boot id of now."""

    def __init__(self, memory: HealthMemory, boot: str) -> None:
        self._memory = memory if memory.boot == boot else HealthMemory(boot)
        self._seen: dict[str, tuple[Ill, int]] = {}
        self._marks: dict[str, Mark] = {}
        self._down: tuple[str, int] | None = None

    @property
    def memory(self) -> HealthMemory:
        return self._memory

    @property
    def illnesses(self) -> tuple[Unhealthy, ...]:
        """In the order in which they began."""
        found = [Unhealthy(r.hit, r.code, r.message, r.since_ms) for r in self._memory.records]
        found += [Unhealthy(uuid, ill.code, ill.message, since_ms) for uuid, (ill, since_ms) in self._seen.items()]
        if self._down is not None:
            message, since_ms = self._down
            found += [Unhealthy(uuid, NVML, message, since_ms) for uuid in self._memory.known]
        return tuple(sorted(found, key=lambda illness: (illness.since_ms, illness.uuid, illness.code)))

    @property
    def waits_for_pods(self) -> bool:
        """Whether a GPU is ill that is well as soon as no pod holds it."""
        return any(record.remedy <= Remedy.APPLICATION for record in self._memory.records)

    def event(self, record: HealthRecord) -> None:
        """An event that counts. The same once more changes nothing but what it says."""
        mark = self._marks.get(record.gpu, Mark())
        others = tuple(r for r in self._memory.records if (r.hit, r.code) != (record.hit, record.code))
        self._memory = replace(self._memory, records=(*others, replace(record, mark=mark)))

    def looked(self, gpus: Collection[HealthReading], now_ms: int) -> None:
        """All GPUs that NVML lists were looked at. One that was there since boot and is not listed is lost."""
        self._down = None
        listed = {gpu.uuid for gpu in gpus}
        known = tuple(sorted({*self._memory.known, *listed}))
        ill = {gpu.uuid: gpu.ill for gpu in gpus if gpu.ill is not None}
        ill |= {uuid: _GONE for uuid in known if uuid not in listed}
        before = self._seen
        self._seen = {
            uuid: (now, before[uuid][1] if uuid in before and before[uuid][0].code == now.code else now_ms)
            for uuid, now in ill.items()
        }
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        told = [self._told(record, by_uuid.get(record.gpu)) for record in self._memory.records]
        self._memory = replace(self._memory, known=known, records=tuple(record for record in told if record))
        self._marks |= {gpu.uuid: gpu.mark for gpu in gpus}

    def down(self, message: str, now_ms: int) -> None:
        """NVML fails as a whole: nothing is known of any GPU."""
        self._down = message, self._down[1] if self._down else now_ms

    def only(self, keeps: Callable[[HealthRecord], bool]) -> tuple[HealthRecord, ...]:
        """Forget the records that `keeps` does not keep. Returns these."""
        released = tuple(record for record in self._memory.records if not keeps(record))
        kept = tuple(record for record in self._memory.records if record not in released)
        self._memory = replace(self._memory, records=kept)
        return released

    def held(self, uuids: Collection[str]) -> None:
        """Pods hold these GPUs and MIG instances, and no others."""
        kept = (r for r in self._memory.records if r.remedy > Remedy.APPLICATION or set(r.devices) & set(uuids))
        self._memory = replace(self._memory, records=tuple(kept))

    def _told(self, record: HealthRecord, gpu: HealthReading | None) -> HealthRecord | None:
        """What remains of the record after a look at its GPU."""
        if gpu is None or record.remedy == Remedy.REBOOT:
            return record
        if gpu.ill is not None:
            return replace(record, asked=record.asked or gpu.ill.code in (RECOVERY, RESET_REQUIRED))
        before = (record.mark, self._marks.get(record.gpu, record.mark))
        if record.asked or any(gpu.mark.is_after_reset(mark) for mark in before):
            return None
        # The first look after an event that came before any look gives it its mark.
        return replace(record, mark=gpu.mark) if record.mark == Mark() else record


_GONE = Ill(LOST, f"the GPU is gone: NVML no longer lists it; {Remedy.REBOOT.advice}")
