# SPDX-License-Identifier: Apache-2.0
"""Job lists in the format of Philly, Microsoft's GPU cluster of 2017: submit time, number of GPUs and run time of jobs.

Rules
- Required columns: `vc` (virtual cluster), `job` (its name, unique in the VC), `submit_s`, `num_gpu`, `duration_s`.
  Times are seconds, with or without decimals. Rows stay in the order of the file. In Philly's own lists each VC has
  its own clock, which starts with its first job.
- Optional columns, whose cells may be empty: `user`; `pods` (number of pods, of equal size); `cpu_milli` and
  `memory_mib` of each pod; `priority`; `family` (jobs with similar run times; default: VC, user and number of GPUs);
  `max_runtime_s` (declared limit); `checkpoint_s` (checkpoint interval); `startup_s` (restart time);
  `communication_percent` (part of a step in which its GPUs communicate).
- Without `pods`, on nodes of G GPUs, a job of up to G GPUs is a single pod; a larger job is a gang of pods of G GPUs,
  the last with the remainder. The pods of a job start together. The VC is the namespace.
- CPU and memory default to 0.
Source: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters" (USENIX ATC'19),
https://github.com/msr-fiddle/philly-traces.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path

from dovetail.core.model import CPU, GPU, MEMORY, Gang, Pod, Request, Work
from dovetail.sim.traces.errors import TraceError
from dovetail.sim.traces.table import TraceRow, read_rows
from dovetail.sim.workload import SimJob

_MOST_GPUS = 100_000
MOST_COMMUNICATION_PERCENT = 99
_MOST_PRIORITY = 2_000_000_000
_MIB = 2**20
_MOST_MIB = 2**40
_COLUMNS = ("vc", "job", "submit_s", "num_gpu", "duration_s")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def read_jobs(path: Path | Traversable, gpus_per_node: int, vcs: Collection[str] = ()) -> tuple[SimJob, ...]:
    """The jobs of these VCs, by default of all; `gpus_per_node` is at least 1. Raises TraceError, also for an unknown
    VC."""
    jobs: dict[str, dict[str, SimJob]] = {}
    for row in read_rows(path, _COLUMNS):
        of_vc = jobs.setdefault(_name(row, "vc"), {})
        name = _name(row, "job")
        if name in of_vc:
            raise row.error("job", f"{name!r} is there twice in this VC: job names must differ")
        of_vc[name] = _job(row, gpus_per_node)
    for vc in vcs:
        if vc not in jobs:
            raise TraceError(f"there is no {vc!r}; there are: {', '.join(sorted(jobs))}", str(path), field="vc")
    return tuple(job for vc, of_vc in jobs.items() if not vcs or vc in vcs for job in of_vc.values())


def _name(row: TraceRow, field: str) -> str:
    name = row.text(field)
    if not _NAME.fullmatch(name):
        raise row.error(field, f"{name!r} must be of letters, digits, dots, dashes and underscores")
    return name


def _job(row: TraceRow, gpus_per_node: int) -> SimJob:
    vc, name, at_ms = row.values["vc"], row.values["job"], row.milliseconds("submit_s")
    gpus = row.whole("num_gpu", least=1, most=_MOST_GPUS)
    duration_ms = row.milliseconds("duration_s")
    cpu_milli, memory_mib = _optional(row, "cpu_milli"), _optional(row, "memory_mib", most=_MOST_MIB)
    user = _name(row, "user") if row.values.get("user") else ""
    work = _work(
        row.values.get("family") or "/".join(part for part in (vc, user, str(gpus)) if part),
        _seconds(row, "max_runtime_s"),
        _seconds(row, "checkpoint_s"),
        _seconds(row, "startup_s"),
    )
    uid, sizes = f"{vc}/{name}", _sizes(row, gpus, gpus_per_node)
    gang = uid if len(sizes) > 1 else ""
    pods = tuple(
        Pod(
            f"{uid}/{i}" if gang else uid,
            vc,
            f"{name}-{i}" if gang else name,
            _request(size, cpu_milli, memory_mib),
            priority=_optional(row, "priority", most=_MOST_PRIORITY),
            created_ms=at_ms,
            gang=gang,
            owner=uid,
            user=user,
            work=work,
        )
        for i, size in enumerate(sizes)
    )
    own = Gang(uid, vc, name, len(pods), created_ms=at_ms) if gang else None
    communication_percent = _optional(row, "communication_percent", most=MOST_COMMUNICATION_PERCENT)
    return SimJob(at_ms, pods, own, duration_ms, communication_percent)


def _sizes(row: TraceRow, gpus: int, gpus_per_node: int) -> list[int]:
    """The number of GPUs of each pod."""
    pods = _optional(row, "pods")
    if not pods:
        return [min(gpus_per_node, gpus - first) for first in range(0, gpus, gpus_per_node)]
    if gpus % pods:
        raise row.error("pods", f"'{pods}' must divide num_gpu, '{gpus}': the pods of a job are equal")
    return [gpus // pods] * pods


def _optional(row: TraceRow, field: str, most: int = 10**18 - 1) -> int:
    return row.whole(field, most=most) if row.values.get(field) else 0


def _seconds(row: TraceRow, field: str) -> int:
    return row.milliseconds(field) if row.values.get(field) else 0


@lru_cache(maxsize=65536)
def _work(family: str, max_runtime_ms: int, checkpoint_interval_ms: int, startup_ms: int) -> Work:
    return Work(family, max_runtime_ms, checkpoint_interval_ms, startup_ms)


@lru_cache(maxsize=65536)
def _request(gpus: int, cpu_milli: int, memory_mib: int) -> Request:
    """The request of a pod, cached: equal pods share one object."""
    amounts = {CPU: cpu_milli, GPU: gpus, MEMORY: memory_mib * _MIB}
    return Request(tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))
