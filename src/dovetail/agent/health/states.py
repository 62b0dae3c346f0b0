# SPDX-License-Identifier: Apache-2.0
"""The state of a device: healthy, degraded, quarantined or draining. Pure.

Rules
- quarantined: not offered. draining: the same, while pods still hold it. degraded: offered, with a finding that is only
  to be noted, or with a MIG instance that is not offered.
- Of several faults the one with the most severe action is named, of these the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from dovetail.agent.health.health import Finding, Unhealthy
from dovetail.agent.health.xids import Action
from dovetail.agent.machine.host import Host


class DeviceState(StrEnum):
    """Mildest first."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


class DeviceHealth(Struct, frozen=True):
    """`since_ms` is Unix time in ms, 0 where it is not known; `next` is what happens next, or has to."""

    state: DeviceState = DeviceState.HEALTHY
    code: str = ""
    reason: str = ""
    since_ms: int = 0
    next: str = ""

    @property
    def closed(self) -> bool:
        """Whether it is not offered."""
        return self.state in (DeviceState.QUARANTINED, DeviceState.DRAINING)


class Quarantine(Struct, frozen=True):
    """Why a node has to be rebooted or repaired, and since when: Unix time in ms, 0 where it is not known."""

    reason: str
    since_ms: int


def health_of(
    uuid: str,
    instances: Collection[str],
    unhealthy: Iterable[Unhealthy],
    findings: Iterable[Finding],
    held: Collection[str],
) -> DeviceHealth:
    """The health of a GPU with its MIG instances, or of a MIG instance (without `instances`)."""
    unhealthy = [*unhealthy]
    if (fault := _worst(one for one in unhealthy if one.uuid == uuid)) is not None:
        drains = uuid in held or any(one in held for one in instances)
        state = DeviceState.DRAINING if drains else DeviceState.QUARANTINED
        return DeviceHealth(state, fault.code, fault.message, fault.since_ms, fault.next)
    if (fault := _worst(one for one in unhealthy if one.uuid in instances)) is not None:
        reason = f"{fault.uuid}: {fault.message}"
        return DeviceHealth(DeviceState.DEGRADED, fault.code, reason, fault.since_ms, fault.next)
    noted = sorted((one for one in findings if one.uuid == uuid), key=lambda one: (one.since_ms, one.code))
    if noted:
        return DeviceHealth(DeviceState.DEGRADED, noted[0].code, noted[0].message, noted[0].since_ms, _NOTED)
    return DeviceHealth()


def device_health(
    host: Host, unhealthy: Sequence[Unhealthy], findings: Sequence[Finding], held: Collection[str]
) -> dict[str, DeviceHealth]:
    """The health of the GPUs and of their MIG instances by uuid."""
    found = {}
    for gpu in host.gpus:
        instances = [one.uuid for one in gpu.mig or ()]
        found[gpu.uuid] = health_of(gpu.uuid, instances, unhealthy, findings, held)
        for uuid in instances:
            found[uuid] = found[gpu.uuid]
            if not found[gpu.uuid].closed:
                found[uuid] = health_of(uuid, (), unhealthy, findings, held)
    return found


def node_quarantine(unhealthy: Iterable[Unhealthy]) -> Quarantine | None:
    """The quarantine of the node, if a fault requires it."""
    fault = _worst(one for one in unhealthy if one.action is Action.QUARANTINE_NODE)
    return Quarantine(f"{fault.uuid}: {fault.code}: {fault.message}", fault.since_ms) if fault is not None else None


def _worst(faults: Iterable[Unhealthy]) -> Unhealthy | None:
    return min(faults, key=lambda one: (-one.action, one.since_ms, one.code), default=None)


_NOTED = "nothing has to be done at once; it is still offered"
