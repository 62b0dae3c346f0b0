# SPDX-License-Identifier: Apache-2.0
"""CPUs and memory of the node that a job requests and does not use: they keep other pods from the GPUs of the node."""

from __future__ import annotations

from dovetail.advice.sizing import thresholds as limits
from dovetail.advice.sizing.rule import SizeChange, SizeProposal
from dovetail.advice.sizing.seen import JobSeen, gib, with_margin

_GIB_MIB = 1024
_WAITS = ("io-bound", "small-kernels")
"""Classes in which a job may need more CPUs than it used."""


def spare(seen: JobSeen) -> SizeProposal | None:
    latest, gpus, used = seen.use.latest, seen.use.most_per_pod, seen.total
    if not seen.host_known or any(seen.part_of_class(name) >= limits.CLASS_TIME for name in _WAITS):
        return None
    cpu_milli = _enough(latest.cpu_milli, used.host_cpu_milli * gpus, limits.LEAST_CPU_MILLI * gpus, 1000)
    memory_mib = _enough(latest.memory_mib, used.host_memory_mib * gpus, limits.LEAST_MEMORY_MIB * gpus, _GIB_MIB)
    asked, takes, then = list[str](), list[str](), list[str]()
    if cpu_milli:
        asked.append(f"{latest.cpu_milli / 1000:g} CPUs")
        takes.append(f"{used.host_cpu_milli * gpus / 1000:.2g} CPUs on average in the busiest hour")
        then.append(f"{cpu_milli // 1000} CPUs")
    if memory_mib:
        asked.append(gib(latest.memory_mib))
        takes.append(f"at most {gib(used.host_memory_mib * gpus)}")
        then.append(f"{memory_mib // _GIB_MIB} GiB")
    if not then:
        return None
    return SizeProposal(
        f"a pod with {gpus} {'GPU' if gpus == 1 else 'GPUs'} requests {' and '.join(asked)} of its node, and used "
        f"{' and '.join(takes)}",
        f"request {' and '.join(then)} for each pod",
        gain="what it does not use of its node: for pods that use the other GPUs there",
        change=SizeChange("host", cpu_milli, value=f"{memory_mib // _GIB_MIB}Gi" if memory_mib else ""),
    )


def _enough(asked: int, used: int, least: int, unit: int) -> int:
    """What is enough, in whole units, if that is at most `SPARE_HOST` of what is requested; else 0."""
    if not used:
        return 0
    enough = -(-max(least, with_margin(used)) // unit) * unit
    return enough if enough * 1000 <= asked * limits.SPARE_HOST else 0
