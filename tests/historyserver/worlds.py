# SPDX-License-Identifier: Apache-2.0
"""Random histories in which every name of another namespace than OWN has MARKER."""

from __future__ import annotations

from pathlib import Path
from random import Random

from dovetail.history.records import HOUR_MS, USE_BINS, Gap, GpuHold, GpuSpan, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite.store import SqliteStore

OWN, MARKER = "team-a", "zmarkz"
START = 1_793_491_200_000
HOURS = 60
MODELS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Z9")
TYPES = (("p5.48xlarge", "us-east-1"), ("p4d.24xlarge", "us-east-1"), ("", ""))
"""The last one has no price."""


def write(path: Path, chance: Random) -> None:
    """Write it. Pods of all namespaces share nodes; messages of own pods name others."""
    spans, holds, pods, use = [], [], [], []
    number = 0
    for node in range(3):
        for index in range(4):
            gpu, model = f"GPU-{node}-{index}", MODELS[node]
            spans.append(GpuSpan(gpu, f"node-{node}", index, 4, model, "healthy", START, 0, *TYPES[node]))
            hour = chance.randrange(6)
            while hour < HOURS - 4:
                end = min(HOURS, hour + chance.randrange(2, 20))
                pod = _pod(number, chance, f"node-{node}", START + hour * HOUR_MS, START + end * HOUR_MS)
                number += 1
                pods.append(pod)
                holds.append(GpuHold(pod.uid, gpu, 1000, "whole", pod.bound_ms, pod.ended_ms))
                for at in range(hour, end) if chance.random() < 0.8 else ():
                    use.append(_use(gpu, pod.uid, START + at * HOUR_MS, chance.choice((0, 300, 900))))
                hour = end + chance.randrange(3)
    store = SqliteStore(path)
    gaps = [Gap(START + HOUR_MS, START + 2 * HOUR_MS, "the collector did not run")]
    store.write(HistoryBatch(START + HOURS * HOUR_MS, spans, holds, pods, use, gaps))
    # What else the collector does from time to time.
    while store.retain(START + (HOURS + 24) * HOUR_MS):
        pass
    store.close()


def _pod(number: int, chance: Random, node: str, start_ms: int, end_ms: int) -> PodRecord:
    own = chance.random() < 0.4
    mark = "" if own else MARKER
    job = f"{mark}job-{chance.randrange(4)}"
    ended = end_ms < START + HOURS * HOUR_MS
    outcome = chance.choice(("Completed", "Failed", "Preempted", "Evicted", "Lost")) if ended else ""
    victim_of = f"preempted for {MARKER}-b/{MARKER}job-1 of nvidia.com/gpu; see pods/{OWN}/{job}-0"
    return PodRecord(
        f"uid-{number}", OWN if own else f"{MARKER}-{chance.choice('bc')}", f"{job}-{number}", job, "Job",
        f"{mark}user-{chance.randrange(2)}", f"{mark}queue-{chance.randrange(2)}", "dovetail",
        labels={"app": f"{mark}app-{chance.randrange(2)}"}, gpus="1 GPU", gpu_milli=1000, node=node,
        submitted_ms=start_ms - 60_000, bound_ms=start_ms, started_ms=start_ms + 30_000,
        ended_ms=end_ms if ended else 0, outcome=outcome, code="Preempted" if outcome == "Preempted" else "",
        message=victim_of if outcome in ("Preempted", "Failed") else "",
    )  # fmt: skip


def _use(gpu: str, uid: str, hour_ms: int, milli: int) -> UseHour:
    bins = [0] * USE_BINS
    bins[milli // 50] = HOUR_MS
    idle_ms, used_until_ms = (HOUR_MS, 0) if not milli else (0, hour_ms + HOUR_MS - 1)
    activity = dict.fromkeys(("sm", "tensor", "dram", "engine", "utilization"), milli * HOUR_MS)
    return UseHour(gpu, uid, hour_ms, HOUR_MS, milli * HOUR_MS, idle_ms, 500, tuple(bins), activity, used_until_ms)
