# SPDX-License-Identifier: Apache-2.0
"""What pods use of the CPUs and the memory of this node, from the cgroups that the kubelet makes for them.

Rules
- cgroup v2: `cpu.stat` has the CPU time of the whole pod, `memory.current` less `inactive_file` of `memory.stat` is its
  working set, as the kubelet counts it. Of a node with cgroup v1, or whose cgroups are not seen, nothing is known.
- A pod is found by its uid below `kubepods`, as the cgroup drivers systemd and cgroupfs name it, also where the kubelet
  has a cgroup of its own around that. Static pods, which run under another uid, are not found.
- A rate is that between two readings, at least `_APART_S` apart; the first one of a pod has none.
Source: kubelet, pkg/kubelet/cm (pod container names); kernel, Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_APART_S = 5.0
_KEPT_S = 300.0
_LONGEST_FILE = 65536
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CPU = re.compile(r"^usage_usec (\d{1,18})$", re.MULTILINE)
_INACTIVE = re.compile(r"^inactive_file (\d{1,18})$", re.MULTILINE)
_MIB = 1 << 20


class HostUsed(Struct, frozen=True):
    """What a pod uses: thousandths of a CPU, and its working set in MiB."""

    cpu_milli: float
    memory_mib: float


class _Read(Struct):
    """What was read of a pod last."""

    folder: Path
    read_s: float
    cpu_us: int
    used: HostUsed | None = None


class HostUse:
    """`cgroups` is where the host's cgroups are mounted."""

    def __init__(self, cgroups: Path) -> None:
        self._cgroups = cgroups
        self._pods: dict[str, _Read] = {}

    def of(self, uid: str, now_s: float) -> HostUsed | None:
        """What the pod uses at a time of the monotonic clock; None if that is not known. Blocks: it reads files."""
        known = self._pods.get(uid)
        if known is not None and now_s - known.read_s < _APART_S:
            return known.used
        folder = known.folder if known is not None else self._find(uid)
        amounts = _amounts(folder) if folder is not None else None
        if folder is None or amounts is None:
            self._pods.pop(uid, None)
            return None
        cpu_us, memory_mib = amounts
        used = None
        if known is not None and cpu_us >= known.cpu_us:
            used = HostUsed((cpu_us - known.cpu_us) / (now_s - known.read_s) / 1000, memory_mib)
        if known is None:
            self._pods = {one: read for one, read in self._pods.items() if now_s - read.read_s < _KEPT_S}
        self._pods[uid] = _Read(folder, now_s, cpu_us, used)
        return used

    def _find(self, uid: str) -> Path | None:
        if _UID.fullmatch(uid) is None:
            return None
        names = f"pod{uid}", f"*-pod{uid.replace('-', '_')}.slice"
        return next((one for folder in self._folders() for name in names for one in folder.glob(name)), None)

    def _folders(self) -> Iterator[Path]:
        """Where pods are: those of the class Guaranteed first."""
        for root in (*self._cgroups.glob("*kubepods*"), *self._cgroups.glob("kubelet*/*kubepods*")):
            yield root
            yield from (one for kind in ("burstable", "besteffort") for one in root.glob(f"*{kind}*"))


def _amounts(folder: Path) -> tuple[int, float] | None:
    """The CPU time in microseconds, and the working set in MiB; None if they cannot be read."""
    try:
        cpu, current, memory = (_text(folder / name) for name in ("cpu.stat", "memory.current", "memory.stat"))
    except OSError:
        return None
    used, inactive = _CPU.search(cpu), _INACTIVE.search(memory)
    if used is None or inactive is None or not current.strip().isdecimal():
        return None
    return int(used[1]), max(0, int(current) - int(inactive[1])) / _MIB


def _text(path: Path) -> str:
    with path.open(errors="replace") as file:
        return file.read(_LONGEST_FILE)
