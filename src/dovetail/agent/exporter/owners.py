# SPDX-License-Identifier: Apache-2.0
"""The containers that hold the GPUs and MIG instances of this node, each with its share.

Rules
- The kubelet's PodResources service alone decides which container holds a device. The pod's object adds its uid, queue,
  job and user, and its share of a time-sliced GPU.
- A device id is a uuid as NVIDIA's device plugin and ours write it, with `::n` for replica n; or `nvidiaN`,
  `nvidiaN/giM` and `.../vgpuK` as GKE's plugin writes them.
- The share is 1 of a device that is not shared. Of a time-sliced GPU it is the pod's dovetail.dev/gpu-fraction or
  gpu-memory, else one replica of all. Of an MPS GPU it is one replica of all, which MPS enforces. The holders of one
  claim share its devices equally. Claims with admin access hold nothing.
- While the kubelet restarts (its socket refuses), it allocates nothing: the owners stay for `KEPT_S`. If the kubelet
  does not answer in time, the owners are unknown at once, and it is asked again after `PAUSE_S`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct

from dovetail.agent.apis.serving import SocketError
from dovetail.agent.exporter.reading import Owner, Owners
from dovetail.agent.kubelet.podresources import ContainerDevices, PodDevices, PodResources
from dovetail.agent.machine.host import Host
from dovetail.core.model import WHOLE_GPU_MILLI
from dovetail.core.turns import turn_part
from dovetail.kube.gangs.made_for import object_of
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import options_of
from dovetail.kube.translate.pod_status import is_finished

KEPT_S, PAUSE_S, TIMEOUT_S = 60.0, 15.0, 1.0
_REPLICAS_AGAIN_S = 60.0
_GKE = re.compile(r"nvidia([0-9]+)(?:/gi([0-9]+))?(?:/vgpu([0-9]+))?")
_NVIDIA_CLAIM = re.compile(r"gpu-([0-9]+)")
_MIB = 1 << 20

Names = tuple[str, str]
"""Namespace and name."""
ClaimUuids = Callable[[Names, str], str | None]
"""The uuid of the device of a claim, by the claim's name and the device's; "" for admin access, None if it is not
known."""


class NodePod(Struct, frozen=True):
    """A pod of this node. `uids`: its uid, and that of its manifest for a static pod, under which its processes run.
    `job` is the object that its user made for it, else its gang, else the pod. `milli` and `memory_mib`: its need of
    each GPU, 0 for none; `asleep_mib`: what it needs of that while it sleeps, 0 if it cannot."""

    namespace: str
    name: str
    uids: tuple[str, ...]
    queue: str = ""
    job: str = ""
    user: str = ""
    milli: int = 0
    memory_mib: int = 0
    asleep_mib: int = 0

    @property
    def uid(self) -> str:
        return self.uids[0]


def node_pod(pod: Pod) -> NodePod:
    """The record of a pod's object."""
    meta, options = pod.metadata, options_of(pod.metadata)
    group = pod.spec.scheduling_group
    gang = (group.pod_group_name if group is not None else "") or options.gang
    job = object_of(pod).rpartition("/")[2] or gang or meta.name
    static = meta.annotations.get("kubernetes.io/config.hash", "")
    uids = (meta.uid, static) if static else (meta.uid,)
    asleep_mib = options.gpu_asleep_mib if options.gpu_asleep_mib < options.gpu_memory_mib else 0
    need = (options.gpu_milli, options.gpu_memory_mib, asleep_mib)
    return NodePod(meta.namespace, meta.name, uids, options.queue, job, options.user, *need)


class Devices:
    """The devices of the host by the ids that device plugins use."""

    def __init__(self, host: Host) -> None:
        self.memory_mib = {gpu.uuid: gpu.memory_mib for gpu in host.gpus}
        self._by_minor = {gpu.minor: gpu.uuid for gpu in host.gpus}
        self._instances = {(gpu.minor, one.gi): one.uuid for gpu in host.gpus for one in gpu.mig or ()}
        self._uuids = {*self.memory_mib, *self._instances.values()}

    def uuid(self, id: str) -> tuple[str, str] | None:
        """The uuid and the replica ("" if it is not shared) of a device id; None if the id is not of a GPU here."""
        uuid, _, replica = id.partition("::")
        if uuid in self._uuids:
            return uuid, replica
        if (found := _GKE.fullmatch(id)) is None:
            return None
        minor, gi, vgpu = found.groups()
        by_minor = self._by_minor.get(int(minor)) if gi is None else self._instances.get((int(minor), int(gi)))
        return (by_minor, vgpu or "") if by_minor is not None else None

    def claimed(self, device: str) -> str | None:
        """The uuid of the whole GPU that NVIDIA's DRA driver names so."""
        found = _NVIDIA_CLAIM.fullmatch(device)
        return self._by_minor.get(int(found[1])) if found is not None else None


def owners_of(
    listed: Iterable[PodDevices],
    pods: Mapping[Names, NodePod],
    devices: Devices,
    replicas: Mapping[str, int],
    *,
    by_mps: Collection[str] = (),
    claim_uuid: ClaimUuids = lambda claim, device: None,
) -> dict[str, tuple[Owner, ...]]:
    """The owners by uuid. `replicas`: how many replicas of a device the kubelet has. `by_mps`: the resources that MPS
    shares."""
    found: dict[str, list[Owner]] = {}
    claimed: dict[str, list[Owner]] = {}
    turns: dict[tuple[str, str], dict[str, NodePod]] = {}
    for entry in listed:
        pod = pods.get((entry.namespace, entry.name)) or NodePod(entry.namespace, entry.name, ("",))
        for container in entry.containers:
            for resource, ids in container.devices:
                for uuid, replica in filter(None, map(devices.uuid, ids)):
                    share = 1.0 if not replica else 1.0 / max(replicas.get(uuid, 1), 1)
                    if replica and resource not in by_mps:
                        share = _share(pod, devices.memory_mib.get(uuid, 0), share)
                        if pod.asleep_mib and devices.memory_mib.get(uuid, 0):
                            turns.setdefault((uuid, pod.namespace), {})[pod.name] = pod
                    found.setdefault(uuid, []).append(_owner(pod, container.name, share, replica))
            for uuid in _claimed(container, devices, claim_uuid):
                claimed.setdefault(uuid, []).append(_owner(pod, container.name, 1.0, ""))
    for (uuid, namespace), some in turns.items():
        parts = _in_turn(some, devices.memory_mib[uuid])
        found[uuid] = [
            _shared(one, parts[one.pod], one.vgpu) if one.namespace == namespace and one.pod in parts else one
            for one in found[uuid]
        ]
    for uuid, holders in claimed.items():
        share = 1.0 / len(holders)
        found.setdefault(uuid, []).extend(_shared(one, share, str(n)) for n, one in enumerate(holders))
    return {uuid: tuple(sorted(each, key=_order)) for uuid, each in found.items()}


def _share(pod: NodePod, memory_mib: int, equal: float) -> float:
    """The share that a pod requests of a time-sliced GPU; `equal` if it requests none."""
    if pod.milli:
        return min(pod.milli / WHOLE_GPU_MILLI, 1.0)
    return min(pod.memory_mib / memory_mib, 1.0) if pod.memory_mib and memory_mib else equal


def _in_turn(pods: Mapping[str, NodePod], memory_mib: int) -> dict[str, float]:
    """The shares of pods of a namespace that take turns on a GPU (`core.turns`)."""
    extras = {name: pod.memory_mib - pod.asleep_mib for name, pod in pods.items()}
    every = [*extras.values()]
    return {
        name: min(float(turn_part(pod.asleep_mib, extras[name], every) / memory_mib), 1.0) for name, pod in pods.items()
    }


def _claimed(container: ContainerDevices, devices: Devices, claim_uuid: ClaimUuids) -> frozenset[str]:
    """The uuids that the container has by claims."""
    uuids = set()
    for one in container.claimed:
        uuid = claim_uuid((one.namespace, one.claim), one.device)
        uuids.add(devices.claimed(one.device) if uuid is None else uuid)
    return frozenset(uuid for uuid in uuids if uuid)


def _owner(pod: NodePod, container: str, share: float, replica: str) -> Owner:
    return Owner(pod.namespace, pod.name, pod.uid, container, share, replica, pod.queue, pod.job, pod.user)


def _shared(owner: Owner, share: float, number: str) -> Owner:
    if share == 1.0:
        return owner
    return Owner(
        owner.namespace, owner.pod, owner.pod_uid, owner.container, share, number, owner.queue, owner.job, owner.owner
    )


def _order(owner: Owner) -> tuple[str, str, str, str]:
    return owner.namespace, owner.pod, owner.container, owner.vgpu


class OwnerReader:
    """Reads the owners. `objects` returns the pods of the node by name, `host` the machine as it is known, `by_mps` the
    resources that MPS shares, `claim_uuid` the device of a prepared claim. `error` is why the last list failed."""

    def __init__(
        self,
        kubelet: PodResources,
        objects: Callable[[], Mapping[Names, Pod]],
        host: Callable[[], Host],
        by_mps: Callable[[], Collection[str]],
        claim_uuid: ClaimUuids,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubelet = kubelet
        self._objects = objects
        self._host = host
        self._by_mps = by_mps
        self._claim_uuid = claim_uuid
        self._clock_s = clock_s
        self._known: dict[Names, tuple[Pod, NodePod]] = {}
        self._replicas: dict[str, int] = {}
        self._replicas_s = -_REPLICAS_AGAIN_S
        self._last: Owners | None = None
        self._again_s = 0.0
        self.error = ""

    @property
    def pods(self) -> Mapping[Names, NodePod]:
        """The pods of the node that have not ended."""
        objects = self._objects()
        for key in self._known.keys() - objects.keys():
            del self._known[key]
        for key, pod in objects.items():
            known = self._known.get(key)
            if known is None or known[0] is not pod:
                self._known[key] = (pod, node_pod(pod))
        return {key: record for key, (pod, record) in self._known.items() if not is_finished(pod)}

    async def __call__(self) -> Owners | None:
        """The owners now; None if they are not known."""
        now_s = self._clock_s()
        if now_s < self._again_s:
            return None
        try:
            listed = await self._kubelet.list()
            devices = Devices(self._host())
            await self._count_replicas(listed, devices, now_s)
        except SocketError as error:
            self.error = str(error)
            if not error.refused:
                self._again_s = self._clock_s() + PAUSE_S
                self._last = None
            kept = self._last is not None and now_s - self._last.read_s < KEPT_S
            return self._last if kept else None
        self.error = ""
        by_device = owners_of(
            listed, self.pods, devices, self._replicas, by_mps=self._by_mps(), claim_uuid=self._claim_uuid
        )
        self._last = Owners(by_device, now_s)
        return self._last

    async def _count_replicas(self, listed: Iterable[PodDevices], devices: Devices, now_s: float) -> None:
        """Count the replicas of each device, once a minute and when a pod holds one of a device that is not counted.
        Raises SocketError."""
        ids = (id for pod in listed for one in pod.containers for _, held in one.devices for id in held)
        shared = {found[0] for found in map(devices.uuid, ids) if found is not None and found[1]}
        if not shared or (shared <= self._replicas.keys() and now_s - self._replicas_s < _REPLICAS_AGAIN_S):
            return
        offered = {id for held in (await self._kubelet.allocatable()).values() for id in held}
        self._replicas = Counter(found[0] for found in map(devices.uuid, offered) if found is not None)
        self._replicas_s = now_s
