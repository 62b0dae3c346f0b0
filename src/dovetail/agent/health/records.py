# SPDX-License-Identifier: Apache-2.0
"""A remembered event of a GPU, and the phases that it passes through until its device is offered again.

Rules: `TRANSITIONS` is the whole life of a record. A phase follows from the record; no copy of it is kept. The device
of a record is not offered before the record has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from dovetail.agent.health.xids import Action


class Phase(Enum):
    OPEN = "open"
    """The remedy has not been applied."""
    PROBATION = "probation"
    """The remedy was applied; the checks, the clean period and the exit test are not over."""
    ENDED = "ended"


class Happening(Enum):
    ERROR = "error"
    """The event occurred, at first or again."""
    REMEDIED = "remedied"
    """There is evidence that the remedy of a quarantine was applied."""
    RELAPSED = "relapsed"
    """The driver requests a recovery after the remedy."""
    FAILED = "failed"
    """A check or the exit test failed, or another event occurred: the clean period starts again."""
    PASSED = "passed"
    """The checks, the clean period and the exit test are over."""
    RESTARTED = "restarted"
    """No pod holds the device any more, or it was reset, and the action was restart-application."""
    DROPPED = "dropped"
    """Its check was switched off."""


TRANSITIONS: Mapping[Phase | None, Mapping[Happening, Phase]] = {
    None: {Happening.ERROR: Phase.OPEN},
    Phase.OPEN: {
        Happening.ERROR: Phase.OPEN,
        Happening.REMEDIED: Phase.PROBATION,
        Happening.RESTARTED: Phase.ENDED,
        Happening.DROPPED: Phase.ENDED,
    },
    Phase.PROBATION: {
        Happening.ERROR: Phase.OPEN,
        Happening.RELAPSED: Phase.OPEN,
        Happening.FAILED: Phase.PROBATION,
        Happening.PASSED: Phase.ENDED,
        Happening.DROPPED: Phase.ENDED,
    },
}
"""The next phase by phase (None: there is no record yet) and happening."""


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


class HealthRecord(Struct, frozen=True):
    """`hit` is the uuid of the affected GPU or MIG instance, `gpu` that of its GPU; `devices` are the affected uuids
    that pods may hold. `asked`: the driver has requested a recovery since. `clean_since_ms`: since when no error has
    occurred after the remedy, 0 before the remedy. `tested`: the exit test has passed since then; `failure` is the last
    line of the one that failed last. Times are Unix time in ms."""

    hit: str
    gpu: str
    code: str
    message: str
    since_ms: int
    action: Action = field(name="remedy")
    devices: tuple[str, ...]
    mark: Mark = Mark()
    asked: bool = False
    clean_since_ms: int = 0
    tested: bool = False
    failure: str = ""

    @property
    def phase(self) -> Phase:
        return Phase.PROBATION if self.clean_since_ms else Phase.OPEN

    @property
    def quarantines(self) -> bool:
        """Whether the device has to pass the exit test."""
        return self.action >= Action.QUARANTINE_GPU


class HealthMemory(Struct, frozen=True):
    """The state that survives a restart of the agent: `known` are the GPUs seen since boot `boot`."""

    boot: str = ""
    known: tuple[str, ...] = ()
    records: tuple[HealthRecord, ...] = ()
