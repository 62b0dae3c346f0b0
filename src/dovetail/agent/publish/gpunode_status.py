# SPDX-License-Identifier: Apache-2.0
"""The status of a GPUNode, built from what the agent has found on its machine.

Rules
- A GPU that cannot be read keeps its index, without a uuid and not healthy: pods were allocated GPUs by index.
- If the instances of a GPU in MIG mode cannot be read, `mig` is left out, and the GPU is unhealthy: an empty `mig`
  would mean no instances.
- Of the processes of pods that hold their devices, and of those on devices that their pods do not hold, the status has
  the MOST_PROCESSES with the most memory each, without the names of programs: whoever may read GPUNodes need not see
  them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from dovetail import __version__
from dovetail.agent.exporter.processes import Foreign, OwnProcess
from dovetail.agent.health.states import DeviceHealth, Quarantine
from dovetail.agent.machine.host import Host, Unread
from dovetail.agent.publish.gpu_processes import foreign_processes, holder_processes
from dovetail.core.devices.layout import LEVELS, UNKNOWN
from dovetail.kube.api.texts import MESSAGE_BYTES, clipped
from dovetail.kube.objects import topology as kube
from dovetail.kube.objects.topology import (
    PLUGIN_REGISTERED,
    AgentState,
    Condition,
    DeviceDifference,
    GpuDirectObstacle,
    GpuHealth,
    GPUNodeStatus,
    GpuSharing,
    GpuStatus,
    KubeletState,
    MigInstance,
    MigState,
    NetworkCard,
    UnreadField,
)

_MOST_GPUS, _MOST_UNREAD, _MOST_DIFFERENCES = 64, 256, 256
_MOST_OBSTACLES = 64
_MOST_IDLE = 64
_LONGEST_REASON, _LONGEST_VALUE = 1024, 256
_NONE_UNHEALTHY: Mapping[str, str] = {}
_LONGEST_CODE = 64


class NodeHealth(Struct, frozen=True):
    """The health of the GPUs by uuid, the findings about the node, its quarantine if it needs one, and the processes on
    devices that their pods do not hold; and the pods (uid) that use none of their GPUs,
    with the time since which they do not; and `own`, the processes on devices that their pods hold."""

    gpus: Mapping[str, DeviceHealth] = {}
    findings: tuple[str, ...] = ()
    quarantine: Quarantine | None = None
    foreign: tuple[Foreign, ...] = ()
    idle: Mapping[str, int] = {}
    own: tuple[OwnProcess, ...] = ()


class PluginState(Struct, frozen=True):
    """The device plugin of a node: its condition PluginRegistered (None if no plugin runs), how it shares GPUs, and the
    pods that have other devices than the chosen ones, the latest last."""

    registered: Condition | None = None
    sharing: GpuSharing | None = None
    differences: tuple[DeviceDifference, ...] = ()


def status_of(
    host: Host,
    *,
    kubelet: KubeletState | None = None,
    unread: Iterable[Unread] = (),
    unhealthy: Mapping[str, str] = _NONE_UNHEALTHY,
    agent: AgentState = AgentState(__version__),
    plugin: PluginState = PluginState(),
    mig: MigState | None = None,
    health: NodeHealth = NodeHealth(),  # noqa: B008 - frozen
) -> GPUNodeStatus:
    """The status of the GPUNode, without times. `unread` are fields besides those of the host. `unhealthy` has the
    reasons by the uuid of a GPU or MIG instance. Without `health` the states of the GPUs are left out."""
    missed = [*host.unread, *unread]
    lost = _lost(missed)
    count = max([gpu.index for gpu in host.gpus] + list(lost), default=-1) + 1
    place = {gpu.index: i for i, gpu in enumerate(host.gpus)}
    order = [place.get(index) for index in range(count)]
    uuids = sorted(uuid for gpu in host.gpus for uuid in (gpu.uuid, *(one.uuid for one in gpu.mig or ())))
    faults = {uuid: unhealthy[uuid] for uuid in uuids if uuid in unhealthy}
    return GPUNodeStatus(
        conditions=_conditions(
            missed, lost, {**faults, "the node": "; ".join(health.findings)}, kubelet, plugin.registered
        ),
        unread=_fields(missed),
        driver_version=host.driver,
        nvml_version=host.nvml,
        cuda_version=".".join(map(str, host.cuda or ())),
        machine=host.machine,
        gpus=tuple(
            _unread(index, lost.get(index, ""), health) if i is None else _gpu(host, i, unhealthy, health)
            for index, i in enumerate(order)
        ),
        quarantine=None
        if health.quarantine is None
        else kube.NodeQuarantine(clipped(health.quarantine.reason, _LONGEST_REASON), _time(health.quarantine.since_ms)),
        pcie_levels=tuple(
            tuple("X" if a == b else _word(_of(host.pcie, i, j, UNKNOWN)) for b, j in enumerate(order))
            for a, i in enumerate(order)
        ),
        nvlinks=() if host.nvlinks is None else tuple(tuple(_of(host.nvlinks, i, j, 0) for j in order) for i in order),
        nics=None
        if host.nics is None
        else tuple(
            NetworkCard(
                name=nic.name,
                numa_node=nic.numa,
                speed_mbps=nic.speed_mbps,
                rdma=nic.rdma,
                levels=tuple(_word(UNKNOWN if i is None else nic.levels[i]) for i in order),
            )
            for nic in host.nics[:_MOST_GPUS]
        ),
        clique=host.clique if not lost else "",
        gpu_direct=None
        if host.gpu_direct is None
        else tuple(
            GpuDirectObstacle(one.code, one.file, clipped(one.value, _LONGEST_VALUE))
            for one in host.gpu_direct[:_MOST_OBSTACLES]
        ),
        sharing=plugin.sharing,
        kubelet=kubelet,
        agent=agent,
        differences=tuple(plugin.differences[-_MOST_DIFFERENCES:]),
        foreign_processes=foreign_processes(host, health.foreign),
        holder_processes=holder_processes(host, health.own),
        idle_pods=tuple(
            kube.PodIdleSince(uid, _time(since_ms)) for uid, since_ms in list(health.idle.items())[:_MOST_IDLE]
        ),
        mig=mig,
    )


def _unread(index: int, why: str, health: NodeHealth) -> GpuStatus:
    """A GPU that could not be read at all."""
    shown = GpuHealth("quarantined", "unread", clipped(why, _LONGEST_REASON)) if health.gpus else None
    return GpuStatus(index=index, healthy=False, health=shown)


def _time(unix_ms: int) -> datetime | None:
    return datetime.fromtimestamp(unix_ms // 1000, UTC) if unix_ms else None


def _health(one: DeviceHealth) -> GpuHealth:
    reason, then = clipped(one.reason, _LONGEST_REASON), clipped(one.next, _LONGEST_REASON)
    return GpuHealth(one.state, one.code[:_LONGEST_CODE], reason, _time(one.since_ms), then)


def _gpu(host: Host, i: int, unhealthy: Mapping[str, str], health: NodeHealth) -> GpuStatus:
    gpu = host.gpus[i]
    return GpuStatus(
        index=gpu.index,
        uuid=gpu.uuid,
        product=gpu.product,
        memory_mib=gpu.memory_mib,
        numa_node=gpu.numa,
        pci_bus_id=gpu.pci_bus_id,
        healthy=gpu.uuid not in unhealthy,
        mig=None
        if gpu.mig is None or gpu.uuid in host.hidden
        else tuple(MigInstance(one.profile, one.start) for one in gpu.mig),
        health=_health(health.gpus[gpu.uuid]) if gpu.uuid in health.gpus else None,
    )


def _lost(missed: Iterable[Unread]) -> dict[int, str]:
    """By index the reasons of the GPUs that could not be read at all."""
    why = {one.what: one.why for one in missed}
    return {index: why[what] for index in range(_MOST_GPUS) if (what := f"gpus[{index}]") in why}


def _of(matrix: Sequence[Sequence[int]], i: int | None, j: int | None, unknown: int) -> int:
    return unknown if i is None or j is None else matrix[i][j]


def _word(level: int) -> str:
    return "UNKNOWN" if level == UNKNOWN else LEVELS[level]


def _fields(missed: Sequence[Unread]) -> tuple[UnreadField, ...]:
    fields = [UnreadField(one.what[:128], clipped(one.why, _LONGEST_REASON)) for one in missed]
    if len(fields) > _MOST_UNREAD:
        more = len(fields) - _MOST_UNREAD + 1
        fields[_MOST_UNREAD - 1 :] = [UnreadField("unread", f"{more} more are not listed: run dovetail agent inspect")]
    return tuple(fields)


def _conditions(
    missed: Iterable[Unread],
    lost: Mapping[int, str],
    unhealthy: Mapping[str, str],
    kubelet: KubeletState | None,
    plugin: Condition | None,
) -> tuple[Condition, ...]:
    driver = next((one.why for one in missed if one.what == "gpus"), "")
    gone = "; ".join(f"GPU {index}: {why}" for index, why in lost.items())
    health = "; ".join([*([gone] if gone else []), *(f"{uuid}: {why}" for uuid, why in unhealthy.items() if why)])
    why = next((f": {one.why}" for one in missed if one.what == "kubelet"), "")
    without = "" if kubelet is not None else f"the state of the kubelet is not known{why}"
    hindrances = (
        ("DriverNotReady", driver),
        ("PluginNotRegistered", plugin.message if plugin is not None else ""),
        ("GpuUnread", gone),
        ("KubeletUnread", without),
    )
    first = next((each for each in hindrances if each[1]), ("AllRead", ""))
    return (
        agent_condition("Ready", *first),
        agent_condition("DriverReady", "NvmlFailed" if driver else "NvmlAnswers", driver),
        agent_condition("HealthOk", "GpuIll" if health else "NoneIll", health),
        *((plugin,) if plugin is not None else ()),
    )


def plugin_condition(reason: str, message: str) -> Condition:
    """The condition PluginRegistered. `reason` is why the kubelet does not have all devices of the plugin, "" if it
    has. The status is Unknown if another plugin offers the same devices."""
    condition = agent_condition(PLUGIN_REGISTERED, reason or "Registered", message)
    return msgspec.structs.replace(condition, status="Unknown") if reason == "OtherPlugin" else condition


def agent_condition(kind: str, reason: str, message: str) -> Condition:
    """A condition that is False if it has a message."""
    return Condition(kind, "False" if message else "True", reason, clipped(message, MESSAGE_BYTES))


def carried(now: GPUNodeStatus, before: GPUNodeStatus) -> GPUNodeStatus:
    """The status of a machine whose GPUs have not answered yet: the GPUs of the status before, all unhealthy."""
    if not before.gpus:
        return now
    why = next(one.message for one in now.conditions if one.status == "False")
    unhealthy = agent_condition("HealthOk", "GpuIll", why)
    return msgspec.structs.replace(
        now,
        conditions=tuple(unhealthy if one.type == "HealthOk" else one for one in now.conditions),
        machine=now.machine or before.machine,
        gpus=tuple(msgspec.structs.replace(gpu, healthy=False, health=_silent(gpu, why)) for gpu in before.gpus),
        quarantine=before.quarantine,
        pcie_levels=before.pcie_levels,
        nvlinks=before.nvlinks,
        rates=before.rates,
        nics=before.nics,
        clique=before.clique,
    )


def _silent(gpu: GpuStatus, why: str) -> GpuHealth:
    """The health of a GPU that does not answer. A quarantine of before keeps its reason and time."""
    kept = gpu.health is not None and gpu.health.state in ("quarantined", "draining")
    shown = clipped(why, _LONGEST_REASON)
    return gpu.health if kept and gpu.health is not None else GpuHealth("quarantined", "nvml", shown)
