# SPDX-License-Identifier: Apache-2.0
"""A file with the history of 20 days: nodes that are too many, nodes that are too few, and one that is in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dovetail.history.records import HOUR_MS, GpuHold, GpuSpan, HistoryBatch, PodRecord
from dovetail.history.sqlite.store import SqliteStore

START = 1_793_491_200_000
"""The start of November 2026."""
DAYS = 20
KINDS = {
    "h": ("NVIDIA-H100-80GB-HBM3", "p5.48xlarge", 8),
    "a": ("NVIDIA-A100-SXM4-40GB", "p4d.24xlarge", 2),
    "l": ("NVIDIA-L40S", "", 1),
}


def write(path: Path) -> None:
    """Write it. At most 48 of 64 H100 are held; each day a job of 8 A100 waits for half a day, beside
    two that are free on a node; the L40S are full."""
    spans = [
        GpuSpan(f"{kind}{node}/{i}", f"{kind}-{node}", i, 8, model, "healthy", START, 0, type_, type_ and "us-east-1")
        for kind, (model, type_, nodes) in KINDS.items()
        for node in range(nodes)
        for i in range(8)
    ]
    jobs = list(_jobs())
    pods = [
        PodRecord(name, "ml", name, name, gpu_milli=1000 * gpus, node=f"{kind}-{node}", submitted_ms=_at(submitted),
                  bound_ms=_at(bound), started_ms=_at(bound), ended_ms=_at(ended))
        for name, kind, node, gpus, submitted, bound, ended in jobs
    ]  # fmt: skip
    holds = [
        GpuHold(name, f"{kind}{node}/{i}", 1000, "whole", _at(bound), _at(ended))
        for name, kind, node, gpus, _, bound, ended in jobs
        for i in range(gpus)
    ]
    made = SqliteStore(path)
    made.write(HistoryBatch(_at(24 * DAYS), spans, holds, pods))
    made.close()


def _jobs() -> Iterator[tuple[str, str, int, int, int, int, int]]:
    """Name, kind and number of the node, GPUs; when it was submitted, bound and ended, in hours."""
    for node in range(6):
        yield f"pretrain-{node}", "h", node, 8, 30, 30, 200 + 20 * node
    yield "serve", "l", 0, 8, 1, 1, 24 * DAYS
    for day in range(DAYS):
        for node in range(2):
            yield f"tune-{day}-{node}", "a", node, 8 - 2 * node, 24 * day + 1, 24 * day + 1, 24 * day + 12
        yield f"late-{day}", "a", 0, 8, 24 * day + 1, 24 * day + 12, 24 * day + 23


def _at(hour: int) -> int:
    return START + hour * HOUR_MS
