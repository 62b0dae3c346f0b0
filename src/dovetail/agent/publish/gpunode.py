# SPDX-License-Identifier: Apache-2.0
"""The GPUNode of this node: how its status is built and written.

Rules
- A GPU that cannot be read keeps its index, without a uuid and not healthy: pods were allocated GPUs by index.
- If the instances of a GPU in MIG mode cannot be read, `mig` is left out, and the GPU is unhealthy: an empty `mig`
  would mean no instances.
- The object is owned by the Node and deleted with it. This agent alone applies the whole status (server-side apply);
  the spec belongs to the scheduler and is left as it is.
- An unchanged status is written only every five minutes, for `observedTime`. A condition keeps the time of its last
  transition while its status stays the same.
- That pods are idle is written with whatever is written next, five minutes later at most: it changes often, and it is
  not urgent. That one is not idle any more is written at once. The processes of pods that hold their devices are
  written so, too.
- Of these, and of the processes on devices that their pods do not hold, the status has the MOST_PROCESSES with the
  most memory each, without the names of programs: whoever may read GPUNodes need not see them.
- A monotonic clock decides when to write; the time of day is only written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from dovetail import __version__
from dovetail.agent.exporter.processes import Foreign, OwnProcess
from dovetail.agent.health.states import DeviceHealth, Quarantine
from dovetail.agent.machine.host import Host, Unread
from dovetail.agent.publish.gpu_processes import foreign_processes, holder_processes
from dovetail.core.devices.layout import LEVELS, UNKNOWN
from dovetail.kube.api.client import APPLY_PATCH, Client
from dovetail.kube.api.decoding import Identified
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.resources import GPU_NODES, NODES
from dovetail.kube.api.texts import MESSAGE_BYTES, clipped
from dovetail.kube.objects import topology as kube
from dovetail.kube.objects.topology import (
    PLUGIN_REGISTERED,
    AgentState,
    Condition,
    DeviceDifference,
    GpuDirectObstacle,
    GpuHealth,
    GPUNode,
    GPUNodeStatus,
    GpuSharing,
    GpuStatus,
    KubeletState,
    MigInstance,
    MigState,
    NetworkCard,
    UnreadField,
)

RENEW_S = 300.0
_MANAGER = "dovetail-agent"
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
        _condition("Ready", *first),
        _condition("DriverReady", "NvmlFailed" if driver else "NvmlAnswers", driver),
        _condition("HealthOk", "GpuIll" if health else "NoneIll", health),
        *((plugin,) if plugin is not None else ()),
    )


def plugin_condition(reason: str, message: str) -> Condition:
    """The condition PluginRegistered. `reason` is why the kubelet does not have all devices of the plugin, "" if it
    has. The status is Unknown if another plugin offers the same devices."""
    condition = _condition(PLUGIN_REGISTERED, reason or "Registered", message)
    return msgspec.structs.replace(condition, status="Unknown") if reason == "OtherPlugin" else condition


def _condition(kind: str, reason: str, message: str) -> Condition:
    """A condition that is False if it has a message."""
    return Condition(kind, "False" if message else "True", reason, clipped(message, MESSAGE_BYTES))


def carried(now: GPUNodeStatus, before: GPUNodeStatus) -> GPUNodeStatus:
    """The status of a machine whose GPUs have not answered yet: the GPUs of the status before, all unhealthy."""
    if not before.gpus:
        return now
    why = next(one.message for one in now.conditions if one.status == "False")
    return msgspec.structs.replace(
        now,
        conditions=tuple(_condition("HealthOk", "GpuIll", why) if c.type == "HealthOk" else c for c in now.conditions),
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


class GPUNodeWriter:
    """Writes the GPUNode `node_name`. `clock_s` is a monotonic clock, `now` the time of day."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._name = node_name
        self._clock_s = clock_s
        self._now = now
        self._exists = False
        self._conditions: tuple[Condition, ...] = ()
        self._before = GPUNodeStatus()
        self._sent: GPUNodeStatus | None = None
        self._written: GPUNodeStatus | None = None
        self._written_s = 0.0

    async def write(self, status: GPUNodeStatus) -> None:
        """Write the status, if it is due. Raises ApiError; then the next call writes it."""
        # If the clock has gone back, the write is due.
        if 0 <= self._clock_s() - self._written_s < RENEW_S and _is_not_urgent(status, self._written):
            return
        if not self._exists:
            await self._create()
        try:
            await self._write_status(status)
        except NotFound:
            # The object was deleted, or its Node was created again.
            self._exists = False
            await self._create()
            await self._write_status(status)

    @property
    def idle(self) -> frozenset[str]:
        """The pods (uid) that were written as idle."""
        return frozenset(one.uid for one in self._written.idle_pods) if self._written is not None else frozenset()

    async def before(self) -> GPUNodeStatus:
        """The status that the object had when this process first read it. Raises ApiError."""
        if not self._exists:
            await self._create()
        return self._before

    async def amend(self, condition: Condition) -> bool:
        """Set this condition, and Ready to False, and keep the rest of the status, also of an earlier process. Returns
        False, and writes nothing, if no agent has written a status before. Raises ApiError."""
        # The fence and the readiness are written by their own requests. A status that was cut off while it was sent
        # may have arrived.
        before = self._sent or msgspec.structs.replace(await self.before(), fence="", readiness=None)
        if before.agent is None:
            return False
        if any(_same(condition, one) for one in before.conditions):
            return True
        ready = next((one for one in before.conditions if one.type == "Ready" and one.status == "False"), None)
        ready = ready or _condition("Ready", "PluginNotRegistered", condition.message)
        now = {one.type: one for one in (*before.conditions, ready, condition)}
        try:
            await self._write_status(msgspec.structs.replace(before, conditions=(*now.values(),)))
        except NotFound:
            return False
        return True

    async def _create(self) -> None:
        """Create the object or set its owner, and read its status."""
        node = await self._client.request("GET", NODES.path(name=self._name), decode=Identified)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node.metadata.uid}
        stored = await self._apply({"ownerReferences": [owner]}, {})
        self._exists, self._before = True, stored.status
        self._conditions = self._conditions or stored.status.conditions

    async def _write_status(self, status: GPUNodeStatus) -> None:
        now = self._now().replace(microsecond=0)
        before = {one.type: one for one in self._conditions}
        conditions = tuple(
            msgspec.structs.replace(one, last_transition_time=_since(one, before.get(one.type), now))
            for one in status.conditions
        )
        whole = msgspec.structs.replace(status, observed_time=now, conditions=conditions)
        sent, self._sent = self._sent, status
        try:
            await self._apply({}, {"status": document(whole)}, "status")
        except KubeError:
            self._sent = sent
            raise
        self._conditions = conditions
        self._written, self._written_s = status, self._clock_s()

    async def _apply(self, metadata: dict[str, Any], rest: dict[str, Any], subresource: str = "") -> GPUNode:
        return await self._client.request(
            "PATCH",
            GPU_NODES.path(name=self._name, subresource=subresource),
            gpu_node(self._name, metadata, rest),
            params={"fieldManager": _MANAGER, "force": "true"},
            content_type=APPLY_PATCH,
            decode=GPUNode,
        )


def _is_not_urgent(status: GPUNodeStatus, written: GPUNodeStatus | None) -> bool:
    """Whether the status is the one that was written but for processes of holders, and pods that are idle by now. One
    that is not idle any more must not be taken for idle."""
    if written is None:
        return False
    same = msgspec.structs.replace(
        status, idle_pods=written.idle_pods, holder_processes=written.holder_processes
    )  # fmt: skip
    if same != written:
        return False
    return {one.uid for one in written.idle_pods} <= {one.uid for one in status.idle_pods}


def _same(one: Condition, other: Condition) -> bool:
    """Whether two conditions are equal but for their times."""
    return msgspec.structs.replace(other, last_transition_time=one.last_transition_time) == one


def _since(now: Condition, before: Condition | None, moment: datetime) -> datetime:
    kept = before.last_transition_time if before is not None and before.status == now.status else None
    return kept or moment


def gpu_node(name: str, metadata: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a GPUNode of this name; `rest` are its fields besides the metadata."""
    head = {"apiVersion": GPU_NODES.api_version, "kind": GPU_NODES.kind}
    return {**head, "metadata": {"name": name, **metadata}, **rest}


def document(status: GPUNodeStatus) -> dict[str, Any]:
    """The status as JSON; unknown fields are left out."""
    found: dict[str, Any] = _without_unknown(msgspec.to_builtins(status))
    return found


def _without_unknown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unknown(one) for key, one in value.items() if one is not None and one != ""}
    if isinstance(value, list | tuple):
        return [_without_unknown(one) for one in value]
    return value
