# SPDX-License-Identifier: Apache-2.0
"""Advice on sizes against synthetic truth: precision and recall over jobs whose right size is known.

    python -m benchmarks.advice [--seeds 10] [--noise 1] [-o json]

Each seed makes jobs of every kind of `KINDS`, with random sizes, hours and loads. Their use is noisy and has gaps, as
readings have: hours without data, hours of which a part was measured, readings that are far off. The right answer
for each kind is beside it. Precision: of all pieces of advice, the part that is right for its job.
Recall: of the jobs for which there is right advice, those that got it. Unsafe is advice that would take GPUs from a job
that needs all that it has: to which no such advice is right, or a service with a high p95.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from msgspec import Struct
from msgspec.structs import asdict, replace

from dovetail.advice.sizing.advise import advise
from dovetail.advice.sizing.market import HourPrice, InstanceOffer, Market
from dovetail.advice.sizing.rule import JobAdvice
from dovetail.history.job_use import job_uses
from dovetail.history.records import (
    HOUR_MS,
    USE_BINS,
    GpuHold,
    GpuSpan,
    HoldKind,
    Outcome,
    Period,
    PodRecord,
    UseHour,
)
from dovetail.monitoring.real_use import PARTS, default
from tests.history.memory_reader import MemoryReader

START_MS = 20_000 * 24 * HOUR_MS
DAYS = 9
STEPS = 20
"""Readings of an hour: each stands for three minutes."""
_STEP_MS = HOUR_MS // STEPS
_IDLE = default("idle_util")
H100, A100, L40S, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S", "NVIDIA-L4"
A100_PCIE = "NVIDIA-A100-80GB-PCIe"
CENTS = {A100: (400, 170), L40S: (200, 195), L4: (100, None)}
"""What an hour of a GPU costs, and on spot."""
L4_MACHINES = {4: 71, 16: 115, 64: 340}
"""By the number of CPUs the cents for an hour of a machine with one L4."""
SHRINKS = frozenset(("unused-gpus", "mig", "fewer-gpus", "smaller-gpu", "share", "idle", "communication-bound"))

Reading = dict[str, float]
"""Activities: 0 to 1, or bytes per second."""


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
    zone of its own with `zones`. `requests` are fields of the pods; `held` and `milli` are what a pod holds."""

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


class Kind(Struct, frozen=True):
    """A kind of workload: how one is made, and which advice is right; "" for none."""

    name: str
    make: Callable[[Random], Shape]
    right: frozenset[str] = frozenset()
    verdict: str = ""


def _steady(load: Load) -> LoadAt:
    return lambda random, gpu, hour, step: load


def _io_bound(random: Random) -> Shape:
    load = Load(random.uniform(0.08, 0.22), 0.06, 0.15, random.uniform(0.2, 0.5), random.uniform(0.1, 0.5),
                random.uniform(1.5e9, 6e9), power=0.4)  # fmt: skip
    gpus, (runs, hours) = random.choice((1, 2, 4)), random.choice(((1, DAYS * 24), (8, 20)))
    return Shape(_steady(load), random.randint(10, 60) * 1024, gpus=gpus, runs=runs, hours=hours)


def _tensor_bound(random: Random) -> Shape:
    load = Load(random.uniform(0.72, 0.9), random.uniform(0.56, 0.75), 0.4, 0.97, 0.4, power=0.9)
    return Shape(_steady(load), random.randint(50, 75) * 1024, gpus=random.choice((1, 2, 8)), runs=8, hours=20)


def _memory_bound(random: Random) -> Shape:
    load = Load(random.uniform(0.34, 0.42), random.uniform(0.02, 0.08), random.uniform(0.6, 0.78), 0.9, 0.6, power=0.6)
    kind, model = random.choice((("Deployment", H100), ("Deployment", A100), ("Job", H100)))
    return Shape(_steady(load), random.randint(15, 30) * 1024, kind, model)


def _too_large(random: Random) -> Shape:
    load = Load(random.uniform(0.06, 0.1), random.uniform(0.02, 0.06), 0.08, random.uniform(0.2, 0.35), 0.1, power=0.4)
    return Shape(_steady(load), random.randint(6, 16) * 1024, random.choice(("Job", "Deployment")), L40S)


def _mig_sized(random: Random) -> Shape:
    most = random.uniform(0.06, 0.5)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        part = most * random.random()
        return Load(part * 0.5, part * 0.3, part * 0.4, part, power=0.25)

    return Shape(
        load, random.randint(4, 15) * 1024, "Deployment", random.choice((H100, A100)), pods=random.choice((1, 3))
    )


def _bursty(random: Random) -> Shape:
    part = random.uniform(0.1, 0.25)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        busy = Load(0.98, 0.95, 0.6, 1.0, 0.5, power=0.95)
        return busy if random.random() < part else Load(0.05, 0.02, 0.04, 0.1)

    return Shape(load, random.randint(4, 20) * 1024, random.choice(("Deployment", "InferenceService")), pods=2)


def _steady_serving(random: Random) -> Shape:
    load = Load(random.uniform(0.6, 0.85), random.uniform(0.3, 0.5), 0.5, 0.95, 0.4, power=0.8)
    return Shape(_steady(load), random.randint(40, 75) * 1024, "Deployment", pods=random.choice((1, 2, 4)))


def _hung(random: Random) -> Shape:
    begin, length = random.randint(10, 60), random.randint(4, 40)
    busy = Load(0.8, 0.6, 0.4, 0.95, power=0.9)
    spin = Load(0.06, 0.0, 0.002, 1.0, power=0.18)
    hang = range(begin, begin + length)
    return Shape(lambda _, gpu, hour, step: spin if hour in hang else busy, 60 * 1024, gpus=8, hours=110)


def _straggler(random: Random) -> Shape:
    slow = random.uniform(0.4, 0.65)
    busy = Load(random.uniform(0.75, 0.9), 0.6, 0.4, 0.95, power=0.9)
    lags = Load(busy.sm * slow, busy.tensor * slow, busy.dram * slow, busy.engine * slow, power=0.6)
    gpus = random.choice((4, 8))
    return Shape(
        lambda _, gpu, hour, step: lags if gpu == 1 else busy, 60 * 1024, gpus=gpus, hours=random.randint(30, 200)
    )


def _notebook(random: Random) -> Shape:
    first, length = random.randint(8, 15), random.randint(1, 4)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        busy = first <= hour % 24 < first + length and random.random() < 0.7
        return Load(0.6, 0.3, 0.3, 0.8, power=0.6) if busy else NOTHING

    return Shape(load, random.randint(2, 30) * 1024, "StatefulSet", random.choice((H100, L4)), name="jupyter-ada")


def _idle_service(random: Random) -> Shape:
    part = random.uniform(0.0, 0.01)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        return Load(0.7, 0.5, 0.4, 0.9, power=0.7) if random.random() < part else NOTHING

    return Shape(
        load, random.randint(10, 78) * 1024, "Deployment", random.choice((H100, L4)), pods=random.choice((1, 2))
    )


def _communicates(random: Random) -> Shape:
    nvlink = random.uniform(1.2e10, 8e10)
    part = random.uniform(0.3, 0.45)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        works = Random(hour * STEPS + step).random() < part
        return Load(0.9, 0.5, 0.3, 0.95, nvlink=nvlink, power=0.7) if works else Load(0.08, 0, 0.1, 0.9, nvlink=nvlink)

    return Shape(
        load, random.randint(30, 70) * 1024, gpus=random.choice((4, 8)), pods=random.choice((1, 2)), runs=8, hours=20
    )


def _gaps(random: Random) -> Shape:
    period, gap = random.randint(16, 28), random.randint(4, 6)
    busy = Load(0.85, 0.65, 0.4, 0.97, power=0.9)
    return Shape(
        lambda _, gpu, hour, step: NOTHING if (hour * STEPS + step) % period < gap else busy,
        60 * 1024, gpus=random.choice((1, 4)), runs=8, hours=24,
    )  # fmt: skip


def _too_many(random: Random) -> Shape:
    load = Load(
        random.uniform(0.12, 0.25), random.uniform(0.05, 0.12), 0.12, random.uniform(0.2, 0.38), 0.1, power=0.35
    )
    return Shape(_steady(load), random.randint(6, 14) * 1024, gpus=random.choice((2, 4, 8)), runs=8, hours=20)


def _right_sized(random: Random) -> Shape:
    load = Load(random.uniform(0.55, 0.75), random.uniform(0.3, 0.45), random.uniform(0.3, 0.45), 0.95, power=0.75)
    return Shape(_steady(load), random.randint(30, 70) * 1024, gpus=random.choice((1, 4)), runs=10, hours=12)


def _shares(random: Random) -> Shape:
    most = random.uniform(0.3, 0.5)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        part = most * (random.random() if random.random() < 0.4 else 0.1)
        return Load(part * 0.8, part * 0.4, part * 0.4, part, power=0.3)

    return Shape(load, random.randint(2, 7) * 1024, "Deployment", L4, pods=random.choice((1, 2)))


def _unused(random: Random) -> Shape:
    used = random.choice((1, 2, 4))
    busy = Load(0.8, 0.6, 0.4, 0.95, power=0.9)
    return Shape(lambda _, gpu, hour, step: busy if gpu < used else NOTHING, 60 * 1024, gpus=8, runs=8, hours=20)


def _night_work(random: Random) -> Shape:
    """A service with a mean below 40 %, as there is no load at night, and a full one by day."""
    busy = Load(0.85, 0.6, 0.5, 0.97, power=0.9)
    return Shape(
        lambda _, gpu, hour, step: busy if 8 <= hour % 24 < 16 else Load(0.02, 0.0, 0.02, 0.05),
        random.randint(5, 40) * 1024, "Deployment", random.choice((H100, L40S, L4)), pods=2,
    )  # fmt: skip


def _short_bursts(random: Random) -> Shape:
    """Full load for a few percent of the time: the p95 is low, and the peaks are what users wait for."""
    part = random.uniform(0.02, 0.045)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        busy = Load(0.95, 0.9, 0.6, 1.0, 0.5, power=0.95)
        return busy if random.random() < part else Load(0.08, 0.04, 0.06, 0.1)

    return Shape(load, random.randint(4, 15) * 1024, "Deployment", random.choice((H100, L4, L40S)))


def _sharded(random: Random) -> Shape:
    """Low use of GPUs whose memory is full: fewer would not hold the model."""
    load = Load(random.uniform(0.3, 0.4), random.uniform(0.2, 0.3), 0.3, 0.7, 0.2, power=0.5)
    return Shape(_steady(load), random.randint(68, 76) * 1024, gpus=random.choice((4, 8)), runs=8, hours=20)


def _full_memory(random: Random) -> Shape:
    """A server that takes all memory for its cache, and has few requests."""
    load = Load(random.uniform(0.05, 0.1), 0.04, 0.06, random.uniform(0.15, 0.3), power=0.3)
    return Shape(_steady(load), random.randint(76, 78) * 1024, "Deployment", random.choice((H100, A100)))


def _bubbles(random: Random) -> Shape:
    """A pipeline that fills and empties: a mean below 40 %, and no transfers to speak of."""
    part = random.uniform(0.35, 0.45)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        return Load(0.9, 0.7, 0.4, 0.95, power=0.8) if random.random() < part else Load(0.15, 0.05, 0.1, 0.5)

    return Shape(load, random.randint(30, 60) * 1024, gpus=4, runs=8, hours=20)


def _spot(random: Random) -> Shape:
    load = Load(0.8, 0.6, 0.4, 0.97, power=0.9)
    return Shape(_steady(load), 60 * 1024, model=A100, runs=9, hours=10, interrupted=True)


def _declares(random: Random) -> Shape:
    """One long run that declares how often it saves, on GPUs that cost less than half on spot."""
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    saves = {"checkpoint_interval_ms": random.choice((600_000, 1_800_000, 3_600_000))}
    return Shape(_steady(load), random.randint(30, 70) * 1024, model=A100, gpus=random.choice((1, 8)), requests=saves)


def _short_runs(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    return Shape(_steady(load), 60 * 1024, model=A100, runs=60, hours=1, steps=random.randint(12, 18))


def _does_not_save(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    runs, hours = random.choice(((1, DAYS * 24), (8, 20)))
    return Shape(_steady(load), random.randint(30, 70) * 1024, model=A100, runs=runs, hours=hours)


def _spot_costs_the_same(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    saves = {"checkpoint_interval_ms": 1_800_000}
    return Shape(_steady(load), random.randint(30, 42) * 1024, model=L40S, requests=saves)


def _apart(random: Random) -> Shape:
    """GPUs that one node would hold, in several: little is exchanged, as the network is slow."""
    moved = random.uniform(0.4e9, 3e9)
    load = Load(random.uniform(0.2, 0.42), random.uniform(0.05, 0.12), 0.2, random.uniform(0.5, 0.9), 0.1, moved,
                moved * random.uniform(0.75, 1.0), power=0.5)  # fmt: skip
    gpus, pods = random.choice(((1, 2), (2, 2), (1, 4), (4, 2), (2, 4)))
    return Shape(_steady(load), random.randint(40, 70) * 1024, gpus=gpus, pods=pods, runs=8, hours=20,
                 node_gpus=8, zones=random.random() < 0.3)  # fmt: skip


def _loads_apart(random: Random) -> Shape:
    """In several nodes, too, but what it waits for is data: that is received, and little is sent."""
    received = random.uniform(1.5e9, 5e9)
    load = Load(random.uniform(0.08, 0.22), 0.06, 0.15, random.uniform(0.3, 0.5), 0.3, received,
                received * random.uniform(0.02, 0.3), power=0.4)  # fmt: skip
    pods = random.choice((2, 4))
    return Shape(_steady(load), random.randint(10, 60) * 1024, pods=pods, runs=8, hours=20, node_gpus=8)


def _no_nvlink(random: Random) -> Shape:
    """A pair of cards that have bridges, and not between these two."""
    moved = random.uniform(2e9, 12e9)
    load = Load(random.uniform(0.2, 0.45), random.uniform(0.05, 0.12), 0.2, random.uniform(0.5, 0.9), 0.2, moved, moved,
                nvlink=1e5, power=0.5)  # fmt: skip
    return Shape(_steady(load), random.randint(40, 70) * 1024, model=A100_PCIE, gpus=2, runs=8, hours=20)


def _over_full_nodes(random: Random) -> Shape:
    """Two whole nodes with a fast network, which exchange much, and are busy."""
    load = Load(random.uniform(0.65, 0.85), random.uniform(0.4, 0.6), 0.4, 0.97, 0.2, 1e10, 9e9, 6e10, power=0.9)
    return Shape(_steady(load), random.randint(50, 75) * 1024, gpus=8, pods=2, runs=8, hours=20, node_gpus=8)


def _few_cpus(random: Random) -> Shape:
    """Kernels are started by too few CPUs."""
    load = Load(random.uniform(0.1, 0.2), random.uniform(0.02, 0.08), 0.1, random.uniform(0.5, 0.9), 0.1, power=0.4)
    gpus = random.choice((1, 4))
    asked = {"cpu_milli": gpus * random.choice((1000, 2000, 3000))}
    return Shape(_steady(load), random.randint(30, 70) * 1024, gpus=gpus, runs=8, hours=20, requests=asked)


def _large_machine(random: Random) -> Shape:
    """A GPU in a machine with 64 CPUs, of which it asks for three."""
    load = Load(random.uniform(0.6, 0.8), random.uniform(0.3, 0.45), 0.4, 0.95, power=0.8)
    asked = {"cpu_milli": random.randint(1, 3) * 1000, "memory_mib": random.randint(4, 12) * 1024}
    return Shape(_steady(load), random.randint(10, 20) * 1024, "Deployment", L4, instance_type="l4-64", requests=asked)


def _needs_its_machine(random: Random) -> Shape:
    made = _large_machine(random)
    asked = random.choice(({"cpu_milli": 50_000, "memory_mib": 4096}, {"cpu_milli": 1000, "memory_mib": 200_000}, {}))
    return replace(made, requests=asked)


def _sharded_service(random: Random) -> Shape:
    """A model over several GPUs that serves bursts: between them its GPUs wait for requests, not for one another."""
    part, nvlink = random.uniform(0.2, 0.4), random.uniform(1e10, 6e10)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        works = Random(hour * STEPS + step).random() < part
        return Load(0.9, 0.8, 0.6, 1.0, nvlink=nvlink, power=0.9) if works else Load(0.05, 0.0, 0.05, 0.2)

    return Shape(load, random.randint(50, 70) * 1024, "LeaderWorkerSet", gpus=4)


def _time_sliced(random: Random) -> Shape:
    """The use of a GPU that several pods share is not measured."""
    made = _mig_sized(random)
    return replace(made, held="share", milli=random.choice((250, 500)), missing=1.0)


def _fits_its_instance(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.9), random.uniform(0.5, 0.7), 0.4, 0.9, power=0.5)
    return Shape(_steady(load), random.randint(4, 9) * 1024, "Deployment", held="instance", milli=142)


def _short(random: Random) -> Shape:
    made = random.choice((_mig_sized, _io_bound, _too_large, _too_many))(random)
    return Shape(made.load, made.memory_mib, made.kind, made.model, made.gpus, hours=random.randint(20, 100))


def _sparse(random: Random) -> Shape:
    made = random.choice((_mig_sized, _too_large, _too_many))(random)
    return Shape(made.load, made.memory_mib, made.kind, made.model, made.gpus, missing=random.uniform(0.65, 0.9))


def _of(name: str, make: Callable[[Random], Shape], *right: str, verdict: str = "") -> Kind:
    return Kind(name, make, frozenset(right), verdict or ("advice" if right else "right-sized"))


KINDS: tuple[Kind, ...] = (
    _of("io-bound training", _io_bound, "io-bound"),
    _of("tensor-bound training", _tensor_bound),
    _of("memory-bound", _memory_bound, "memory-bound"),
    _of("too large a GPU", _too_large, "smaller-gpu"),
    _of("MIG-sized inference", _mig_sized, "mig"),
    _of("bursty serving", _bursty),
    _of("steady serving", _steady_serving),
    _of("service that rests at night", _night_work),
    _of("short bursts", _short_bursts),
    _of("sharded model", _sharded),
    _of("full memory, few requests", _full_memory),
    _of("pipeline with bubbles", _bubbles),
    _of("hung", _hung, "hung"),
    _of("straggler", _straggler, "straggler"),
    _of("idle notebook", _notebook, "idle"),
    _of("idle service", _idle_service, "idle"),
    _of("communication-bound", _communicates, "communication-bound"),
    _of("gaps between epochs", _gaps, "epoch-gaps"),
    _of("too many GPUs", _too_many, "fewer-gpus"),
    _of("unused GPUs", _unused, "unused-gpus"),
    _of("small service", _shares, "share"),
    _of("right-sized training", _right_sized),
    _of("training with checkpoints", _spot, "spot"),
    _of("declares checkpoints", _declares, "spot"),
    _of("short runs", _short_runs, "spot"),
    _of("long runs that are not saved", _does_not_save, "checkpoints"),
    _of("spot that costs the same", _spot_costs_the_same),
    _of("apart over a slow link", _apart, "link"),
    _of("loading data in several nodes", _loads_apart, "io-bound"),
    _of("pair without NVLink", _no_nvlink, "link"),
    _of("two full nodes", _over_full_nodes),
    _of("few CPUs", _few_cpus, "few-cpus"),
    _of("small job in a large machine", _large_machine, "instance"),
    _of("job that needs its machine", _needs_its_machine),
    _of("sharded service", _sharded_service),
    _of("time-sliced service", _time_sliced, verdict="not enough data"),
    _of("MIG instance that fits", _fits_its_instance),
    _of("short history", _short, verdict="not enough data"),
    _of("sparse data", _sparse, verdict="not enough data"),
)


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
    measured_ms = use = idle_ms = 0
    histogram = [0] * USE_BINS
    activity: Counter[str] = Counter()
    until = steps if random.random() < 0.95 else random.randint(1, steps)
    for step in range(until):
        reading = reading_of(random, shape.load(random, gpu, hour, step), shape.noise)
        real = sum(part.weight * reading[part.activity] for part in PARTS)
        measured_ms += _STEP_MS
        use += round(real * 1000) * _STEP_MS
        idle_ms += _STEP_MS * (real < _IDLE)
        histogram[min(int(real * USE_BINS), USE_BINS - 1)] += _STEP_MS
        for name, value in reading.items():
            activity[name] += round(value * (1 if name[:2] in ("pc", "nv") else 1000)) * _STEP_MS
    peak = round(shape.memory_mib * random.uniform(0.9, 1.0))
    return measured_ms, use, idle_ms, peak, tuple(histogram), dict(activity)


def reading_of(random: Random, load: Load, noise: float = 1.0) -> Reading:
    """A reading of the load: 6 % off in the mean, and one in 200 far off, both times `noise`."""
    if random.random() < 0.005 * noise:
        load = random.choice((NOTHING, Load(1.0, 0.9, 0.6, 1.0, power=0.9)))
    factor = max(0.0, random.gauss(1.0, 0.06 * noise))

    def noisy(value: float) -> float:
        return min(1.0, max(0.0, value * factor * random.uniform(0.97, 1.03)))

    engine = noisy(load.engine) if load.engine < 1 else 1.0
    return {
        "sm": noisy(load.sm), "tensor": noisy(load.tensor), "dram": noisy(load.dram), "engine": engine,
        "utilization": 1.0 if engine > 0.5 else engine, "memory_copy": noisy(load.memory_copy), "power": load.power,
        "pcie_rx": load.pcie * factor, "pcie_tx": load.sent * factor, "nvlink_tx": load.nvlink * factor,
    }  # fmt: skip


def _cents(cents: int | None) -> HourPrice | None:
    return HourPrice(cents * 10_000, "USD", "2026-11-01") if cents is not None else None


def _price_of(span: GpuSpan) -> HourPrice | None:
    return _cents(CENTS.get(span.model, (None, None))[span.spot])


def _machines(span: GpuSpan) -> list[InstanceOffer]:
    """Those of the table, for a GPU that is in one of them."""
    table = L4_MACHINES if span.instance_type else {}
    prices = {cpus: HourPrice(cents * 10_000, "USD", "2026-11-01") for cpus, cents in table.items()}
    return [InstanceOffer(f"l4-{cpus}", 1, cpus * 1000, cpus * 4096, price) for cpus, price in prices.items()]


MARKET = Market(lambda model: None, _price_of, _machines)


class Answer(Struct, frozen=True):
    """What was advised for a job of a kind, and what is right."""

    seed: int
    kind: str
    right: tuple[str, ...]
    advised: tuple[str, ...]
    verdict: str
    verdict_right: bool
    unsafe: bool


def answers(seed: int, each: int = 1, noise: float = 1.0) -> Iterator[Answer]:
    """Of `each` jobs of every kind."""
    random = Random(seed)
    all_kinds = [kind for kind in KINDS for _ in range(each)]
    jobs = [made_of(random, replace(kind.make(random), noise=noise), number) for number, kind in enumerate(all_kinds)]
    spare = [
        GpuSpan(f"GPU-spare-{i}", "spare", i, 5, model, "healthy", START_MS, spot=spot)
        for i, (model, spot) in enumerate(((H100, False), (A100, True), (L40S, False), (L4, False)))
    ]
    end_ms = START_MS + DAYS * 24 * HOUR_MS
    for kind, made in zip(all_kinds, jobs, strict=True):
        reader = MemoryReader(Period(START_MS, end_ms), [*made.spans, *spare], made.holds, made.pods, made.use)
        (found,) = advise(job_uses(reader, Period(START_MS, end_ms)), MARKET)
        yield _answer(seed, kind, found)


def _answer(seed: int, kind: Kind, found: JobAdvice) -> Answer:
    advised = tuple(one.rule for one in found.advice)
    shrinks = SHRINKS.intersection(advised)
    loaded = found.workload == "serving" and found.p95_milli >= 700
    unsafe = bool(shrinks - kind.right or (shrinks and loaded))
    return Answer(
        seed, kind.name, tuple(sorted(kind.right)), advised, found.verdict, found.verdict == kind.verdict, unsafe
    )


class Score(Struct, frozen=True):
    jobs: int
    advised: int
    precision: float
    recall: float
    verdicts: float
    unsafe: int


def score(found: list[Answer]) -> Score:
    advised = [rule in one.right for one in found for rule in one.advised]
    wanted = [any(rule in one.advised for rule in one.right) for one in found if one.right]
    verdicts = [one.verdict_right for one in found]
    unsafe = sum(one.unsafe for one in found)
    return Score(len(found), len(advised), _part(advised), _part(wanted), _part(verdicts), unsafe)


def _part(true: list[bool]) -> float:
    return round(sum(true) / max(1, len(true)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--noise", type=float, default=1.0, help="a factor of the noise in readings")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    found = [one for seed in range(options.seeds) for one in answers(seed, noise=options.noise)]
    total = score(found)
    if options.output == "json":
        print(json.dumps({"score": asdict(total), "answers": [asdict(one) for one in found]}))
        return
    print(f"{'kind':<30} {'right':<20} {'advised, by number of jobs'}")
    for kind in KINDS:
        advised = Counter(", ".join(one.advised) or one.verdict for one in found if one.kind == kind.name)
        print(f"{kind.name:<30} {', '.join(kind.right) or kind.verdict:<20} {dict(advised)}")
    print(f"precision {total.precision}, recall {total.recall}, verdicts {total.verdicts}, unsafe {total.unsafe}; "
          f"{total.jobs} jobs, {total.advised} pieces of advice")  # fmt: skip


if __name__ == "__main__":
    main()
