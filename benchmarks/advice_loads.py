# SPDX-License-Identifier: Apache-2.0
"""Jobs with noisy use and gaps, as records of a history: hours without data, hours of which a part was measured,
readings that are far off."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec import Struct

from dovetail.history.records import (
    HOST_CPU,
    HOST_MEMORY,
    HOUR_MS,
    USE_BINS,
    GpuHold,
    GpuSpan,
    HoldKind,
    Outcome,
    PodRecord,
    UseHour,
)
from dovetail.monitoring.real_use import PARTS, default

START_MS = 20_000 * 24 * HOUR_MS
DAYS = 9
STEPS = 20
"""Readings of an hour: each stands for three minutes."""
_STEP_MS = HOUR_MS // STEPS
_IDLE = default("idle_util")
_WEIGHTS: tuple[tuple[str, float], ...] = tuple((part.activity, part.weight) for part in PARTS)
H100 = "NVIDIA-H100-80GB-HBM3"

Reading = dict[str, float]
"""Activities: 0 to 1, or bytes per second."""
_SCALES = {
    **dict.fromkeys(("sm", "tensor", "dram", "engine", "utilization", "memory_copy", "power"), 1000),
    **dict.fromkeys(("pcie_rx", "pcie_tx", "nvlink_tx"), 1),
}
"""What makes thousandths, or bytes per second, of each activity of a reading."""


class Load(Struct, frozen=True):
    """How busy a GPU is, as means of the readings."""

    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    engine: float = 0.0
    memory_copy: float = 0.0
    pcie: float = 1e7
    sent: float = 1e6
    nvlink: float = 0.0
    power: float = 0.2


NOTHING = Load()


class Made(Struct):
    """A job that was made: what the history has of it."""

    pods: list[PodRecord]
    holds: list[GpuHold]
    spans: list[GpuSpan]
    use: list[UseHour]


LoadAt = Callable[[Random, int, int, int], Load]
"""The load of a GPU of a job, by its number, the hour and the step within the hour."""


class Shape(Struct, frozen=True):
    """A job: `runs` of `hours` each, evenly over the days, of `pods` with `gpus` each. Of the last hour of a run so
    many `steps` belong to it. Its GPUs are in one node, or with `node_gpus` each pod is in a node with so many, in a
    zone of its own with `zones`. `requests` are fields of the pods; `held` and `milli` are what a pod holds. A pod uses
    `host_cpus` of its node in the mean and at most `host_mib`; without the latter that is not measured."""

    load: LoadAt
    memory_mib: int
    kind: str = "Job"
    model: str = H100
    gpus: int = 1
    pods: int = 1
    runs: int = 1
    hours: int = DAYS * 24
    missing: float = 0.06
    interrupted: bool = False
    name: str = ""
    noise: float = 1.0
    steps: int = STEPS
    node_gpus: int = 0
    zones: bool = False
    instance_type: str = ""
    requests: dict[str, int] = {}
    held: HoldKind = "whole"
    milli: int = 1000
    host_cpus: float = 0.0
    host_mib: int = 0


def made_of(random: Random, shape: Shape, number: int) -> Made:
    """The records of a job of this shape."""
    made = Made([], [], [], [])
    name = shape.name or f"job-{number}"
    gap = max(0, DAYS * 24 - shape.runs * shape.hours) // shape.runs
    gpus = [f"GPU-{number}-{i}" for i in range(shape.gpus * shape.pods)]
    for i, uuid in enumerate(gpus):
        node = i // shape.gpus if shape.node_gpus else 0
        made.spans.append(GpuSpan(
            uuid, f"n{number}-{node}", i, shape.node_gpus or len(gpus), shape.model, "healthy", START_MS,
            instance_type=shape.instance_type, zone=f"z{node if shape.zones else 0}",
        ))  # fmt: skip
    for run in range(shape.runs):
        first = run * (shape.hours + gap)
        cut = shape.hours // 2 if shape.interrupted else shape.hours
        for part, (begin, end) in enumerate(((first, first + cut), (first + cut, first + shape.hours))):
            if begin == end:
                continue
            for pod in range(shape.pods):
                uid = f"{number}-{run}-{part}-{pod}"
                outcome: Outcome = "Evicted" if shape.interrupted and not part else "Completed"
                start_ms, end_ms = START_MS + begin * HOUR_MS, START_MS + end * HOUR_MS
                end_ms -= (STEPS - shape.steps) * _STEP_MS
                made.pods.append(PodRecord(
                    uid, "ml", f"{name}-{pod}", name, shape.kind, user="ada", submitted_ms=start_ms, bound_ms=start_ms,
                    started_ms=start_ms, ended_ms=end_ms, outcome=outcome, **shape.requests,  # type: ignore[arg-type]
                ))  # fmt: skip
                for own in range(shape.gpus):
                    gpu = pod * shape.gpus + own
                    made.holds.append(GpuHold(uid, gpus[gpu], shape.milli, shape.held, start_ms, end_ms))
                    hours = (
                        hour_of(random, shape, gpu, hour, shape.steps if hour == end - 1 else STEPS)
                        for hour in range(begin, end)
                    )
                    made.use += [
                        UseHour(gpus[gpu], uid, START_MS + hour * HOUR_MS, *sums)
                        for hour, sums in zip(range(begin, end), hours, strict=True)
                        if sums is not None
                    ]
    return made


def hour_of(
    random: Random, shape: Shape, gpu: int, hour: int, steps: int = STEPS
) -> tuple[int, int, int, int, tuple[int, ...], dict[str, int]] | None:
    """The sums of so many steps of an hour; None where nothing was measured."""
    if random.random() < shape.missing:
        return None
    use = idle = 0
    counts, sums = [0] * USE_BINS, dict.fromkeys(_SCALES, 0)
    until = steps if random.random() < 0.95 else random.randint(1, steps)
    for step in range(until):
        reading = reading_of(random, shape.load(random, gpu, hour, step), shape.noise)
        real = 0.0
        for part, weight in _WEIGHTS:
            real += weight * reading[part]
        use += round(real * 1000)
        idle += real < _IDLE
        counts[min(int(real * USE_BINS), USE_BINS - 1)] += 1
        for name, scale in _SCALES.items():
            sums[name] += round(reading[name] * scale)
    measured_ms, histogram = until * _STEP_MS, tuple(count * _STEP_MS for count in counts)
    activity = {name: count * _STEP_MS for name, count in sums.items()}
    if shape.host_mib and random.random() < 0.9:
        cpu_milli = max(0.0, shape.host_cpus * random.gauss(1000.0, 80 * shape.noise))
        activity[HOST_CPU] = round(cpu_milli / shape.gpus) * measured_ms
        activity[HOST_MEMORY] = round(shape.host_mib * random.uniform(0.8, 1.0) / shape.gpus) * measured_ms
    peak = round(shape.memory_mib * random.uniform(0.9, 1.0))
    return measured_ms, use * _STEP_MS, idle * _STEP_MS, peak, histogram, activity


def reading_of(random: Random, load: Load, noise: float = 1.0) -> Reading:
    """A reading of the load: 6 % off in the mean, and one in 200 far off, both times `noise`."""
    if random.random() < 0.005 * noise:
        load = random.choice((NOTHING, Load(1.0, 0.9, 0.6, 1.0, power=0.9)))
    factor = max(0.0, random.gauss(1.0, 0.06 * noise))
    draw = random.random

    def noisy(value: float) -> float:
        # As random.uniform(0.97, 1.03), min and max have it, in a third of the time: this is done two million times.
        value = value * factor * (0.97 + (1.03 - 0.97) * draw())
        if value < 0.0:
            return 0.0
        return value if value < 1.0 else 1.0

    engine = noisy(load.engine) if load.engine < 1 else 1.0
    return {
        "sm": noisy(load.sm), "tensor": noisy(load.tensor), "dram": noisy(load.dram), "engine": engine,
        "utilization": 1.0 if engine > 0.5 else engine, "memory_copy": noisy(load.memory_copy), "power": load.power,
        "pcie_rx": load.pcie * factor, "pcie_tx": load.sent * factor, "nvlink_tx": load.nvlink * factor,
    }  # fmt: skip
