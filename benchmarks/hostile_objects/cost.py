# SPDX-License-Identifier: Apache-2.0
"""The cost of one kind of objects: CPU time and memory while they come, exist and go."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.hostile_objects.objects import HOSTILE
from benchmarks.hostile_objects.world import World


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Cost(Struct):
    """The cost of one kind of object. `size` is the bytes of an object, `left_mib` the memory that remains after each
    round."""

    kind: str
    size: int
    cpu_ms: float
    worst_ms: float
    mib: float
    ordinary_ms: float
    beside_ms: float
    left_mib: list[float]


def measure(kind: str, rounds: list[Path]) -> Cost:
    """Measure one kind. `rounds` are files; each line has a source, an object and the same object without content."""
    world = World()

    def read(file: Path, deleted: bool) -> Iterator[float]:
        with file.open("rb") as lines:
            for source, line, small in zip(lines, lines, lines, strict=True):
                if deleted and source == b"owner\n":
                    continue
                started = time.process_time()
                world.read(source.decode().strip(), small if deleted else line)
                yield 1_000 * (time.process_time() - started)

    # Imports and allocations for the first object are not part of the cost of the others.
    for _ in read(rounds[0], deleted=False):
        pass
    for _ in read(rounds[0], deleted=True):
        pass
    cost = Cost(kind, 0, 0.0, 0.0, 0.0, world.ordinary_ms("before"), 0.0, [])
    start = resident_mib()
    for number, file in enumerate(rounds[1:]):
        there, took = resident_mib(), list(read(file, deleted=False))
        if number == 0:
            count = int(file.name.partition("-")[0])
            cost.size = file.stat().st_size // count
            cost.cpu_ms, cost.worst_ms = sum(took) / count, max(took)
            cost.mib = (resident_mib() - there) / count
            cost.beside_ms = world.ordinary_ms("beside")
        for _ in read(file, deleted=True):
            pass
        cost.left_mib.append(resident_mib() - start)
    return cost


def write(kind: str, count: int, rounds: int, folder: Path) -> list[Path]:
    """Write the objects of all rounds. The first round is a warm-up."""
    files = []
    for number in range(rounds + 1):
        some = count if number else min(3, count)
        file = folder / f"{some}-{number}"
        with file.open("wb") as lines:
            for i in range(some):
                for source, document in HOSTILE[kind](f"r{number}-{i}"):
                    small = {
                        "metadata": {
                            key: document.get("metadata", {}).get(key, "") for key in ("name", "namespace", "uid")
                        },
                        "spec": {"schedulerName": document.get("spec", {}).get("schedulerName", "")},
                    }
                    lines.write(source.encode() + b"\n")
                    sent = document if source == "owner" else {"type": "ADDED", "object": document}
                    lines.write(msgspec.json.encode(sent) + b"\n")
                    lines.write(msgspec.json.encode({"type": "DELETED", "object": small}) + b"\n")
        files.append(file)
    return files
