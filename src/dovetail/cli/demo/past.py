# SPDX-License-Identifier: Apache-2.0
"""The past of the cluster of `dovetail demo --dashboard`: ten simulated days of two teams, with an idle notebook, an
unhealthy GPU, and jobs that hold more than they use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from dovetail.history.records import HOUR_MS, USE_BINS, GpuHold, GpuSpan, HistoryBatch, Outcome, PodRecord, UseHour
from dovetail.history.sqlite.store import SqliteStore

HOURS = 240
UNHEALTHY_HOURS = 7
"""For so long GPU 5 of gpu-node-4 is unhealthy."""
_H100, _GPUS = "NVIDIA-H100-80GB-HBM3", 8
_NODES = ("gpu-node-1", "gpu-node-2", "gpu-node-3", "gpu-node-4")
_MINUTE_MS = 60_000


class _Run(Struct, frozen=True):
    """Pods of a job, one on each of the nodes, with the GPUs from `first` on. They run from `begun` hours ago until
    `ended` hours ago (0: still), and use their GPUs by `milli` thousandths for the first `busy` hours, then not."""

    namespace: str
    job: str
    user: str
    kind: str
    nodes: tuple[str, ...]
    first: int
    gpus: int
    begun: int
    ended: int
    milli: int
    busy: int = HOURS
    outcome: Outcome = "Completed"
    code: str = ""
    message: str = ""
    waited_minutes: int = 4
    memory_mib: int = 60_000


_RUNS = (
    _Run("research", "pretrain-7b", "ana", "Job", ("gpu-node-3", "gpu-node-4"), 0, 8, 238, 120, 870, waited_minutes=95),
    _Run("research", "finetune", "ana", "Job", ("gpu-node-3",), 0, 8, 110, 60, 640, outcome="Preempted",
         code="Preempted", message="preempted for product/serve, which is due its fair share", waited_minutes=30),
    _Run("research", "finetune", "ana", "Job", ("gpu-node-3",), 0, 8, 56, 1, 660, waited_minutes=240),
    _Run("research", "sweep", "ben", "Job", ("gpu-node-1",), 0, 4, 236, 20, 110, memory_mib=9_000),
    _Run("research", "eval-suite", "ben", "Job", ("gpu-node-4",), 0, 4, 100, 40, 720, outcome="Failed",
         code="OOMKilled", message="the container was killed as it used more memory than its limit"),
    _Run("product", "serve", "cleo", "Deployment", ("gpu-node-2",), 0, 2, 240, 1, 420),
    _Run("product", "embed", "cleo", "CronJob", ("gpu-node-2",), 2, 4, 220, 150, 780),
    _Run("product", "embed", "cleo", "CronJob", ("gpu-node-2",), 2, 4, 140, 70, 800),
    _Run("product", "reserve", "cleo", "Deployment", ("gpu-node-4",), 6, 2, 200, 0, 0),
    _Run("default", "notebook", "dana", "Notebook", ("gpu-node-1",), 7, 1, 31, 0, 350, busy=6),
)  # fmt: skip


def write_past(path: Path, now_ms: int) -> None:
    """Write it as a history that ends with the last whole hour. Raises StoreError."""
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - HOURS * HOUR_MS
    holds, pods, use = list[GpuHold](), list[PodRecord](), list[UseHour]()
    for number, run in enumerate(_RUNS):
        for at, node in enumerate(run.nodes):
            pod = _pod(run, f"{number}-{at}", node, end_ms)
            pods.append(pod)
            for index in range(run.first, run.first + run.gpus):
                gpu = gpu_name(node, index)
                holds.append(GpuHold(pod.uid, gpu, 1000, "whole", pod.bound_ms, pod.ended_ms))
                use += _hours(run, pod, gpu, end_ms)
    with closing(SqliteStore(path)) as store:
        store.write(HistoryBatch(end_ms, list(_spans(start_ms, end_ms)), holds, pods, use))


def gpu_name(node: str, index: int) -> str:
    """The UUID of a GPU of the demo."""
    return f"GPU-{node}-{index}"


def _spans(start_ms: int, end_ms: int) -> Iterator[GpuSpan]:
    fallen_ms = end_ms - UNHEALTHY_HOURS * HOUR_MS
    for node in _NODES:
        for index in range(_GPUS):
            gpu, kind = gpu_name(node, index), (node, index, _GPUS, _H100)
            fallen = (node, index) == ("gpu-node-4", 5)
            place = ("p5.48xlarge", "us-east-1")
            yield GpuSpan(gpu, *kind, "healthy", start_ms, fallen_ms if fallen else 0, *place)
            if fallen:
                yield GpuSpan(gpu, *kind, "unhealthy", fallen_ms, 0, *place)


def _pod(run: _Run, name: str, node: str, end_ms: int) -> PodRecord:
    bound_ms = end_ms - run.begun * HOUR_MS
    return PodRecord(
        f"uid-{run.job}-{name}", run.namespace, f"{run.job}-{name}", run.job, run.kind, run.user,
        run.namespace if run.namespace != "default" else "", "dovetail", gpus=f"{run.gpus} GPUs",
        gpu_milli=1000 * run.gpus, node=node, submitted_ms=bound_ms - run.waited_minutes * _MINUTE_MS,
        bound_ms=bound_ms, started_ms=bound_ms + 2 * _MINUTE_MS,
        ended_ms=end_ms - run.ended * HOUR_MS if run.ended else 0,
        outcome=run.outcome if run.ended else "", code=run.code, message=run.message,
    )  # fmt: skip


def _hours(run: _Run, pod: PodRecord, gpu: str, end_ms: int) -> Iterator[UseHour]:
    for ago in range(run.begun, run.ended, -1):
        hour_ms = end_ms - ago * HOUR_MS
        # A little more in one hour than in the next, by a fixed pattern.
        milli = run.milli + (ago * 37 % 11 - 5) * 8 if run.milli and run.begun - ago < run.busy else 0
        bins = [0] * USE_BINS
        bins[milli * USE_BINS // 1001] = HOUR_MS
        activity = {"sm": milli, "tensor": milli * 3 // 4, "dram": milli // 2, "engine": milli, "utilization": milli}
        yield UseHour(
            gpu, pod.uid, hour_ms, HOUR_MS, milli * HOUR_MS, 0 if milli else HOUR_MS, run.memory_mib if milli else 500,
            tuple(bins), {name: part * HOUR_MS for name, part in activity.items()},
            hour_ms + HOUR_MS - 1 if milli else 0,
        )  # fmt: skip
