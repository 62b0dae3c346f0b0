# SPDX-License-Identifier: Apache-2.0
"""A file with the history of 20 days of three nodes, for tests of `dovetail cost` and of its pages."""

from __future__ import annotations

from pathlib import Path

from dovetail.history.records import HOUR_MS, Gap, GpuHold, GpuSpan, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite.store import SqliteStore

START = 1_793_491_200_000
"""The start of November 2026."""
DAYS = 20
FORMULA = "=cmd|' /C calc'!A0"
MARKUP = "[red]\x1b[31m<b>"


def at(hour: int) -> int:
    return START + hour * HOUR_MS


def write(path: Path) -> None:
    """Write it. Two nodes have a list price, the third one has none."""
    spans, holds, pods, use = [], [], [], []
    for number in range(3):
        model, kind, region = ("NVIDIA-H100-80GB-HBM3", "p5.48xlarge", "us-east-1") if number < 2 else ("Z9", "", "")
        spans += [
            GpuSpan(f"GPU-{number}{index}", f"gpu-{number + 1}", index, 8, model,
                    "unhealthy" if (number, index) == (1, 7) else "healthy", START, 0, kind, region)
            for index in range(8)
        ]  # fmt: skip
    jobs = [("vision", "ada", "train", 0, 8), ("audio", "bob", "eval", 1, 4), ("vision", "", "notebook", 0, 1)]
    for number, (queue, user, job, node, gpus) in enumerate([*jobs, ("", "eve", "lone", 2, 2)]):
        uid, start, end = (
            f"u{number}",
            at(3 + number * 120 * (node == 0)),
            at(100 + 20 * number * (1 + 5 * (node == 0))),
        )
        labels = {"team": (FORMULA, MARKUP, "", "plain")[number]}
        pods.append(PodRecord(uid, f"ns-{queue}", f"{job}-0", job, "Job", user, queue, labels=labels, bound_ms=start,
                              submitted_ms=start - 600_000, started_ms=start + 300_000, ended_ms=end))  # fmt: skip
        for index in range(gpus):
            holds.append(GpuHold(uid, f"GPU-{node}{index}", 1000, "whole", start, end))
            hours = [start + hour * HOUR_MS for hour in range(7, 57)]
            use += [UseHour(f"GPU-{node}{index}", uid, hour, HOUR_MS, HOUR_MS * 500, 0) for hour in hours]
    gaps = [Gap(at(70), at(72), "the collector did not run")]
    made = SqliteStore(path)
    made.write(HistoryBatch(at(24 * DAYS), spans, holds, pods, use, gaps))
    made.close()
