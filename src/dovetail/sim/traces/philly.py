# SPDX-License-Identifier: Apache-2.0
"""Job lists in the manner of Philly, Microsoft's GPU cluster of 2017: when a job came, how many GPUs, for how long.

Rules
- Columns: `vc` (virtual cluster), `job` (its name within the VC), `submit_s`, `num_gpu`, `duration_s`; seconds, with or
  without decimals. Rows stay in the order of the file; each VC has a clock of its own, which starts with its first job.
- The list knows nothing of pods. On nodes of G GPUs a job of up to G GPUs is a lone pod; a larger one is a gang of pods
  of G GPUs, the last with what remains, and all start together. The VC is the namespace.
- It knows nothing of CPU and memory either: pods ask for none.
Source: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters" (USENIX ATC'19),
https://github.com/msr-fiddle/philly-traces.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path

from dovetail.core.model import GPU, Gang, Pod, Request
from dovetail.sim.traces.errors import TraceError
from dovetail.sim.traces.table import Row, read_rows
from dovetail.sim.workload import Job

_MOST_GPUS = 100_000
_COLUMNS = ("vc", "job", "submit_s", "num_gpu", "duration_s")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def read_jobs(path: Path | Traversable, gpus_per_node: int, vc: str | None = None) -> tuple[Job, ...]:
    """The jobs of one VC, or of all; `gpus_per_node` is at least 1. Raises TraceError, also for an unknown VC."""
    jobs: dict[str, dict[str, Job]] = {}
    for row in read_rows(path, _COLUMNS):
        of_vc = jobs.setdefault(_name(row, "vc"), {})
        name = _name(row, "job")
        if name in of_vc:
            raise row.error("job", f"{name!r} is there twice in this VC: job names must differ")
        of_vc[name] = _job(row, gpus_per_node)
    if vc is not None and vc not in jobs:
        raise TraceError(f"there is no {vc!r}; there are: {', '.join(sorted(jobs))}", str(path), field="vc")
    return tuple(job for found, of_vc in jobs.items() if vc in (None, found) for job in of_vc.values())


def _name(row: Row, field: str) -> str:
    name = row.text(field)
    if not _NAME.fullmatch(name):
        raise row.error(field, f"{name!r} must be of letters, digits, dots, dashes and underscores")
    return name


def _job(row: Row, gpus_per_node: int) -> Job:
    vc, name, at_ms = row.values["vc"], row.values["job"], row.milliseconds("submit_s")
    gpus = row.whole("num_gpu", least=1, most=_MOST_GPUS)
    duration_ms = row.milliseconds("duration_s")
    uid = f"{vc}/{name}"
    if gpus <= gpus_per_node:
        return Job(at_ms, (Pod(uid, vc, name, _request(gpus), created_ms=at_ms),), duration_ms=duration_ms)
    sizes = [min(gpus_per_node, gpus - first) for first in range(0, gpus, gpus_per_node)]
    pods = tuple(
        Pod(f"{uid}/{i}", vc, f"{name}-{i}", _request(size), created_ms=at_ms, gang=uid) for i, size in enumerate(sizes)
    )
    return Job(at_ms, pods, Gang(uid, vc, name, min_count=len(pods), created_ms=at_ms), duration_ms)


@lru_cache(maxsize=1024)
def _request(gpus: int) -> Request:
    return Request(((GPU, gpus),))
