# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed in the middle of their writes: `python killed.py DIRECTORY STEPS`.

Batches are of times so far apart that days are added up between them, and some of them change a day that was.

For each number of steps up to STEPS one process writes batches to `N.db`, and is killed with SIGKILL before step N of
its writes, counted over all of them. The numbers of the batches that were written are in `N.acknowledged`, a line each.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

from dovetail.history.records import DAY_MS, HOUR_MS, Gap, GpuHold, GpuSpan, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite.retention import Retention
from dovetail.history.sqlite.store import SqliteStore

STEPS_AFTER = 3
"""Steps of the retention after each batch: less than a day needs to be added up."""
RETENTION = Retention(hours_days=1)
APART_MS = 6 * HOUR_MS


def batch(number: int) -> HistoryBatch:
    """One in which all that there is of the number before ends, and as much begins."""
    now_ms = number * APART_MS
    spans = [GpuSpan("gpu", "node", 0, 1, "H100", "healthy", now_ms)]
    holds = [GpuHold(f"pod-{number}", "gpu", 1000, "whole", now_ms)]
    pods = [PodRecord(f"pod-{number}", "team", f"p{number}", "job", submitted_ms=now_ms, labels={"n": str(number)})]
    if number > 1:
        before = batch(number - 1)
        spans.append(GpuSpan("gpu", "node", 0, 1, "H100", "healthy", before.until_ms, now_ms))
        holds.append(GpuHold(f"pod-{number - 1}", "gpu", 1000, "whole", before.until_ms, now_ms))
    # Each third one is about the day before.
    day_ms = max(0, now_ms // DAY_MS - (number % 3 == 0)) * DAY_MS
    use = [UseHour("gpu", f"pod-{max(1, number - 4)}", day_ms, 1000, number, 1, number, (number,) * 20)]
    return HistoryBatch(now_ms, spans, holds, pods, use, [Gap(now_ms, now_ms + 1, "test")])


def write(file: Path, acknowledged: Path, steps: int) -> None:
    passed = itertools.count(1)

    def at_step(_: str) -> None:
        if next(passed) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    store = SqliteStore(file, RETENTION, at_step=at_step)
    output = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in itertools.count(1):
        store.write(batch(number))
        os.write(output, f"{number}\n".encode())
        for _ in range(STEPS_AFTER):
            store.retain(number * APART_MS)


def main() -> None:
    folder, most = Path(sys.argv[1]), int(sys.argv[2])
    for steps in range(1, most + 1):
        child = os.fork()
        if not child:
            write(folder / f"{steps}.db", folder / f"{steps}.acknowledged", steps)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), status


if __name__ == "__main__":
    main()
