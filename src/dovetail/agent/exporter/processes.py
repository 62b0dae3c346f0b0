# SPDX-License-Identifier: Apache-2.0
"""The pods of the processes that use GPUs: what each pod uses of a shared GPU, and the processes that hold none.

Rules
- NVML lists processes by pid. The kernel's cgroup of a process has the uid of its pod, as the kubelet names the cgroups
  of pods (cgroupfs and systemd drivers, cgroup v1 and v2). The outermost such name counts: below it a pod may name
  cgroups itself.
- The pids are those of the host: without the host's pid namespace NVML lists no process, and nothing is known here.
- A process is that of an `owner` of its device, of an `other_pod` of the node, of a pod that is `gone`, or of `no_pod`.
  Programs of NVIDIA's driver (MPS servers, the persistence daemon, DCGM) outside of pods are `system`.
- A cgroup is read once for a process as long as NVML lists it, and again every minute, as the kernel reuses pids. At
  most `MOST_PROCESSES` of a node are followed.
Source: kubelet, pkg/kubelet/cm (pod container names); MIG and MPS processes as in nvidia-smi.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from dovetail.agent.exporter.owners import Names, NodePod
from dovetail.agent.exporter.reading import Owner, Process

MOST_PROCESSES = 8192
_AGAIN_S = 60.0
_LONGEST_FILE = 65536
# kubepods-burstable-pod1f2e_....slice, or kubepods/burstable/pod1f2e-...; a static pod has 32 digits without dashes.
_POD = re.compile(r"[-/]pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice|/|$)", re.MULTILINE)
# The kernel cuts the name of a program after 15 bytes.
_SYSTEM = frozenset({"nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "Xorg"})

Holder = Literal["owner", "other_pod", "no_pod", "gone", "system"]
HOLDERS: tuple[Holder, ...] = ("owner", "other_pod", "no_pod", "gone", "system")


class PodUse(Struct, frozen=True):
    """What the processes of a pod use of a GPU or MIG instance; None: NVML does not report it."""

    uuid: str
    namespace: str
    pod: str
    pod_uid: str
    memory_bytes: int | None
    sm_percent: int | None


class Foreign(Struct, frozen=True):
    """A process on a device that its pod does not hold, or without a pod. `pod` is "" if it has none, or is gone."""

    uuid: str
    pid: int
    holder: Holder
    memory_bytes: int
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""


class OwnProcess(Struct, frozen=True):
    """A process on a device that its pod holds."""

    uuid: str
    pid: int
    memory_bytes: int
    namespace: str
    pod: str


class ProcessUse(Struct, frozen=True):
    """`uses` by pod and device; `counts` and `memory_bytes` of processes by device and holder; `foreign` processes, and
    those of owners (`own`)."""

    uses: tuple[PodUse, ...] = ()
    counts: Mapping[tuple[str, Holder], int] = {}
    memory_bytes: Mapping[tuple[str, Holder], int] = {}
    foreign: tuple[Foreign, ...] = ()
    own: tuple[OwnProcess, ...] = ()


class Origin(Struct, frozen=True):
    """Where a process runs: the uid of its pod ("" for none), and whether it is a program of NVIDIA's driver."""

    uid: str = ""
    system: bool = False


class Origins:
    """The origins of processes by pid, from the host's procfs at `proc`."""

    def __init__(self, proc: Path = Path("/proc"), clock_s: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock_s = clock_s
        self._known: dict[int, Origin] = {}
        self._read_s = clock_s()

    def of(self, pids: Collection[int]) -> Mapping[int, Origin]:
        """The origins of the processes that exist, of at most MOST_PROCESSES. Blocks: it reads procfs."""
        now_s = self._clock_s()
        if now_s - self._read_s >= _AGAIN_S:
            self._known, self._read_s = {}, now_s
        wanted = sorted({*pids})[:MOST_PROCESSES]
        found = {pid: self._known.get(pid) or self._read(pid) for pid in wanted}
        self._known = {pid: origin for pid, origin in found.items() if origin is not None}
        return self._known

    def _read(self, pid: int) -> Origin | None:
        """None if the process has ended."""
        try:
            with (self._proc / str(pid) / "cgroup").open(errors="replace") as file:
                found = _POD.search(file.read(_LONGEST_FILE))
        except OSError:
            return None
        if found is not None:
            return Origin(_uid(found[1]))
        try:
            name = (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return Origin()
        return Origin(system=name in _SYSTEM)


def _uid(text: str) -> str:
    """A uid as the API writes it; systemd's names have underscores."""
    return text.replace("_", "-")


def process_use(
    processes: Iterable[Process],
    origins: Mapping[int, Origin],
    owners: Mapping[str, Collection[Owner]],
    pods: Mapping[Names, NodePod],
    parents: Mapping[str, str],
) -> ProcessUse:
    """Join the processes with the owners by device. `parents`: by uuid of a MIG instance that of its GPU. A process on
    a GPU that is divided belongs to an owner of one of its instances."""
    by_uid = {uid: pod for pod in pods.values() for uid in pod.uids}
    holding = {(uuid, one.pod_uid) for uuid, each in owners.items() for one in each}
    holding |= {(parents[uuid], uid) for uuid, uid in holding if uuid in parents}
    sums: dict[tuple[str, str], tuple[int | None, int | None]] = {}
    counts: dict[tuple[str, Holder], int] = {}
    memory: dict[tuple[str, Holder], int] = {}
    foreign, own = [], []
    for one in processes:
        origin = origins.get(one.pid)
        if origin is None:
            continue
        pod = by_uid.get(origin.uid) if origin.uid else None
        holder = _holder(one.uuid, origin, pod, holding)
        counts[one.uuid, holder] = counts.get((one.uuid, holder), 0) + 1
        memory[one.uuid, holder] = memory.get((one.uuid, holder), 0) + (one.memory_bytes or 0)
        if pod is not None:
            used, sm = sums.get((one.uuid, pod.uid), (None, None))
            sums[one.uuid, pod.uid] = (_sum(used, one.memory_bytes), _sum(sm, one.sm_percent))
        if holder == "owner" and pod is not None:
            own.append(OwnProcess(one.uuid, one.pid, one.memory_bytes or 0, pod.namespace, pod.name))
        elif holder != "system":
            named = (pod.namespace, pod.name, pod.uid) if pod is not None else ("", "", origin.uid)
            foreign.append(Foreign(one.uuid, one.pid, holder, one.memory_bytes or 0, *named))
    uses = tuple(
        PodUse(uuid, by_uid[uid].namespace, by_uid[uid].name, uid, used, sm) for (uuid, uid), (used, sm) in sums.items()
    )
    return ProcessUse(uses, counts, memory, tuple(foreign), tuple(own))


def _holder(uuid: str, origin: Origin, pod: NodePod | None, holding: Collection[tuple[str, str]]) -> Holder:
    if pod is not None:
        return "owner" if (uuid, pod.uid) in holding else "other_pod"
    if origin.uid:
        return "gone"
    return "system" if origin.system else "no_pod"


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
